"""A container's root directory, looked at by descriptor only: paths are resolved inside it.

Whatever the image contains (links out of the root, loops, dangling links, sockets for files),
nothing here reaches the host, and only regular files are opened.
"""

from __future__ import annotations

import errno
import os
import stat

from nvhook import observations
from nvhook._native import SyscallError, lib
from nvhook.errors import ContainerError
from nvhook.kernel.descriptors import content
from nvhook.kernel.refusals import (
    failed,
    keeps_changing,
    refuse_kernel_filesystem,
    wrong_type,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Reader:
    """Pieces of an open file, which are noted when it is closed."""

    __slots__ = ("_fd", "_path", "_pieces")

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._pieces: list[tuple[int, int, bytes]] = []

    def read(self, offset: int, size: int) -> bytes:
        """Return at most size bytes from an offset.

        Raises: OSError.
        """
        data = os.pread(self._fd, size, offset)
        self._pieces.append((offset, size, data))
        return data

    def __enter__(self) -> Callable[[int, int], bytes]:
        return self.read

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        observations.pieces(self._path, self._pieces)


class RootView:
    """A root directory to read from. ``fd`` is its descriptor.

    What has(), same(), names() and reader() say is noted (observations.py).
    """

    __slots__ = ("_fds", "fd")

    def __init__(self, fd: int) -> None:
        """Take over a root's descriptor."""
        self.fd = fd
        # Held, because in the container's namespace /proc may be anything.
        self._fds = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the descriptors, the root's too."""
        os.close(self._fds)
        os.close(self.fd)

    def has(self, path: str) -> bool:
        """Tell whether something exists at path (links followed inside the root)."""
        there = self.identity(path) is not None
        observations.of_root("has", path, answer=str(int(there)))
        return there

    def same(self, path: str, other: str) -> bool:
        """Tell whether two paths lead to the same file."""
        identity = self.identity(path)
        same = identity is not None and identity == self.identity(other)
        observations.of_root("same", path, other, answer=str(int(same)))
        return same

    def identity(self, path: str) -> tuple[int, int] | None:
        """Return (st_dev, st_ino) of path inside the root, or None."""
        fd = self.existing(path)
        if fd is None:
            return None
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        return status.st_dev, status.st_ino

    def is_at(self, path: str, identity: tuple[int, int]) -> bool:
        """Tell whether a file (st_dev, st_ino) is at path itself, links at its end not followed."""
        try:
            fd = self._openat2(path, os.O_PATH | os.O_NOFOLLOW)
        except (ContainerError, OSError):
            return False
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        return (status.st_dev, status.st_ino) == identity

    def existing(self, path: str) -> int | None:
        """Open what exists at path (O_PATH) without making anything."""
        try:
            return self._openat2(path, os.O_PATH)
        except SyscallError as error:
            if observations.is_absent(error):
                return None
            raise failed("look at", path, error) from error

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory; none if there is no such directory."""
        found = self._names(path)
        observations.entries(path, found)
        return sorted(found or ())

    def _names(self, path: str) -> list[str] | None:
        try:
            fd = self._openat2(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except SyscallError as error:
            if observations.is_absent(error):
                return None
            raise failed("read", path, error) from error
        try:
            refuse_kernel_filesystem(fd, path)
            return os.listdir(fd)
        except ContainerError:
            return None  # the image redirects it: its own loss
        except OSError as error:
            raise failed("read", path, error) from error
        finally:
            os.close(fd)

    def reader(self, path: str) -> Reader | None:
        """Open a regular file to read pieces of it, None if it is absent.

        Raises: ContainerError if it is something else.
        """
        fd = self.open_file(path)
        if fd is None:
            observations.of_root("bytes", path, "", answer=observations.ABSENT)
            return None
        return Reader(path, fd)

    def open_file(self, path: str) -> int | None:
        """Open a regular file for reading, None if it is absent.

        Raises: ContainerError if it is something else.
        """
        try:
            place = self._openat2(path, os.O_PATH)
        except SyscallError as error:
            if error.errno == errno.ENOENT:
                return None
            raise failed("read", path, error) from error
        try:
            # Before it is really opened: opening a device does things, reading some of /proc too.
            mode = os.fstat(place).st_mode
            if not stat.S_ISREG(mode):
                raise wrong_type(path, mode, "a regular file")
            refuse_kernel_filesystem(place, path)
            flags = os.O_RDONLY | os.O_CLOEXEC
            return os.open(str(place), flags, dir_fd=self._fds)
        except OSError as error:
            raise failed("read", path, error) from error
        finally:
            os.close(place)

    def read(self, path: str, limit: int) -> bytes | None:
        """Return the content of a regular file, None if it is absent.

        Raises: ContainerError if it is something else or larger than limit bytes.
        """
        fd = self.open_file(path)
        if fd is None:
            return None
        try:
            return self.content(fd, path, limit)
        finally:
            os.close(fd)

    @staticmethod
    def content(fd: int, path: str, limit: int) -> bytes:
        """Return the content of an open file; path is what it is called.

        Raises: ContainerError if it can't be read or is larger than limit bytes.
        """
        try:
            data = content(fd, limit + 1)
        except OSError as error:
            raise failed("read", path, error) from error
        if len(data) > limit:
            raise ContainerError(f"the image's {path} is larger than {limit} bytes")
        return data

    def _openat2(self, path: str, flags: int) -> int:
        fd: int = lib.nvh_in_root(self.fd, os.fsencode(path), flags)
        if fd == lib.NVH_KEEPS_CHANGING:
            raise keeps_changing(path)
        if fd < 0:
            raise SyscallError(-fd, "openat2")
        return fd
