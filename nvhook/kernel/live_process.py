"""Running processes of a container: pinned, so that a recycled pid is never taken for one."""

from __future__ import annotations

import os
import select

from nvhook._native import SyscallError, call, lib
from nvhook.errors import ContainerError
from nvhook.kernel.process import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MAX_PID = (1 << 31) - 1  # pid_t


class PinnedProcess(Process):
    """A process with a pidfd: ``check`` tells whether its number still means it."""

    __slots__ = ("pidfd",)

    def __init__(self, pid: int) -> None:
        """Open a running process.

        Raises: ContainerError if there is none of that number.
        """
        if not 0 < pid <= MAX_PID:
            raise ContainerError(f"{pid} is not the number of a process", "give a pid of the host")
        try:
            self.pidfd = call(lib.nvh_pidfd_open, pid)
        except SyscallError as error:
            raise ContainerError(
                f"process {pid} can't be opened: {error.strerror}",
                "is the container running? --pid takes a process of the host's numbering",
            ) from error
        super().__init__(pid)
        self.check()  # what /proc showed is what the pidfd holds, if that lives on now

    def check(self) -> None:
        """Raise ContainerError if the process has ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        if poll.poll(0):
            raise ContainerError(f"process {self.pid} has ended", "nothing was changed for it")

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.pidfd)
        os.close(self.proc_fd)


def first_process(process: PinnedProcess) -> PinnedProcess:
    """Return the first process of a container: its init, or else the oldest in its mounts.

    Raises: ContainerError if all have ended.
    """
    for line in process.read("status").split(b"\n"):
        if line.startswith(b"NSpid:"):
            numbers = line.split()[1:]
            if len(numbers) == 2 and numbers[1] == b"1":
                return process
    found = [
        (started, pid)
        for pid in sharing(process, ("mnt",))
        if (started := start_time_of(pid)) is not None
    ]
    for _, pid in sorted(found):
        if pid == process.pid:
            return process
        try:
            return PinnedProcess(pid)
        except ContainerError:
            continue
    raise ContainerError(f"the container of process {process.pid} has ended")


def start_time(process: Process) -> int:
    """Return when a process started, in clock ticks since the boot."""
    return _start(process.read("stat"))


def start_time_of(pid: int) -> int | None:
    """Return the same by number; None if there is no such process, or a zombie, which has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read(4096)
    except OSError:
        return None
    state = stat.rpartition(b")")[2].split()[0]
    return None if state in (b"Z", b"X") else _start(stat)


def _start(stat: bytes) -> int:
    return int(stat.rpartition(b")")[2].split()[19])


def processes() -> Iterator[int]:
    """Yield the number of every process."""
    for name in os.listdir("/proc"):
        if name.isascii() and name.isdigit():
            yield int(name)


def namespace(pid: int | str, name: str) -> str:
    """Return a namespace's name, ``mnt:[4026531841]``; empty if the process has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{name}")
    except OSError:
        return ""


def sharing(process: Process, names: Iterable[str]) -> list[int]:
    """Return the processes that share one of these namespaces with a process, but not with us."""
    wanted = {}
    for name in names:
        try:
            theirs = os.readlink(f"ns/{name}", dir_fd=process.proc_fd)
        except OSError:
            continue
        if theirs != namespace("self", name):
            wanted[name] = theirs
    return [
        pid
        for pid in processes()
        if any(namespace(pid, name) == theirs for name, theirs in wanted.items())
    ]


def open_devices(pid: int, devices: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return which of some character devices (major, minor) a process holds open."""
    wanted = {os.makedev(*numbers) for numbers in devices}
    held = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    status = os.stat(entry.path)
                except OSError:
                    continue
                if status.st_rdev in wanted and (status.st_mode & 0o170000) == 0o020000:
                    held.add((os.major(status.st_rdev), os.minor(status.st_rdev)))
    except OSError:
        return set()
    return held
