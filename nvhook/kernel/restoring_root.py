"""The root of a running container: how what was made there is taken away again.

Where the container has a directory read-only, this is done through a detached, writable copy of
it: the same file system, without the container ever seeing a mount it could write to. That is done
on the root's own mount and the container's own tmpfs, never on a volume of the host.
"""

import _stat as stat
import errno
import posix

from nvhook._native import SyscallError, call
from nvhook.kernel import mounts
from nvhook.kernel.replace import replace_file, replace_link
from nvhook.kernel.rootfs import Directory, Rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

DIRECTORY, FILE, LINK, CONTENT = "directory", "file", "link", "content"
SHARED = "it is on a volume with shared propagation: unmounting it would reach the host"
_HANDLE = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC


class OldFile:
    """A file as it was: its bytes, permissions, and (uid, gid)."""

    __slots__ = ("data", "mode", "owner")

    def __init__(self, data: bytes, mode: int, owner: tuple[int, int]) -> None:
        self.data = data
        self.mode = mode
        self.owner = owner


class RestoringRoot(Rootfs):
    """A Rootfs that can be given back as it was; what can't be is said, and never raised."""

    __slots__ = ()

    def _as_owner(self, parent: Directory, make: "Callable[[int], T]") -> "T":
        """Create something as the container's root would, on a read-only mount through a copy."""
        try:
            return super()._as_owner(parent, make)
        except OSError as error:
            if error.errno != errno.EROFS or parent.volume:
                raise
        copy = mounts.writable(parent.fd)
        try:
            writable = Directory(copy, parent.mount, parent.ours, volume=False)
            return super()._as_owner(writable, make)
        finally:
            posix.close(copy)

    def unmount(self, path: str, identity: tuple[int, int]) -> str:
        """Unmount a file or directory (st_dev, st_ino) from its place."""
        place = self._place(path)
        if place is None:
            return ""
        parent, name = place
        found = _identity(parent.fd, name)
        if found != identity:
            return "" if found is None or not self._is_mount(parent, name) else "covered by another"
        if not self._is_mount(parent, name):
            return ""
        return self._unmount(parent, name)

    def unmount_all(self, path: str) -> str:
        """Unmount whatever is mounted on a path itself."""
        place = self._place(path)
        if place is None:
            return ""
        parent, name = place
        if _identity(parent.fd, name) is None:
            return ""
        if not self._is_mount(parent, name):
            return "it is a node of the container's own, which can't be opened any more"
        return self._unmount(parent, name)

    def _unmount(self, parent: Directory, name: str) -> str:
        if self._reaches_host(parent.mount):
            return SHARED
        try:
            call("umount_at", parent.fd, name.encode())
        except SyscallError as error:
            return f"can't be unmounted: {error.strerror}"
        return ""

    def _reaches_host(self, mount: int) -> bool:
        """Tell whether what is unmounted below a mount is unmounted on the host, too."""
        start = f"{mount} ".encode()
        for line in self._mounts.split(b"\n"):
            if line.startswith(start):
                group = line.partition(b" shared:")[2].partition(b" ")[0]
                return any(
                    group and b" %s:%s " % (kind, group) in self._host_mounts
                    for kind in (b"shared", b"master")
                )
        return False

    def remove(self, path: str, kind: str) -> str:
        """Remove an empty file or an empty directory; what is in use or full stays."""
        place = self._place(path)
        if place is None:
            return ""
        parent, name = place
        try:
            status = posix.stat(name, dir_fd=parent.fd, follow_symlinks=False)
            if parent.volume or self._is_mount(parent, name):
                return "something is mounted there"
            if kind == DIRECTORY:
                self._as_owner(parent, lambda where: posix.rmdir(name, dir_fd=where))
            elif stat.S_ISREG(status.st_mode) and status.st_size == 0:
                self._as_owner(parent, lambda where: posix.unlink(name, dir_fd=where))
            else:
                return "the container has put something else there"
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return ""
            return f"can't be removed: {error.strerror}"
        return ""

    def give_back_link(self, path: str, new: str, old: str | None) -> str:
        """Let a link that points to new point to old again, or remove it."""
        place = self._place(path)
        if place is None:
            return ""
        parent, name = place
        try:
            if posix.readlink(name, dir_fd=parent.fd) != new:
                return ""  # done before, or the container's own work
            if parent.volume:
                return "it is on a volume of the host"
            if old is None:
                self._as_owner(parent, lambda where: posix.unlink(name, dir_fd=where))
            else:
                target = old
                self._as_owner(parent, lambda where: replace_link(where, name, target))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):
                return ""
            return f"can't be restored: {error.strerror}"
        return ""

    def give_back_file(self, path: str, old: OldFile | None) -> str:
        """Let a file be what it was, or not be."""
        place = self._place(path)
        if place is None:
            return ""
        parent, name = place
        if parent.volume:
            return "it is on a volume of the host"
        try:
            if old is None:
                self._as_owner(parent, lambda where: posix.unlink(name, dir_fd=where))
                return ""
            before = old
            owner = None if before.owner == self.owner else before.owner
            self._as_owner(
                parent, lambda where: replace_file(where, name, before.data, before.mode, owner)
            )
        except OSError as error:
            if error.errno == errno.ENOENT and old is None:
                return ""
            return f"can't be restored: {error.strerror}"
        return ""

    def remove_temporary(self, path: str, writer: int) -> None:
        """Remove what a killed process left beside a file it was replacing."""
        place = self._place(path)
        if place is None or place[0].volume:
            return
        parent, name = place[0], f".nvhook-{writer}"
        try:
            posix.stat(name, dir_fd=parent.fd, follow_symlinks=False)
            self._as_owner(parent, lambda where: posix.unlink(name, dir_fd=where))
        except OSError:
            pass  # there is none

    def forget(self) -> None:
        """Close the directories that are kept open: some may have been removed."""
        for directory in self._directories.values():
            posix.close(directory.fd)
        self._directories.clear()
        self._relinked.clear()
        self.created.clear()

    def _place(self, path: str) -> tuple[Directory, str] | None:
        """Return the directory of a path, as it is, and its name; None if that has gone."""
        head, _, name = path.rpartition("/")
        known = self._directories.get(head)
        if known is None:
            fd = self.existing(head or "/")
            if fd is None:
                return None
            if not stat.S_ISDIR(posix.fstat(fd).st_mode):
                posix.close(fd)
                return None
            known = self._directories[head] = self._classify(fd)
        return known, name

    @staticmethod
    def _exists(parent: Directory, name: str) -> bool:
        return _identity(parent.fd, name) is not None

    @staticmethod
    def _is_mount(parent: Directory, name: str) -> bool:
        try:
            fd = posix.open(name, _HANDLE, dir_fd=parent.fd)
        except OSError:
            return False
        try:
            return call("mount_id", fd) != parent.mount
        finally:
            posix.close(fd)


def _identity(parent: int, name: str) -> tuple[int, int] | None:
    """Return (st_dev, st_ino) of a name, links not followed; None if there is nothing."""
    try:
        status = posix.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino
