"""A container's process, held by its /proc directory so that a recycled pid is never touched."""

from __future__ import annotations

import os

from nvhook._native import SyscallError, call, lib
from nvhook.errors import ContainerError, HostError
from nvhook.kernel.descriptors import content

CLONE_NEWNS = 0x00020000
RESOLVE_IN_ROOT = 0x10


class Process:
    """One process; reads go through ``proc_fd``, which fails with ESRCH once it has ended."""

    __slots__ = ("pid", "proc_fd")

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        """Open /proc/PID.

        Raises: ContainerError if there is no such process.
        """
        self.pid = pid
        try:
            self.proc_fd = os.open(f"{proc}/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._gone(error) from error

    def _gone(self, error: OSError) -> ContainerError:
        hint = "it has ended, or the state names the wrong pid"
        if isinstance(error, PermissionError):
            hint = "nvhook needs root, and a process that root may look into"
        return ContainerError(
            f"the container's process {self.pid} can't be opened: {error.strerror}", hint
        )

    def open(self, name: str, flags: int) -> int:
        """Open a file below /proc/PID and return its descriptor."""
        try:
            return os.open(name, flags | os.O_CLOEXEC, dir_fd=self.proc_fd)
        except OSError as error:
            raise self._gone(error) from error

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        """Return a /proc/PID file's content (at most limit bytes)."""
        fd = self.open(name, os.O_RDONLY)
        try:
            return content(fd, limit)
        except OSError as error:
            raise self._gone(error) from error
        finally:
            os.close(fd)

    def shares_namespace(self, name: str) -> bool:
        """Tell whether the process is in the caller's own namespace (``mnt``, ``user``)."""
        try:
            theirs = os.readlink(f"ns/{name}", dir_fd=self.proc_fd)
        except OSError as error:
            raise self._gone(error) from error
        return theirs == os.readlink(f"/proc/self/ns/{name}")  # "mnt:[4026531841]"

    def root_ids(self) -> tuple[int, int]:
        """Return the caller's uid and gid for the process's user namespace's 0:0."""
        if self.shares_namespace("user"):
            return os.geteuid(), os.getegid()
        return self._mapped_root("uid_map"), self._mapped_root("gid_map")

    def _mapped_root(self, name: str) -> int:
        for line in self.read(name).decode("ascii", "replace").splitlines():
            inside, outside, _count = (int(field) for field in line.split())
            if inside == 0:
                return outside
        raise ContainerError(
            f"the container's user namespace maps no root ({name} of process {self.pid})",
            "map id 0 in the container's uidMappings and gidMappings",
        )

    def open_directory(self, path: str) -> int:
        """Open an absolute path as the process's mount namespace has it, from its root.

        Before pivot_root that root is the host's, so this reaches a rootfs path of config.json
        with the mounts the container has there.
        """
        root = self.open("root", os.O_PATH | os.O_DIRECTORY)
        flags = os.O_PATH | os.O_DIRECTORY
        try:
            return call(lib.nvh_openat2, root, path.encode(), flags, 0, RESOLVE_IN_ROOT)
        except SyscallError as error:
            raise ContainerError(
                f"the root {path} can't be opened in the container's mount namespace: "
                f"{error.strerror}",
                "root.path in config.json and the state's pid must belong together",
            ) from error
        finally:
            os.close(root)

    def mount_namespace(self) -> MountNamespace:
        """Return the process's mount namespace, to be entered with ``with``."""
        return MountNamespace(self.open("ns/mnt", os.O_RDONLY))


class MountNamespace:
    """Another mount namespace, entered and left again by the calling thread.

    Inside, nothing may be imported and no traceback printed: both would read the container's files.
    """

    __slots__ = ("_home", "_there")

    def __init__(self, fd: int) -> None:
        self._there = fd
        self._home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> None:
        try:
            call(lib.nvh_setns, self._there, CLONE_NEWNS)
        except SyscallError as error:
            raise HostError(
                f"the container's mount namespace can't be entered: {error.strerror}",
                "the hook needs CAP_SYS_ADMIN and CAP_SYS_CHROOT: rootless engines can't run it",
            ) from error

    def __exit__(self, *_: object) -> None:
        call(lib.nvh_setns, self._home, CLONE_NEWNS)
        os.close(self._home)
        os.close(self._there)
