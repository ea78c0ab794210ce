"""What every test may use."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines import images
from tests.engines.host import Host, changed, open_host
from tests.runtime import packages
from tests.runtime.cgroup_view import CGROUP_PREFIX
from tests.runtime.simulated import Driver

REPOSITORY = Path(__file__).parents[1]
PROGRAMS = REPOSITORY / "tests/runtime"
COUNTER = itertools.count()
OpenHost = Callable[..., Host]


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
def mig_driver(workspace: Path, driver: Driver) -> Driver:
    """The same four GPUs; the first and the third are partitioned into three MIG devices each."""
    return Driver(workspace / "mig", ("1g.10gb", "2g.20gb", "1g.10gb"), (0, 2))


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


# ---- hosts with an engine ----


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
def hosts(workspace: Path, driver: Driver) -> Iterator[OpenHost]:
    """Make hosts by name, kind of cgroups and nvhook's settings; all end with the module.

    ``simulated`` is another driver than the usual one.
    """

    directories: list[Path] = []

    def make(name: str, cgroups: str, simulated: Driver = driver, **settings: str) -> Host:
        directory = workspace / f"{name}{next(COUNTER)}"
        directory.mkdir(0o711)
        directories.append(directory)
        host = opened.enter_context(open_host(name, cgroups, directory))
        place = host.path(Path("/etc/nvhook"))
        place.mkdir()
        simulated.configuration(place / "config.toml", directory / "nvhook.log", **settings)
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
NAMES = ("docker", "containerd", "containers", "cni", "cdi", "podman", "libpod", "kubelet", "pods")
NAMES += ("nvhook.log",)


def _mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def _traces() -> set[str]:
    """Return what else an engine could leave: cgroups, sockets, directories."""
    found = {str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{CGROUP_PREFIX}*")}
    patterns = ((Path(place), f"{name}*") for place in PLACES for name in NAMES)
    return found | {str(path) for place, pattern in patterns for path in place.glob(pattern)}
