"""A container's root directory, touched by descriptor only: the one door to container paths.

Whatever the image contains (links out of the root, loops, dangling links, sockets for files),
nothing here reaches the host: existing directories are resolved by the kernel inside the root, new
ones are made component by component, and the last component is never followed.
"""

import _stat as stat
import errno
import posix

from nvhook._native import SyscallError, call, ffi
from nvhook.errors import ContainerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10
_RESOLVE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
# openat2 gives EAGAIN when a rename races with ".." or a link; a container could do that for ever.
_RACE_RETRIES = 64

PROC_MAGIC = 0x9FA0
TMPFS_MAGIC = 0x01021994
# Kernel interfaces: a link of the image may lead there, a mount or a file never.
_KERNEL_FILESYSTEMS = {
    PROC_MAGIC: "procfs",
    0x62656572: "sysfs",
    0x27E0EB: "cgroup",
    0x63677270: "cgroup2",
    0xCAFE4A11: "bpf",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0x62656570: "configfs",
    0xDE5E81E4: "efivarfs",
    0x1CD1: "devpts",
}

_TYPES = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFIFO: "fifo",
}


class Rootfs:
    """A root directory. ``owner`` is the (uid, gid) new files belong to: the container's root.

    ``created`` lists (directory descriptor, name, is a directory) of everything made, oldest first;
    ``own_devices`` are the st_dev of file systems nvhook itself mounted below the root.
    """

    __slots__ = (
        "_directories",
        "_empty",
        "_made",
        "_mode",
        "created",
        "fd",
        "own_devices",
        "own_ids",
        "owner",
    )

    def __init__(self, fd: int, owner: tuple[int, int] | None = None) -> None:
        self.fd = fd
        self.own_ids = (posix.geteuid(), posix.getegid())
        self.owner = owner or self.own_ids
        self.created: list[tuple[int, str, bool]] = []
        self.own_devices = {posix.fstat(fd).st_dev}
        self._directories: dict[str, int] = {}
        self._mode = ffi.new("uint32_t[1]")
        self._made = ffi.new("int[1]")
        self._empty = -1  # the first file made: later ones are links to it

    def close(self) -> None:
        """Close every descriptor, the root's too."""
        for fd in self._directories.values():
            posix.close(fd)
        self._directories.clear()
        if self._empty >= 0:
            posix.close(self._empty)
        posix.close(self.fd)

    def has(self, path: str) -> bool:
        """Tell whether something exists at path (links followed inside the root)."""
        try:
            posix.close(self._openat2(path, posix.O_PATH))
        except SyscallError:
            return False
        return True

    def identity(self, path: str) -> tuple[int, int] | None:
        """Return (st_dev, st_ino) of path inside the root, or None."""
        try:
            fd = self._openat2(path, posix.O_PATH)
        except SyscallError:
            return None
        try:
            status = posix.fstat(fd)
        finally:
            posix.close(fd)
        return status.st_dev, status.st_ino

    def read(self, path: str, limit: int) -> bytes | None:
        """Return the content of a regular file, None if it is absent.

        Raises: ContainerError if it is something else or larger than limit bytes.
        """
        try:
            fd = self._openat2(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY)
        except SyscallError as error:
            if error.errno == errno.ENOENT:
                return None
            raise _failed("read", path, error) from error
        try:
            status = posix.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise _wrong_type(path, status.st_mode, "a regular file")
            if status.st_size > limit:
                raise ContainerError(f"the image's {path} is larger than {limit} bytes")
            chunks = []
            while chunk := posix.read(fd, 1 << 20):
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            posix.close(fd)

    def directory(self, path: str) -> int:
        """Open a directory, making what is missing of it; return its O_PATH descriptor."""
        try:
            fd = self._openat2(path, posix.O_PATH | posix.O_DIRECTORY)
        except SyscallError as error:
            if error.errno != errno.ENOENT:
                raise _failed("open directory", path, error) from error
            fd = self._make_directory(path)
        magic = call("filesystem_magic", fd)
        if magic in _KERNEL_FILESYSTEMS:
            posix.close(fd)
            raise ContainerError(
                f"{path} of the image leads into {_KERNEL_FILESYSTEMS[magic]}",
                "the image or a volume redirects a driver path; nothing was changed there",
            )
        return fd

    def existing(self, path: str) -> int | None:
        """Open what exists at path without making anything (for targets below /proc)."""
        try:
            return self._openat2(path, posix.O_PATH)
        except SyscallError:
            return None

    def mount_target(self, path: str, accept: "Callable[[int], bool]", directory: bool) -> int:
        """Return an O_PATH descriptor of the file or directory to mount on, making it if absent.

        accept gets the st_mode of what exists and tells whether it may be shadowed.
        Raises: ContainerError when something of another type is there.
        """
        parent, name = self._parent(path)
        arguments = parent, name.encode(), directory, self._empty, self._mode, self._made
        try:
            fd = self._as_owner(parent, lambda: call("mount_target", *arguments))
        except SyscallError as error:
            raise _failed("create", path, error) from error
        if self._made[0]:
            self.created.append((parent, name, directory))
            if self._empty < 0 and not directory:
                self._empty = posix.dup(fd)
        mode = self._mode[0]
        if not accept(mode):
            posix.close(fd)
            raise _wrong_type(path, mode, "a directory" if directory else "a regular file")
        return fd

    def symlink(self, path: str, target: str) -> bool:
        """Make path a link to target; False if it already is. Another link is replaced.

        Raises: ContainerError if something that is not a link is there.
        """
        parent, name = self._parent(path)
        try:
            try:
                if posix.readlink(name, dir_fd=parent) == target:
                    return False
            except FileNotFoundError:
                self._as_owner(parent, lambda: posix.symlink(target, name, dir_fd=parent))
                self.created.append((parent, name, False))
                return True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                status = posix.stat(name, dir_fd=parent, follow_symlinks=False)
                raise _wrong_type(path, status.st_mode, "a symbolic link") from error
            temporary = f".nvhook-{posix.getpid()}"
            self._as_owner(parent, lambda: posix.symlink(target, temporary, dir_fd=parent))
            posix.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            return True
        except OSError as error:
            raise _failed("link", path, error) from error

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Replace a regular file, or make it: written beside it and renamed over it.

        Raises: ContainerError if something that is not a regular file is there.
        """
        parent, name = self._parent(path)
        temporary = f".nvhook-{posix.getpid()}"
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        try:
            try:
                status = posix.stat(name, dir_fd=parent, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    raise _wrong_type(path, status.st_mode, "a regular file")
            except FileNotFoundError:
                self.created.append((parent, name, False))
            fd = self._as_owner(parent, lambda: posix.open(temporary, flags, mode, dir_fd=parent))
            try:
                posix.fchmod(fd, mode)
                view = memoryview(data)
                while view:
                    view = view[posix.write(fd, view) :]
                posix.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError:
                posix.unlink(temporary, dir_fd=parent)
                raise
            finally:
                posix.close(fd)
        except OSError as error:
            raise _failed("write", path, error) from error

    def remove_created(self) -> None:
        """Take back everything made; what is in use or has gone stays as it is."""
        while self.created:
            parent, name, is_directory = self.created.pop()
            try:
                if is_directory:
                    posix.rmdir(name, dir_fd=parent)
                else:
                    posix.unlink(name, dir_fd=parent)
            except OSError:
                pass

    def _parent(self, path: str) -> tuple[int, str]:
        """Return the directory of a path (made if need be, kept open for the next) and its name."""
        head, _, name = path.rpartition("/")
        if not name or name in (".", ".."):
            raise ContainerError(f"{path} is not a path in a container")
        parent = self._directories.get(head)
        if parent is None:
            parent = self._directories[head] = self.directory(head or "/")
        return parent, name

    def _make_directory(self, path: str) -> int:
        parent, name = self._parent(path)
        try:
            self._as_owner(parent, lambda: posix.mkdir(name, 0o755, dir_fd=parent))
            self.created.append((parent, name, True))
            flags = posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
            return posix.open(name, flags, dir_fd=parent)
        except OSError as error:
            raise _failed("create directory", path, error) from error

    def _as_owner(self, parent: int, make: "Callable[[], T]") -> "T":
        """Create something with the rights and ids of the container's root.

        Host root can't create in a user namespace's own tmpfs (EOVERFLOW), and the container's
        root can't create in an image that belongs to host root (EACCES): there, and only on the
        root's own file system and in nvhook's own mounts, host root's rights are used.
        """
        if self.owner == self.own_ids:
            return make()
        call("setfsids", *self.owner)
        try:
            return make()
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EOVERFLOW):
                raise
            if posix.fstat(parent).st_dev not in self.own_devices:
                raise
        finally:
            call("setfsids", *self.own_ids)
        return make()

    def _openat2(self, path: str, flags: int) -> int:
        for _ in range(_RACE_RETRIES):
            try:
                return call("openat2", self.fd, path.encode(), flags, 0, _RESOLVE)
            except SyscallError as error:  # noqa: PERF203 - the loop is the retry
                if error.errno != errno.EAGAIN:
                    raise
        raise ContainerError(
            f"{path} keeps changing while it is resolved",
            "something renames directories of the container's root at this moment",
        )


def _failed(what: str, path: str, error: OSError) -> ContainerError:
    hint = {
        errno.EROFS: "the root's file system itself is read-only; use an overlay",
        errno.ELOOP: "the image has a link where a driver file goes",
        errno.EEXIST: "the image has a dangling link where a driver file goes",
        errno.ENOTDIR: "the image has a file where a directory goes",
    }.get(error.errno or 0, "")
    return ContainerError(f"can't {what} {path} in the container: {error.strerror}", hint)


def _wrong_type(path: str, mode: int, wanted: str) -> ContainerError:
    found = _TYPES.get(stat.S_IFMT(mode), "special file")
    return ContainerError(
        f"the image has a {found} at {path}, where {wanted} is needed",
        "remove it from the image: driver files come from the host",
    )
