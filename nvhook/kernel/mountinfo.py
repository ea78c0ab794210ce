"""The mounts a process sees: /proc/PID/mountinfo.

Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os

from nvhook.errors import ContainerError, FormatError
from nvhook.kernel.descriptors import content
from nvhook.record import record

MAX_BYTES = 32 << 20
FIELDS_BEFORE = 6  # mount id, parent id, major:minor, root, mount point, options
FIELDS_AFTER = 3  # file system type, source, super block options


@record
class MountInfo:
    """One mount; ``device`` is ``major:minor``, ``root`` the directory of that file system."""

    mount_id: int
    parent_id: int
    device: str
    root: str
    mount_point: str
    options: tuple[str, ...]
    optional: tuple[str, ...]
    fs_type: str
    source: str
    super_options: tuple[str, ...]

    @property
    def shared(self) -> int | None:
        """The peer group that mount events are shared with."""
        for field in self.optional:
            if field.startswith("shared:") and field[7:].isascii() and field[7:].isdigit():
                return int(field[7:])
        return None


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
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = content(fd, MAX_BYTES + 1)
        finally:
            os.close(fd)
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
        number, parent, device, root, place, options = fields[:FIELDS_BEFORE]
        fs_type, source, super_options = fields[dash + 1 :][:FIELDS_AFTER]
        return MountInfo(
            int(number),
            int(parent),
            _text(device),
            _text(unescape(root)),
            _text(unescape(place)),
            tuple(_text(options).split(",")),
            tuple([_text(field) for field in fields[FIELDS_BEFORE:dash]]),
            _text(unescape(fs_type)),
            _text(unescape(source)),
            tuple(_text(unescape(super_options)).split(",")),
        )
    except ValueError as error:
        raise FormatError(f"mountinfo line {line[:80]!r} is not understood") from error


def _text(field: bytes) -> str:
    return field.decode("utf-8", "surrogateescape")
