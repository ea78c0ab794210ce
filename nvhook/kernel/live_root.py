"""The root of a running container: what is made there is announced first, and can be taken away.

Where the container has a directory read-only, things are made through a detached, writable copy of
it: the same file system, without the container ever seeing a mount it could write to. That is done
on the root's own mount and the container's own tmpfs, never on a volume of the host.
"""

import _stat as stat
import errno
import posix
from hashlib import sha256 as _sha256

from nvhook._native import SyscallError, call
from nvhook.errors import ContainerError
from nvhook.kernel import mounts
from nvhook.kernel.refusals import NoPlaceError, on_a_volume
from nvhook.kernel.replace import replace_file, replace_link
from nvhook.kernel.rootfs import Directory, Rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol, TypeVar

    T = TypeVar("T")

    class Announce(Protocol):
        """What is told of each change before it is made: kind, container path, how to undo it."""

        def __call__(
            self, kind: str, path: str, new: str = "", old: "OldFile | str | None" = None
        ) -> None: ...


DIRECTORY, FILE, LINK, CONTENT = "directory", "file", "link", "content"
MAX_OLD_BYTES = 16 << 20  # of a file that is replaced, and kept to be given back
_HANDLE = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC


class OldFile:
    """A file as it was: its bytes, permissions, and (uid, gid)."""

    __slots__ = ("data", "mode", "owner")

    def __init__(self, data: bytes, mode: int, owner: tuple[int, int]) -> None:
        self.data = data
        self.mode = mode
        self.owner = owner


class LiveRoot(Rootfs):
    """A Rootfs whose changes are announced; ``masks`` are nvhook's mounts that take files along."""

    __slots__ = ("_announce", "masks")

    def __init__(
        self,
        fd: int,
        owner: tuple[int, int],
        mounts_seen: bytes,
        host_mounts: bytes,
        announce: "Announce",
    ) -> None:
        super().__init__(fd, owner, mounts_seen, host_mounts)
        self._announce = announce
        self.masks: set[int] = set()

    # ---- making, announced ----

    def mount_target(self, path: str, accept: "Callable[[int], bool]", directory: bool) -> int:
        """Return what Rootfs.mount_target does; what it makes is announced.

        Raises: ContainerError; NoPlaceError.
        """
        parent, name = self._parent(path)
        if not parent.volume and not self._exists(parent, name):
            self._announce(DIRECTORY if directory else FILE, path)
            try:
                if directory:
                    self._as_owner(parent, lambda where: posix.mkdir(name, 0o755, dir_fd=where))
                else:
                    self._as_owner(parent, lambda where: _make_file(where, name))
            except FileExistsError:
                pass  # the container was faster: what there is decides
            except OSError as error:
                if error.errno == errno.EROFS:
                    raise _sealed(path) from error
                raise ContainerError(
                    f"can't create {path} in the container: {error.strerror}"
                ) from error
        return super().mount_target(path, accept, directory)

    def _make_directory(self, path: str) -> int:
        self._own_parent(path)
        self._announce(DIRECTORY, path)
        return super()._make_directory(path)

    def symlink(self, path: str, target: str) -> bool:
        """Do what Rootfs.symlink does, announced.

        Raises: ContainerError; NoPlaceError.
        """
        parent, name = self._parent(path)
        try:
            old = self._link_target(parent.fd, path, name)
        except OSError as error:
            raise ContainerError(f"can't link {path}: {error.strerror}") from error
        if old == target:
            return False
        if parent.volume:
            raise on_a_volume(path)
        self._announce(LINK, path, target, old)
        return super().symlink(path, target)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Do what Rootfs.write does, announced unless it stands on a mask; a mode is kept.

        Raises: ContainerError; NoPlaceError.
        """
        parent, _ = self._own_parent(path)
        if parent.mount not in self.masks:
            old = self._old_file(path, MAX_OLD_BYTES)
            mode = mode if old is None else old.mode
            self._announce(CONTENT, path, digest(data), old)
        super().write(path, data, mode)

    def announce_content(self, path: str, limit: int) -> None:
        """Announce that something else will replace a file: it can be given back, not compared."""
        self._announce(CONTENT, path, "", self._old_file(path, limit))

    def adopt_mask(self, mount: int) -> None:
        """Count nvhook's mask of /proc, by an open descriptor of it, as the container's own."""
        number = call("mount_id", mount)
        is_new = f"\n{number} ".encode() not in b"\n" + self._mounts
        if is_new or not self._is_of_the_host(number):
            self.own_mounts.add(number)
            self.masks.add(number)

    def _old_file(self, path: str, limit: int) -> OldFile | None:
        """Return a regular file of the container, None where there is none."""
        data = self.read(path, limit)
        if data is None:
            return None
        fd = self.existing(path)
        if fd is None:
            return None
        status = posix.fstat(fd)
        posix.close(fd)
        return OldFile(data, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))

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

    # ---- taking away: each says why something stays, or nothing ----

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
        try:
            call("umount_at", parent.fd, name.encode())
        except SyscallError as error:
            return f"can't be unmounted: {error.strerror}"
        return ""

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
        try:
            call("umount_at", parent.fd, name.encode())
        except SyscallError as error:
            return f"can't be unmounted: {error.strerror}"
        return ""

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


def digest(data: bytes) -> str:
    """Return what tells a file's content from another."""
    return _sha256(data).hexdigest()


def _identity(parent: int, name: str) -> tuple[int, int] | None:
    """Return (st_dev, st_ino) of a name, links not followed; None if there is nothing."""
    try:
        status = posix.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _make_file(parent: int, name: str) -> None:
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    posix.close(posix.open(name, flags, 0o644, dir_fd=parent))


def _sealed(path: str) -> NoPlaceError:
    return NoPlaceError(
        f"{path} can't be made: the container's file system itself is read-only",
        "such an image (squashfs, erofs) needs the hook or nvhook-runtime, at its creation",
    )
