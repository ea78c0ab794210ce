"""Inject and eject by the Python API, many times: started by tests inside of a view.

    python live_cycles.py kill-inject|kill-eject|cycle|contested CONFIG PID COUNT

kill-*: ends the process at every boundary of the journal, recovers by both commands in turn, and
compares the container with its two clean states. cycle: injects and ejects GPU 2, COUNT times.
contested: tries to inject GPU 1 COUNT times, ejects it, and prints how often it was refused.
"""

import os
import signal
import stat
import sys

from nvhook import config
from nvhook.core.request import Request
from nvhook.core.selection import select
from nvhook.create.pipeline import inventory
from nvhook.errors import NvhookError
from nvhook.kernel import cgroup, programs
from nvhook.live import eject, inject
from nvhook.live.container import LiveContainer
from nvhook.log import Log


class Cycles:
    """One container."""

    def __init__(self, path: str, pid: int) -> None:
        self.settings = config.load(path)
        self.pid = pid
        self.log = Log(self.settings.log_path, "error")

    def inject(self, gpus: str = "1") -> None:
        """Inject one GPU."""
        request = Request((gpus,), ("compute", "utility"), "--gpus")
        with LiveContainer(self.pid, self.settings.state_directory) as container:
            inject.inject(container, request, self.settings, self.log)

    def eject(self, gpus: str = "") -> None:
        """Eject one GPU, or all."""
        chosen = select((gpus,), inventory(self.settings)) if gpus else None
        with LiveContainer(self.pid, self.settings.state_directory) as container:
            eject.eject(container, chosen, self.settings)

    def state(self) -> dict[str, object]:
        """Return mounts without their ids, device rules and programs, files, journals."""
        with open(f"/proc/{self.pid}/mountinfo") as file:
            mounts = [line.split(" ", 2)[2] for line in file]
        journals = os.path.join(self.settings.state_directory, "containers")
        names = os.listdir(journals) if os.path.isdir(journals) else []
        return {
            "mounts": mounts,
            "access": self._access(),
            "files": self._files(),
            "unfinished": [name for name in names if name.endswith(".new")],
        }

    def _access(self) -> list[object]:
        found: list[object] = []
        with cgroup.find(self.pid) as directories:
            found += [cgroup.read_list(fd) for fd in directories.v1 or ()]
            for fd in (directories.v2 or ())[:1]:
                for number in programs.attached(fd)[0]:
                    program = programs.open_program(number)
                    found.append(programs.instructions(program))
                    os.close(program)
        return found

    def _files(self) -> dict[str, object]:
        root = f"/proc/{self.pid}/root"
        found: dict[str, object] = {}
        for directory, names, files in os.walk(root):
            if directory == root:
                names[:] = [name for name in names if name not in ("proc", "sys")]
            for name in names + files:
                path = os.path.join(directory, name)
                status = os.lstat(path)
                content: object = None
                if stat.S_ISLNK(status.st_mode):
                    content = os.readlink(path)
                elif stat.S_ISREG(status.st_mode) and status.st_size < 1 << 17:
                    with open(path, "rb") as file:
                        content = file.read()
                found[path] = (status.st_mode, status.st_uid, status.st_gid, content)
        return found

    def killed(self, command: str, boundary: int) -> bool:
        """Run a command in a child that ends at a boundary; False if it came to its end."""
        child = os.fork()
        if child == 0:
            os.environ["NVHOOK_FAULT"] = str(boundary)
            try:
                getattr(self, command)()
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return True
        assert os.WEXITSTATUS(status) == 0, f"{command} failed at boundary {boundary}"
        return False

    def contested(self, count: int) -> int:
        """Return how many of some injects the container's own doings made nvhook refuse."""
        refused = 0
        for _ in range(count):
            try:
                self.inject()
            except NvhookError:
                refused += 1
            self.eject()
        return refused

    def kill_everywhere(self, command: str) -> int:
        """Return at how many boundaries a command was killed and recovered from."""
        without = self.state()
        self.inject()
        having = self.state()
        self.eject()
        assert self.state() == without
        for boundary in range(10_000):
            if command == "eject":
                self.inject()
            if not self.killed(command, boundary):
                self.eject()
                return boundary
            if boundary % 2:
                self.inject()
                compare(self.state(), having, boundary)
            self.eject()
            compare(self.state(), without, boundary)
        raise AssertionError("it never ends")


def compare(found: dict[str, object], wanted: dict[str, object], boundary: int) -> None:
    """Fail with what differs."""
    for key, value in wanted.items():
        if found[key] != value:
            left, right = found[key], value
            if isinstance(left, dict) and isinstance(right, dict):
                left, right = left.items() - right.items(), right.items() - left.items()
            sys.exit(f"boundary {boundary}: {key}: {left} is not {right}")


def main() -> None:
    """Run what the command line says."""
    what, path, pid, count = sys.argv[1:]
    cycles = Cycles(path, int(pid))
    if what == "cycle":
        for _ in range(int(count)):
            cycles.inject("2")
            cycles.eject("2")
        print(count)
    elif what == "contested":
        print(cycles.contested(int(count)))
    else:
        print(cycles.kill_everywhere(what.removeprefix("kill-")))


if __name__ == "__main__":
    main()
