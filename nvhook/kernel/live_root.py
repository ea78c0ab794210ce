"""The root of a running container: what is made there is announced first, and can be undone."""

import _stat as stat
import errno
import posix
from hashlib import sha256 as _sha256

from nvhook._native import call
from nvhook.errors import ContainerError
from nvhook.kernel.refusals import NoPlaceError, on_a_volume
from nvhook.kernel.restoring_root import (
    CONTENT,
    DIRECTORY,
    FILE,
    LINK,
    OldFile,
    RestoringRoot,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Announce(Protocol):
        """What is told of each change before it is made: kind, container path, how to undo it."""

        def __call__(
            self, kind: str, path: str, new: str = "", old: "OldFile | str | None" = None
        ) -> None: ...


MAX_OLD_BYTES = 16 << 20  # of a file that is replaced, and kept to be given back


class LiveRoot(RestoringRoot):
    """A root whose changes are announced; ``masks`` are nvhook's mounts that take files along."""

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

    def mount_target(self, path: str, source: int) -> int:
        """Return what Rootfs.mount_target does; what it makes is announced.

        Raises: ContainerError; NoPlaceError.
        """
        parent, name = self._parent(path)
        if not parent.volume and not self._exists(parent, name):
            directory = stat.S_ISDIR(posix.fstat(source).st_mode)
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
        return super().mount_target(path, source)

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
        fd = self.open_file(path)
        if fd is None:
            return None
        # Of one descriptor: else the container could have its bytes given back in another's name.
        try:
            status = posix.fstat(fd)
            data = self.content(fd, path, limit)
        finally:
            posix.close(fd)
        return OldFile(data, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))


def digest(data: bytes) -> str:
    """Return what tells a file's content from another."""
    return _sha256(data).hexdigest()


def _make_file(parent: int, name: str) -> None:
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    posix.close(posix.open(name, flags, 0o644, dir_fd=parent))


def _sealed(path: str) -> NoPlaceError:
    return NoPlaceError(
        f"{path} can't be made: the container's file system itself is read-only",
        "such an image (squashfs, erofs) needs the hook or nvhook-runtime, at its creation",
    )
