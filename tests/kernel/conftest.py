"""Real containers and cgroups for the tests of the device cgroup.

A ``View`` is how a process sees /sys/fs/cgroup: the machine's own mounts, or cgroup2 alone in a
private mount namespace. Runtimes and nvhook are both started inside of it.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nvhook

SITE = Path(nvhook.__file__).resolve().parents[1]  # the installed package, not the checkout
COUNTER = itertools.count()
ALLOW = """
import json, sys
sys.path.insert(0, sys.argv[1])
from nvhook.errors import NvhookError
from nvhook.kernel import cgroup
try:
    with cgroup.find(int(sys.argv[2])) as found:
        print(json.dumps(found.allow([tuple(rule) for rule in json.loads(sys.argv[3])])))
except NvhookError as error:
    sys.exit(str(error))
"""
PURE_V2 = "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
# crun refuses v1 where a cgroup2 with controllers is mounted beside it.
WITHOUT_V2 = "umount $each && mount -t tmpfs tmpfs $each || exit 1"  # crun makes directories there
PURE_V1 = f"for each in $(findmnt -nl -t cgroup2 -o TARGET); do {WITHOUT_V2}; done"
Rules = list[tuple[str, int, int, str]]


class View:
    """A mount namespace to run commands in; ``pid`` 0 is our own."""

    def __init__(self, pid: int = 0) -> None:
        self.prefix = ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--wd=."] if pid else []

    executable = sys.executable

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [*self.prefix, *map(str, arguments)]
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-I", "-c", code, *arguments)

    def allow(self, pid: int, rules: Rules) -> list[str]:
        result = self.python(ALLOW, str(SITE), str(pid), json.dumps(rules))
        assert result.returncode == 0, result.stderr
        answer: list[str] = json.loads(result.stdout)
        return answer


class Container:
    """A running busybox container without access to any device but those named."""

    def __init__(
        self, view: View, runtime: str, directory: Path, cgroup: str, devices: object
    ) -> None:
        self.view = view
        self.name = f"nvhook-test-{os.getpid()}-{next(COUNTER)}"
        self.command = [runtime, "--root", str(directory / "state")]
        bundle = directory / self.name
        for name in ("bin", "dev", "proc"):
            (bundle / "rootfs" / name).mkdir(parents=True)
        shutil.copy("/bin/busybox", bundle / "rootfs/bin/busybox")
        (bundle / "config.json").write_text(json.dumps(_config(cgroup, devices)))
        log = bundle / "stderr"
        create = [*view.prefix, *self.command, "create", "-b", str(bundle), self.name]
        with log.open("wb") as file:  # the container keeps it open: not a pipe
            done = subprocess.run(
                create, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False, timeout=60
            )
        assert done.returncode == 0, log.read_text()
        self._runtime("start", self.name)
        self.pid = int(json.loads(self._runtime("state", self.name))["pid"])

    def _runtime(self, *arguments: str) -> str:
        result = self.view.run(*self.command, *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def open(self, major: int, minor: int, kind: str = "c", mode: str = "r") -> str:
        """Make a node inside and open it: the reason why that fails."""
        node = f"/node-{kind}-{major}-{minor}"
        redirect = {"r": "<", "w": ">", "rw": "<>"}[mode]
        script = (
            f"[ -e {node} ] || busybox mknod {node} {kind} {major} {minor}; exec 3{redirect}{node}"
        )
        result = self.view.run(*self.command, "exec", self.name, "/bin/busybox", "sh", "-c", script)
        if result.returncode == 0:
            return "opened"
        return result.stderr.strip().rpartition(": ")[2]

    def remove(self) -> None:
        self.view.run(*self.command, "delete", "--force", self.name)


def _config(cgroup: str, devices: object) -> dict[str, object]:
    capabilities = ["CAP_MKNOD", "CAP_SYS_ADMIN"]
    sets = ("bounding", "effective", "permitted")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/busybox", "sleep", "1000"],
            "env": ["PATH=/bin"],
            "cwd": "/",
            "capabilities": dict.fromkeys(sets, capabilities),
        },
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {
            "cgroupsPath": cgroup,
            "resources": {"devices": devices},
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
        },
    }


@pytest.fixture(scope="session")
def root_host(require: Callable[[bool, str], None]) -> None:
    """Everything here needs root, and a static busybox for the containers."""
    require(os.geteuid() == 0, "needs root")
    require(Path("/bin/busybox").exists(), "needs /bin/busybox (static)")


@pytest.fixture(scope="session")
def own_view(root_host: None) -> View:
    """The machine's own cgroup mounts."""
    return View()


@pytest.fixture(scope="session")
def pure_v2_view(root_host: None) -> Iterator[View]:
    """A mount namespace with nothing but cgroup2 at /sys/fs/cgroup."""
    yield from _private_view(PURE_V2)


@pytest.fixture
def odd_place_view(root_host: None, tmp_path: Path) -> Iterator[View]:
    """cgroup2 alone, where the mount table writes its place with escapes."""
    place = tmp_path / "a blank, a \\ and a #"
    place.mkdir()
    yield from _private_view(f"umount -R /sys/fs/cgroup && mount -t cgroup2 x '{place}'")


@pytest.fixture(scope="session")
def pure_v1_view(root_host: None) -> Iterator[View]:
    """A mount namespace without cgroup2."""
    yield from _private_view(PURE_V1)


def _private_view(prepare: str) -> Iterator[View]:
    script = f"{prepare} && echo ready && exec sleep 1000"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as keeper:
        try:
            assert keeper.stdout is not None
            assert keeper.stdout.readline() == "ready\n"
            yield View(keeper.pid)
        finally:
            keeper.kill()


@pytest.fixture
def container(
    tmp_path: Path, root_host: None, require: Callable[[bool, str], None]
) -> Iterator[Callable[..., Container]]:
    """Start containers; they are removed afterwards."""
    started: list[Container] = []

    def start(view: View, runtime: str, cgroup: str = "", devices: object = None) -> Container:
        require(shutil.which(runtime) is not None, f"needs {runtime}")
        name = cgroup or f"/nvhook-test-{os.getpid()}-{next(COUNTER)}"
        rules = devices if devices is not None else [{"allow": False, "access": "rwm"}]
        started.append(Container(view, runtime, tmp_path, name, rules))
        return started[-1]

    yield start
    for each in started:
        each.remove()


@pytest.fixture
def process_in() -> Iterator[Callable[[Path], int]]:
    """Start a sleeping process in a cgroup directory; it is ended and the directory removed."""
    started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(directory: Path) -> int:
        directory.mkdir(exist_ok=True)
        process = subprocess.Popen(["sleep", "1000"])
        started.append((process, directory))
        (directory / "cgroup.procs").write_text(str(process.pid))
        return process.pid

    yield start
    for process, directory in reversed(started):
        process.send_signal(signal.SIGKILL)
        process.wait()
        directory.rmdir()
