"""What a decision is made from: every look at the machine is noted where it is taken.

A recording (create/recording.py) holds the notes of the start that made it, and the launcher takes
each look again before it repeats what was done (_native/observe.c, which gives the same answers). A
look that is taken in another way is not noticed when it would say something else: in host/ and in
kernel/root_view.py nothing is looked at but through this module.
"""

from __future__ import annotations

import errno
import os
import time
from _blake2 import blake2b  # hashlib costs 0.4 of the interpreter's start

from nvhook.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ABSENT = "-"
# Younger files may change again without a new time stamp (nanoseconds).
_FRESH = 100_000_000


def is_absent(error: OSError) -> bool:
    """Tell whether an error means that something is not there.

    Every other one means that nobody knows: who took it for absence would give a container less
    than it needs, or more than it may have. What a user may not look at is not there for that user.
    """
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return True
    return error.errno == errno.EACCES and os.geteuid() != 0


def unknown(path: str, error: OSError) -> HostError:
    """Return the error for something of the host of which nobody knows whether it is there."""
    return HostError(f"{path} can't be looked at: {error.strerror}", "try again; dmesg may say why")


class Notes:
    """The looks that were taken, as (kind, what, answer), and why they can't be taken again."""

    __slots__ = ("of_host", "of_root", "spoilt")

    def __init__(self) -> None:
        self.of_host: dict[tuple[str, ...], str] = {}
        self.of_root: dict[tuple[str, ...], str] = {}
        self.spoilt = ""


_noting: Notes | None = None


def begin() -> Notes:
    """Note every look from now on."""
    global _noting  # noqa: PLW0603 - one decision in a process
    _noting = Notes()
    return _noting


def end() -> None:
    """Note no more looks."""
    global _noting  # noqa: PLW0603
    _noting = None


class Paused:
    """Within it nothing is noted: what is found out there is remembered under a key that is."""

    __slots__ = ("_notes",)

    def __enter__(self) -> None:
        self._notes = _noting
        end()

    def __exit__(self, *_: object) -> None:
        global _noting  # noqa: PLW0603
        _noting = self._notes


def spoil(why: str) -> None:
    """Say that this decision can't be repeated."""
    if _noting is not None and not _noting.spoilt:
        _noting.spoilt = why


def digest(data: bytes) -> str:
    """Return the BLAKE2b of some bytes, in hexadecimal digits."""
    return blake2b(data, digest_size=32).hexdigest()


def digest_of_names(names: Iterable[str]) -> str:
    """Return the digest of a directory's names, in whatever order they come."""
    encoded = sorted([os.fsencode(name) for name in names])
    return digest(b"".join([name + b"\0" for name in encoded]))


# ---- looks at the host ----


def of_host(kind: str, *what: str, answer: str) -> None:
    """Note a look at the host."""
    if _noting is not None:
        _noting.of_host.update({(kind, *what): answer})


def text(path: str, limit: int, data: bytes | None) -> None:
    """Note what was read of a file, at most limit bytes; None: it can't be read."""
    if _noting is not None:
        of_host("text", path, str(limit), answer=ABSENT if data is None else digest(data))


def names(directory: str, prefix: str = "") -> list[str] | None:
    """Return a directory's names that begin with a prefix; None if it can't be read."""
    try:
        found = [name for name in os.listdir(directory or "/") if name.startswith(prefix)]
    except OSError as error:
        if not is_absent(error):
            raise unknown(directory, error) from error
        of_host("names", directory, prefix, answer=ABSENT)
        return None
    if _noting is not None:
        of_host("names", directory, prefix, answer=digest_of_names(found))
    return found


def inodes(directory: str, prefix: str) -> list[tuple[str, int]]:
    """Return (name, inode) of a directory's names that begin with a prefix; none without it."""
    try:
        with os.scandir(directory) as entries:
            found = [(each.name, each.inode()) for each in entries if each.name.startswith(prefix)]
    except OSError as error:
        if not is_absent(error):
            raise unknown(directory, error) from error
        of_host("inodes", directory, prefix, answer=ABSENT)
        return []
    if _noting is not None:
        answer = digest_of_names([f"{name}={inode}" for name, inode in found])
        of_host("inodes", directory, prefix, answer=answer)
    return found


def node(path: str) -> os.stat_result | None:
    """Return the status of a path itself; None if there is nothing."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError as error:
        if not is_absent(error):
            raise unknown(path, error) from error
        of_host("node", path, answer=ABSENT)
        return None
    fields = status.st_mode, status.st_rdev, status.st_uid, status.st_gid
    of_host("node", path, answer=_joined(fields))
    return status


def stamp(path: str, status: os.stat_result | None) -> None:
    """Note the time stamps of a file, links followed; None: there is none."""
    if status is None:
        of_host("stamp", path, answer=ABSENT)
        return
    if time.time_ns() - status.st_ctime_ns < _FRESH:
        spoil(f"{path} is just being changed")
    _stamp(path, status)


def version(path: str, status: os.stat_result | None) -> None:
    """Note which version counts of a file of nvhook's own, which is only replaced as a whole.

    It remembers what is not looked at again: with another version, that may have been otherwise.
    """
    if status is None:
        spoil(f"{path} can't be written")
        return
    _stamp(path, status)


def _stamp(path: str, status: os.stat_result) -> None:
    times = status.st_mtime_ns, status.st_ctime_ns
    answer = _joined((status.st_dev, status.st_ino, status.st_size, *times))
    of_host("stamp", path, answer=answer)


def link(path: str) -> str | None:
    """Return the target of a link; None if it is none."""
    try:
        target = os.readlink(path)
    except OSError as error:
        if not is_absent(error) and error.errno != errno.EINVAL:
            raise unknown(path, error) from error
        of_host("link", path, answer=ABSENT)
        return None
    of_host("link", path, answer=target)
    return target


def place(root: str, path: str, status: os.stat_result | None, resolved: str = "") -> None:
    """Note what a path inside a root leads to, and where that is without links."""
    answer = ABSENT
    if status is not None:
        numbers = _joined((status.st_dev, status.st_ino, status.st_mode, status.st_uid))
        answer = f"{numbers}:{resolved}"
    of_host("place", root, path, answer=answer)


# ---- looks at a container's root ----


def of_root(kind: str, *what: str, answer: str) -> None:
    """Note a look at the container's root.

    The first answer counts: a later one may be about what nvhook itself has made there.
    """
    if _noting is not None:
        _noting.of_root.setdefault((kind, *what), answer)


def entries(path: str, found: Iterable[str] | None) -> None:
    """Note the names in a directory of the root; None: it can't be read."""
    if _noting is not None:
        of_root("entries", path, answer=ABSENT if found is None else digest_of_names(found))


def pieces(path: str, read: Iterable[tuple[int, int, bytes]]) -> None:
    """Note pieces of a file of the root: offset, size asked for, what was read."""
    if _noting is not None:
        ranges = ",".join([f"{offset}+{size}" for offset, size, _ in read])
        of_root("bytes", path, ranges, answer=digest(b"".join([data for _, _, data in read])))


def _joined(fields: Iterable[int]) -> str:
    return ":".join([str(field) for field in fields])
