"""nvhook reconcile, where a container is not as its journal has it."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook import config
from nvhook.kernel.live_process import namespace, start_time_of
from nvhook.live.container import boot_id
from nvhook.live.journal import Journal, Step, names
from nvhook.live.reconcile import reconcile

pytestmark = pytest.mark.root


def test_a_first_process_with_other_mounts_is_a_problem(
    tmp_path: Path, require: Callable[[bool, str], None], root_host: None
) -> None:
    """Its journal can't be followed, and nothing else is taken for it."""
    with subprocess.Popen(["unshare", "--mount", "sleep", "1000"]) as process:
        try:
            while namespace(process.pid, "mnt") == namespace("self", "mnt"):
                time.sleep(0.01)
            name = f"{process.pid}-{start_time_of(process.pid)}"
            journal = Journal(str(tmp_path), name, boot_id())
            journal.commit((Step("rules", "bus", "/x", "c 195:1 rw", numbers=(1,)),))
            journal.close()
            file = tmp_path / "nvhook.toml"
            file.write_text(f'state-directory = "{tmp_path}"\n')

            [found] = reconcile(config.load(str(file)))
        finally:
            process.kill()

    assert found.pid == process.pid
    assert "not those that inject has changed" in found.problem
    assert names(str(tmp_path)) == (name,)
