"""Device rules of a container whose processes do not stay where they were."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.kernel.device_access import DeviceAccess, Directory
from nvhook.kernel.device_rules import DeviceRule
from nvhook.kernel.live_process import PinnedProcess

DEVICES = Path("/sys/fs/cgroup/devices")
RULE: DeviceRule = ("c", 195, 1, "rw")
pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def hierarchy(require: Callable[[bool, str], None], root_host: None) -> None:
    require(DEVICES.is_dir(), f"needs cgroup v1 at {DEVICES}")


def _access(pid: int) -> DeviceAccess:
    process = PinnedProcess(pid)
    try:
        return DeviceAccess(process, process)
    finally:
        process.close()


def test_rules_are_revoked_where_they_were_given(process_in: Callable[[Path], int]) -> None:
    """Wherever its processes are now: the directory is named by the journal."""
    place, elsewhere = DEVICES / "nvhook-test-given", DEVICES / "nvhook-test-moved"
    process_in(elsewhere)  # first: the other one moves there, and must have ended before
    pid = process_in(place)
    (place / "devices.deny").write_text("a *:* rwm")
    given: list[tuple[Directory, tuple[DeviceRule, ...]]] = []
    access = _access(pid)
    access.grant([RULE], lambda *step: given.append(step))
    [(directory, rules)] = given
    access.close()
    assert "c 195:1 rw" in (place / "devices.list").read_text()
    (elsewhere / "cgroup.procs").write_text(str(pid))

    access = _access(pid)
    access.revoke(rules, directory.path, directory.version)

    assert (place / "devices.list").read_text() == ""
    assert access.grant_again(rules, directory.path, directory.version)
    access.revoke(rules, f"{directory.path}-gone", 1)
    access.close()
    assert "c 195:1 rw" in (place / "devices.list").read_text()
