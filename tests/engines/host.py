"""A host for one engine: mounts, processes, network and shared memory of its own.

What the engine writes to /etc, /opt, /run and /dev/shm, its default paths, the machine never sees.
With the namespaces go its daemons, mounts and sockets, even if the tests are killed.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.runtime.cgroup_view import CGROUP_PREFIX, PREPARE, View, keep

NAMESPACES = ("pid", "net", "ipc", "uts")
Completed = subprocess.CompletedProcess[str]
SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
FURNISH = """\
for each in etc opt; do
    mkdir -p {directory}/$each-upper {directory}/$each-work &&
    layers=lowerdir=/$each,upperdir={directory}/$each-upper,workdir={directory}/$each-work &&
    mount -t overlay -o $layers overlay /$each || exit 1
done &&
mount -t tmpfs -o mode=755 tmpfs /run &&
mount -t tmpfs -o mode=1777 tmpfs /dev/shm &&
mount -t proc proc /proc"""


class Host(View):
    """Such a host. ``directory`` holds what its engine stores."""

    def __init__(self, name: str, pid: int, directory: Path) -> None:
        super().__init__(name, pid)
        self.directory = directory
        kinds = {kind: kind for kind in NAMESPACES} | {"pid": "pid_for_children"}
        self.prefix += [f"--{kind}=/proc/{pid}/ns/{link}" for kind, link in kinds.items()]
        # Directories for the beginning of PATH.
        self.programs: list[Path] = []
        # The cgroup of its containers; one of these tests', so that a leak is seen.
        self.cgroup = f"/{CGROUP_PREFIX}-{directory.name}"
        self.daemons: list[subprocess.Popen[bytes]] = []
        self._mounts = self.mounts()

    def _in_environment(self, command: tuple[str | Path, ...]) -> list[str]:
        path = ":".join([*map(str, self.programs), SEARCH_PATH])
        return ["env", "-i", f"PATH={path}", "HOME=/root", "LANG=C.UTF-8", *map(str, command)]

    def call(self, *command: str | Path, check: bool = True) -> Completed:
        """Run a command with this host's environment."""
        done = self.run(*self._in_environment(command), check=False, timeout=120)
        if check:
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.logs()}"
        return done

    def start(self, *command: str | Path, socket: str = "/") -> subprocess.Popen[bytes]:
        """Start a daemon and wait until its socket is there; it ends with the host."""
        with (self.directory / f"{Path(command[0]).name}.log").open("a") as log:
            daemon = subprocess.Popen(
                [*self.prefix, *self._in_environment(command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.daemons.append(daemon)
        self.wait(lambda: daemon.poll() is not None or self.path(Path(socket)).exists())
        assert daemon.poll() is None, f"{command[0]} ended at once: {self.logs()}"
        return daemon

    def signal(self, daemon: subprocess.Popen[bytes], number: int) -> None:
        """Send a signal to a daemon: what was started is nsenter, which waits for it."""
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), number)

    def wait(
        self, condition: Callable[[], bool], state: Callable[[], str] = str, seconds: float = 15
    ) -> None:
        """Wait until something is so; ``state`` tells how it is instead."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"still: {state()}\n{self.logs()}"
            time.sleep(0.02)

    def remember(self) -> None:
        """Take the mounts as they are now, with an engine and without a container, as the rule."""
        self._mounts = self.mounts()

    def settle(self, nudge: Callable[[], object] = bool) -> None:
        """Wait until the mounts are that again: engines clean up after they answered.

        ``nudge`` is called before each look, for an engine that only cleans up when it is called.
        """

        def difference() -> set[str]:
            nudge()
            return changed(set(self._mounts), set(self.mounts()), self.directory)

        self.wait(lambda: not difference(), lambda: "\n".join(sorted(difference())))

    def logs(self) -> str:
        """Return the end of what daemons and nvhook logged."""
        ends = (path.read_text(errors="replace")[-1500:] for path in self.directory.glob("*.log"))
        return "\n".join(ends)


def changed(before: set[str], after: set[str], directory: Path) -> set[str]:
    """Return the mounts that came or went, without those of others on this machine."""
    places = (f"{tempfile.gettempdir()}/", "/dev/shm/")

    def is_others(line: str) -> bool:
        point = line.split(" ")[4]
        return point.startswith(places) and not point.startswith(str(directory))

    return {line for line in before ^ after if not is_others(line)}


@contextmanager
def open_host(name: str, cgroups: str, directory: Path) -> Iterator[Host]:
    """Yield a host with a kind of cgroups (a view's name); end it, and check that it left none."""
    prepare = f"{{ {PREPARE[cgroups]}; }} && {FURNISH.format(directory=directory)}"
    options = [*(f"--{kind}" for kind in NAMESPACES), "--fork", "--kill-child"]
    opened = contextmanager(keep)(
        lambda name, pid: Host(name, pid, directory), name, options, prepare
    )
    with opened as host:
        yield host
        for path in host.cgroups():
            _remove_cgroup(host, Path(path))
    for daemon in host.daemons:
        daemon.wait(timeout=30)


def _remove_cgroup(host: Host, parent: Path) -> None:
    """Remove what engines leave: the parent of their containers' cgroups, podman's for conmon."""

    def busy() -> bool:
        below = [path for path in parent.iterdir() if path.is_dir()]
        processes = (path / "cgroup.procs" for path in (parent, *below))
        others = {path.name for path in below} - {"conmon"}
        return bool(others) or any(path.read_text() for path in processes)

    host.wait(lambda: not busy())
    for path in (parent / "conmon", parent):
        if path.exists():
            path.rmdir()
