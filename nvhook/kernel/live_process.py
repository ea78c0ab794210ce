"""Running processes of a container: pinned, so that a recycled pid is never taken for one."""

from __future__ import annotations

import fcntl
import os
import select
from array import array

from nvhook._native import SyscallError, call, lib
from nvhook.errors import ContainerError
from nvhook.kernel.process import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MAX_PID = (1 << 31) - 1  # pid_t
# Source: ioctl_ns(2).
_NS_GET_PARENT, _NS_GET_OWNER_UID = 0xB702, 0xB704


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
    numbers = _numbers(process.read("status"))
    if len(numbers) > 1:  # a pid namespace of its own, where the first process has the number 1
        if numbers[-1] == b"1":
            return process
        for pid in sharing(process, ("pid",)):
            if _numbers(_status(pid))[-1:] == [b"1"]:
                return PinnedProcess(pid)
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


def _numbers(status: bytes) -> list[bytes]:
    """Return a process's numbers, in the caller's pid namespace and in those below it."""
    for line in status.split(b"\n"):
        if line.startswith(b"NSpid:"):
            return line.split()[1:]
    return []


def _status(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def open_root(process: Process) -> int:
    """Open the root directory of a process's mount namespace, whatever its own root is.

    The kernel puts who enters a mount namespace at its root, as the runtime has made it; a process
    may have called chroot() since.

    Raises: HostError.
    """
    with process.mount_namespace():
        return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def identity_of(init: PinnedProcess, root: int, cgroup: str) -> str:
    """Return what tells a running container from another, and from what it has become since.

    Its first process with its start time, its mount and user namespaces, its root's mount, device
    and inode, its cgroup.

    Raises: ContainerError.
    """
    status = os.fstat(root)
    inodes = [os.stat(f"ns/{name}", dir_fd=init.proc_fd).st_ino for name in ("mnt", "user")]
    mount = call(lib.nvh_mount_id, root)
    parts = (init.pid, start_time(init), *inodes, mount, status.st_dev, status.st_ino, cgroup)
    return " ".join(map(str, parts))


def why_strange(process: PinnedProcess, init: PinnedProcess, root: int) -> str:
    """Return why a process is not a container as a runtime has made it; nothing if it is.

    root: that of its mount namespace.

    Raises: ContainerError; HostError.
    """
    for each in dict.fromkeys((process, init)):
        own = each.open_directory("/")
        same = os.path.sameopenfile(own, root)
        same = same and call(lib.nvh_mount_id, own) == call(lib.nvh_mount_id, root)
        os.close(own)
        if not same:
            return f"process {each.pid} has changed its root directory since it was started"
    for name in ("mnt", "user"):
        first, theirs = [os.stat(f"ns/{name}", dir_fd=each.proc_fd) for each in (init, process)]
        if first.st_ino != theirs.st_ino:
            return f"process {process.pid} is in a namespace that the container has made itself"
    if init.shares_namespace("user"):
        return ""
    users = init.open("ns/user", os.O_RDONLY)
    try:
        owner = array("I", [0])
        fcntl.ioctl(users, _NS_GET_OWNER_UID, owner)
        parent = fcntl.ioctl(users, _NS_GET_PARENT)
    except OSError as error:
        return f"whose user namespace process {init.pid} is in can't be told: {error.strerror}"
    finally:
        os.close(users)
    outer = os.fstat(parent).st_ino
    os.close(parent)
    if owner[0] != os.geteuid() or outer != os.stat("/proc/self/ns/user").st_ino:
        return f"process {init.pid} is in a user namespace that no runtime of this host has made"
    return ""


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
