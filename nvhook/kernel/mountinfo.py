"""The mounts a process sees: /proc/PID/mountinfo.

Source: proc_pid_mountinfo(5).
"""

import posix

from nvhook.errors import ContainerError, FormatError
from nvhook.kernel.descriptors import content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MAX_BYTES = 32 << 20
FIELDS_BEFORE = 6  # mount id, parent id, major:minor, root, mount point, options
FIELDS_AFTER = 3  # file system type, source, super block options


class MountInfo:
    """One mount; ``device`` is ``major:minor``, ``root`` the directory of that file system."""

    __slots__ = (
        "device",
        "fs_type",
        "mount_id",
        "mount_point",
        "optional",
        "options",
        "parent_id",
        "root",
        "source",
        "super_options",
    )

    def __init__(self, before: list[bytes], optional: list[bytes], after: list[bytes]) -> None:
        self.mount_id: Final = int(before[0])
        self.parent_id: Final = int(before[1])
        self.device: Final = _text(before[2])
        self.root: Final = _text(unescape(before[3]))
        self.mount_point: Final = _text(unescape(before[4]))
        self.options: Final = tuple(_text(before[5]).split(","))
        self.optional: Final = tuple([_text(field) for field in optional])
        self.fs_type: Final = _text(unescape(after[0]))
        self.source: Final = _text(unescape(after[1]))
        self.super_options: Final = tuple(_text(unescape(after[2])).split(","))

    @property
    def shared(self) -> int | None:
        """The peer group that mount events are shared with."""
        for field in self.optional:
            if field.startswith("shared:") and field[7:].isascii() and field[7:].isdigit():
                return int(field[7:])
        return None

    def __repr__(self) -> str:
        return f"MountInfo({self.mount_point!r}, {self.fs_type!r}, root={self.root!r})"


def parse(data: bytes, containing: bytes = b"") -> tuple[MountInfo, ...]:
    """Return the mounts in the kernel's order; a later one covers an earlier one of the same place.

    Lines without ``containing`` are skipped unread: a host has thousands of mounts.

    Raises: FormatError.
    """
    return tuple([_mount(line) for line in data.split(b"\n") if line and containing in line])


def read(
    proc: str = "/proc", pid: int | str = "self", containing: bytes = b""
) -> tuple[MountInfo, ...]:
    """Parse a process's mountinfo.

    Raises: FormatError; ContainerError if the process has gone.
    """
    return parse(table(proc, pid), containing)


def table(proc: str = "/proc", pid: int | str = "self") -> bytes:
    """Return a process's mountinfo as it is.

    Raises: FormatError if it is too large; ContainerError if the process has gone.
    """
    path = f"{proc}/{pid}/mountinfo"
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            data = content(fd, MAX_BYTES + 1)
        finally:
            posix.close(fd)
    except OSError as error:
        hint = "has the process ended?"
        raise ContainerError(f"can't read {path}: {error.strerror}", hint) from error
    if len(data) > MAX_BYTES:
        raise FormatError(f"{path} is larger than {MAX_BYTES} bytes")
    return data


def unescape(field: bytes) -> bytes:
    r"""Undo the kernel's ``\ooo`` escapes (blank, tab, newline, backslash, hash)."""
    head, *rest = field.split(b"\\")
    for part in rest:
        digits = part[:3]
        if len(digits) == 3 and b"0" <= digits[:1] <= b"3" and not digits.strip(b"01234567"):
            head += bytes((int(digits, 8),)) + part[3:]
        else:
            head += b"\\" + part
    return head


def _mount(line: bytes) -> MountInfo:
    fields = line.split(b" ")
    try:
        dash = fields.index(b"-", FIELDS_BEFORE)
        after = fields[dash + 1 :]
        if len(after) < FIELDS_AFTER:
            raise ValueError
        return MountInfo(fields[:FIELDS_BEFORE], fields[FIELDS_BEFORE:dash], after)
    except ValueError as error:
        raise FormatError(f"mountinfo line {line[:80]!r} is not understood") from error


def _text(field: bytes) -> str:
    return field.decode("utf-8", "surrogateescape")
