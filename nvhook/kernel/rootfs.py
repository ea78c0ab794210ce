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
from nvhook.kernel.refusals import failed, on_a_volume, refuse_kernel_filesystem, wrong_type
from nvhook.kernel.replace import replace_file, replace_link
from nvhook.kernel.root_view import RootView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


class Directory:
    """An open directory of the container, and whose it is.

    ``mount`` is the id of the mount it is on. ``ours``: that is the root's own, or one of nvhook's.
    ``volume``: on a mount of something the host has, too: whatever is made there is made on the
    host.
    """

    __slots__ = ("fd", "mount", "ours", "volume")

    def __init__(self, fd: int, mount: int, ours: bool, volume: bool) -> None:
        self.fd = fd
        self.mount = mount
        self.ours = ours
        self.volume = volume


class Rootfs(RootView):
    """A root directory. ``owner`` is the (uid, gid) new files belong to: the container's root.

    ``created`` lists (directory descriptor, name, is a directory) of everything made, oldest first;
    ``own_mounts`` are the ids of the root's mount and of those nvhook made below it.
    """

    __slots__ = (
        "_directories",
        "_empty",
        "_host_mounts",
        "_made",
        "_modes",
        "_mounts",
        "_relinked",
        "created",
        "own_ids",
        "own_mounts",
        "owner",
    )

    def __init__(
        self,
        fd: int,
        owner: tuple[int, int] | None = None,
        mounts: bytes = b"",
        host_mounts: bytes = b"",
    ) -> None:
        """Take over a root's descriptor; mounts is the container's mountinfo, the other the host's.

        Without them every mount below the root counts as a volume of the host.
        """
        super().__init__(fd)
        self.own_ids = (posix.geteuid(), posix.getegid())
        self.owner = owner or self.own_ids
        self.created: list[tuple[int, str, bool]] = []
        self.own_mounts = {call("mount_id", fd)}
        self._mounts = mounts
        self._host_mounts = host_mounts
        self._directories: dict[str, Directory] = {}
        self._relinked: list[tuple[Directory, str, str]] = []
        self._modes = ffi.new("uint32_t[2]")
        self._made = ffi.new("int[1]")
        # By mount id, the first file made there: later ones are links to it.
        self._empty: dict[int, int] = {}

    def close(self) -> None:
        """Close every descriptor, the root's too."""
        for directory in self._directories.values():
            posix.close(directory.fd)
        self._directories.clear()
        for fd in self._empty.values():
            posix.close(fd)
        super().close()

    def directory(self, path: str) -> int:
        """Open a directory, making what is missing of it; return its O_PATH descriptor."""
        try:
            fd = self._openat2(path, posix.O_PATH | posix.O_DIRECTORY)
        except SyscallError as error:
            if error.errno != errno.ENOENT:
                raise failed("open directory", path, error) from error
            fd = self._make_directory(path)
        try:
            refuse_kernel_filesystem(fd, path)
        except ContainerError:
            posix.close(fd)
            raise
        return fd

    def mount_target(self, path: str, source: int) -> int:
        """Return an O_PATH descriptor of what to mount a source (a descriptor) on, made if absent.

        That is a directory for a directory. A file may shadow a file or a socket, a device node a
        file or a device.
        Raises: ContainerError when something of another type is there; NoPlaceError.
        """
        parent, name = self._parent(path)
        empty = self._empty.get(parent.mount, -1)
        arguments = name.encode(), source, not parent.volume, empty, self._modes, self._made
        try:
            fd = self._as_owner(parent, lambda where: call("mount_target", where, *arguments))
        except SyscallError as error:
            if error.errno == errno.ENOENT and parent.volume:
                raise on_a_volume(path) from error
            raise failed("create", path, error) from error
        mode, there = self._modes
        directory = stat.S_ISDIR(mode)
        if self._made[0]:
            self.created.append((parent.fd, name, directory))
        if not _may_shadow(mode, there):  # also what was made: the container may be faster
            posix.close(fd)
            raise wrong_type(path, there, "a directory" if directory else "a regular file")
        if self._made[0] and empty < 0 and not directory:
            self._empty[parent.mount] = posix.dup(fd)
        return fd

    def symlink(self, path: str, target: str) -> bool:
        """Make path a link to target; False if it already is. Another link is replaced.

        Raises: ContainerError if something that is not a link is there; NoPlaceError.
        """
        parent, name = self._parent(path)
        try:
            if parent.volume:
                if self._link_target(parent.fd, path, name) == target:
                    return False
                raise on_a_volume(path)
            try:  # mostly nothing is there yet
                self._as_owner(parent, lambda where: posix.symlink(target, name, dir_fd=where))
                self.created.append((parent.fd, name, False))
                return True
            except OSError:
                old = self._link_target(parent.fd, path, name)
                if old is None:
                    raise
            if old == target:
                return False
            self._as_owner(parent, lambda where: replace_link(where, name, target))
            self._relinked.append((parent, name, old))
        except OSError as error:
            raise failed("link", path, error) from error
        return True

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Replace a regular file, or make it: written beside it and renamed over it.

        Raises: ContainerError if something that is not a regular file is there; NoPlaceError.
        """
        parent, name = self._own_parent(path)
        try:
            try:
                status = posix.stat(name, dir_fd=parent.fd, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    raise wrong_type(path, status.st_mode, "a regular file")
            except FileNotFoundError:
                self.created.append((parent.fd, name, False))
            self._as_owner(parent, lambda where: replace_file(where, name, data, mode))
        except OSError as error:
            raise failed("write", path, error) from error

    def take_back(self) -> None:
        """Remove everything made, and restore links; what is in use or has gone stays as it is."""
        while self._relinked:
            self._restore_link(*self._relinked.pop())
        while self.created:
            parent, name, is_directory = self.created.pop()
            try:
                if is_directory:
                    posix.rmdir(name, dir_fd=parent)
                else:
                    posix.unlink(name, dir_fd=parent)
            except OSError:
                pass

    def _restore_link(self, parent: Directory, name: str, target: str) -> None:
        try:
            self._as_owner(parent, lambda where: replace_link(where, name, target))
        except OSError:
            pass

    def _parent(self, path: str) -> "tuple[Directory, str]":
        """Return the directory of a path (made if need be, kept open for the next) and its name."""
        head, _, name = path.rpartition("/")
        if not name or name in (".", ".."):
            raise ContainerError(f"{path} is not a path in a container")
        parent = self._directories.get(head)
        if parent is None:
            parent = self._directories[head] = self._classify(self.directory(head or "/"))
        return parent, name

    def _classify(self, fd: int) -> Directory:
        mount = call("mount_id", fd)
        ours = mount in self.own_mounts
        return Directory(fd, mount, ours, volume=not ours and self._is_of_the_host(mount))

    def _own_parent(self, path: str) -> "tuple[Directory, str]":
        """Return what _parent does; raise NoPlaceError where nothing may be made or replaced."""
        parent, name = self._parent(path)
        if parent.volume:
            raise on_a_volume(path)
        return parent, name

    def make_parent(self, path: str) -> None:
        """Make the directory of a file that something else will write there.

        Raises: ContainerError; NoPlaceError.
        """
        self._own_parent(path)

    def _is_of_the_host(self, mount: int) -> bool:
        """Tell whether the host, too, has the file system mounted (not the container's tmpfs).

        By the number in mountinfo: btrfs gives its files another st_dev.
        """
        start = f"{mount} ".encode()
        for line in self._mounts.split(b"\n"):
            if line.startswith(start):
                return b" " + line.split(b" ", 3)[2] + b" " in self._host_mounts
        return True

    def _make_directory(self, path: str) -> int:
        parent, name = self._own_parent(path)
        try:
            self._as_owner(parent, lambda where: posix.mkdir(name, 0o755, dir_fd=where))
            self.created.append((parent.fd, name, True))
            flags = posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
            return posix.open(name, flags, dir_fd=parent.fd)
        except OSError as error:
            raise failed("create directory", path, error) from error

    def _as_owner(self, parent: Directory, make: "Callable[[int], T]") -> "T":
        """Create something in a directory with the rights and ids of the container's root.

        Host root can't create in a user namespace's own tmpfs (EOVERFLOW), and the container's
        root can't create in an image that belongs to host root (EACCES): there, and only on the
        root's own mount and nvhook's, never on a volume, host root's rights are used.
        """
        if self.owner == self.own_ids:
            return make(parent.fd)
        call("setfsids", *self.owner)
        try:
            return make(parent.fd)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EOVERFLOW) or not parent.ours:
                raise
        finally:
            call("setfsids", *self.own_ids)
        return make(parent.fd)

    @staticmethod
    def _link_target(parent: int, path: str, name: str) -> str | None:
        """Return where a link points, None if there is nothing.

        Raises: ContainerError if something else is there.
        """
        try:
            return posix.readlink(name, dir_fd=parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            status = posix.stat(name, dir_fd=parent, follow_symlinks=False)
            raise wrong_type(path, status.st_mode, "a symbolic link") from error


def _may_shadow(source: int, there: int) -> bool:
    """Tell by their st_mode whether one thing may be mounted over another."""
    if stat.S_ISDIR(source):
        return stat.S_ISDIR(there)
    other = stat.S_ISCHR if stat.S_ISCHR(source) else stat.S_ISSOCK
    return stat.S_ISREG(there) or other(there)
