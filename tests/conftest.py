"""What every test may use."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runtime import packages
from tests.runtime.simulated import Driver

PROGRAMS = Path(__file__).parent / "runtime"


def require(condition: bool, reason: str) -> None:
    """Skip a test whose machine lacks something; with NVHOOK_TEST_FORCE=1 fail it instead."""
    if condition:
        return
    if os.environ.get("NVHOOK_TEST_FORCE") == "1":
        pytest.fail(f"required by NVHOOK_TEST_FORCE=1: {reason}", pytrace=False)
    pytest.skip(f"{reason} (NVHOOK_TEST_FORCE=1 makes this a failure)")


@pytest.fixture(name="require", scope="session")
def require_fixture() -> Callable[[bool, str], None]:
    """Give ``require`` to tests, which can't import a conftest."""
    return require


# ---- what tests with real containers share ----


@pytest.fixture(scope="session")
def real_host(require: Callable[[bool, str], None]) -> None:
    """What no test here can do without."""
    require(os.geteuid() == 0, "needs root")
    require(Path("/bin/busybox").exists(), "needs busybox-static")
    for tool in ("runc", "crun", "gcc", "unshare", "nsenter", "findmnt"):
        require(shutil.which(tool) is not None, f"needs {tool}")


@pytest.fixture(scope="session")
def workspace(real_host: None) -> Iterator[Path]:
    """A directory that a container's mapped root can walk through; pytest's own is closed to it."""
    with tempfile.TemporaryDirectory(prefix="nvhook-runtime-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="session")
def driver(workspace: Path) -> Iterator[Driver]:
    """Four simulated GPUs. What nvhook remembers of the tests' configurations is removed again."""
    remembered = Path("/run/nvhook")
    before = set(remembered.glob("config-*")) if remembered.exists() else set()
    yield Driver(workspace / "driver")
    for path in set(remembered.glob("config-*")) - before:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory, real_host: None) -> Path:
    """The directory of the compiled test programs."""
    directory = tmp_path_factory.mktemp("programs")
    for name, options in (
        ("probe", ["-static"]),
        ("confined", ["-static"]),
        ("hammer", ["-static"]),
        ("hostile", ["-static", "-Wno-unused-result"]),
        ("cuda_check", ["-ldl"]),
    ):
        source = PROGRAMS / f"{name}.c"
        command = [
            "gcc",
            "-O",
            "-Wall",
            "-Werror",
            "-o",
            str(directory / name),
            str(source),
            *options,
        ]
        subprocess.run(command, check=True)
    return directory


@pytest.fixture(scope="session")
def debian() -> Path:
    """The root directory of a minimal Debian (or Ubuntu); read-only for tests."""
    return packages.debian_root()
