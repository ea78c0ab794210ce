"""Open files by their descriptors."""

from __future__ import annotations

import os

# What asks for megabytes at once makes the allocator map and unmap them.
_PIECE = 1 << 16


def content(fd: int, limit: int) -> bytes:
    """Return what there is to read, at most limit bytes; files in /proc tell no size.

    Raises: OSError.
    """
    pieces = []
    while limit > 0 and (piece := os.read(fd, min(limit, _PIECE))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)
