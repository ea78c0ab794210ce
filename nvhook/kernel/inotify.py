"""Watch a directory for names that come and go (inotify(7))."""

from __future__ import annotations

import os
import struct

from nvhook._native import call, lib

# Source: linux/inotify.h.
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x1000000

_CHANGES = IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF
_GONE = IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_MAX_READ = 1 << 16


class DirectoryWatch:
    """Becomes readable when something changed in a directory: look there what it was.

    The kernel may lose events, but never the fact that there were some.
    """

    def __init__(self, path: str) -> None:
        """Start to watch.

        Raises: OSError.
        """
        self._fd = call(lib.nvh_inotify, os.fsencode(path), _CHANGES | IN_ONLYDIR)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._fd

    def drain(self) -> bool:
        """Forget the changes so far; return whether the directory itself is still there."""
        there = True
        while True:
            try:
                data = os.read(self._fd, _MAX_READ)
            except BlockingIOError:
                return there
            offset = 0
            while offset < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                there = there and not mask & _GONE

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)
