"""The engines' hosts: an installed nvhook, its configuration, images, and nothing left behind."""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines import images
from tests.engines.host import Host, changed, open_host
from tests.runtime.cgroup_view import CGROUP_PREFIX
from tests.runtime.simulated import Driver

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
COUNTER = itertools.count()
OpenHost = Callable[..., Host]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here: it needs root."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.root)


@pytest.fixture(scope="session")
def engines(require: Callable[[bool, str], None]) -> None:
    """What the distribution's lanes run."""
    for tool in ("dockerd", "docker", "containerd", "ctr", "podman", "conmon"):
        require(shutil.which(tool) is not None, f"needs {tool}")


@pytest.fixture(scope="session")
def installed(workspace: Path) -> Path:
    """The prefix of an installation by scripts/install-hook.sh, with its compatible names."""
    prefix = workspace / "installed"
    script = REPOSITORY / "scripts/install-hook.sh"
    options = ["--prefix", prefix, "--hooks-dir", prefix / "hooks.d", "--python", sys.executable]
    command = [str(script), *map(str, options), "--compat"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return prefix


@pytest.fixture(scope="session")
def archive(workspace: Path, debian: Path, compiled: Path, driver: Driver) -> Path:
    """The images."""
    path = workspace / "images.tar"
    images.make_archive(path, debian, compiled, driver)
    return path


@pytest.fixture(scope="module")
def hosts(workspace: Path, driver: Driver, engines: None) -> Iterator[OpenHost]:
    """Make hosts by name, kind of cgroups and nvhook's settings; all end with the module."""

    directories: list[Path] = []

    def make(name: str, cgroups: str, **settings: str) -> Host:
        directory = workspace / f"{name}{next(COUNTER)}"
        directory.mkdir(0o711)
        directories.append(directory)
        host = opened.enter_context(open_host(name, cgroups, directory))
        place = host.path(Path("/etc/nvhook"))
        place.mkdir()
        driver.configuration(place / "config.toml", directory / "nvhook.log", **settings)
        return host

    mounts, traces = _mounts(), _traces()
    with ExitStack() as opened:
        yield make
    for directory in directories:
        shutil.rmtree(directory)  # noqa: TID251 - made above; what was mounted in it is gone
    assert changed(mounts, _mounts(), workspace) == set()
    assert _traces() - traces == set()


# Where engines keep things by default, and what they call them. Others may use these places, too.
PLACES = ("/etc", "/opt", "/run", "/var/lib", "/var/log", "/var/cache", "/var/tmp", "/dev/shm")
NAMES = ("docker", "containerd", "containers", "cni", "cdi", "podman", "libpod", "nvhook.log")


def _mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def _traces() -> set[str]:
    """Return what else an engine could leave: cgroups, sockets, directories."""
    found = {str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{CGROUP_PREFIX}*")}
    patterns = ((Path(place), f"{name}*") for place in PLACES for name in NAMES)
    return found | {str(path) for place, pattern in patterns for path in place.glob(pattern)}
