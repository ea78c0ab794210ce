"""The lists of a Jetson's system that say what containers get: ``lib, /usr/lib/...``.

Source: nvidia-container-stack reference, section 3 (Tegra CSV).
"""

from __future__ import annotations

from nvhook.record import record

KINDS = ("dev", "dir", "lib", "sym")


@record
class Entry:
    """One line: ``kind`` is of KINDS, ``path`` absolute and may be a shell pattern."""

    kind: str
    path: str


def parse(text: str) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return the entries of a list, and the lines that are none; empty lines are neither."""
    entries, wrong = [], []
    for line in text.splitlines():
        kind, comma, path = [part.strip() for part in line.partition(",")]
        if not line.strip():
            continue
        names = path.split("/")
        if comma and kind in KINDS and path[:1] == "/" and "\0" not in path and ".." not in names:
            entries.append(Entry(kind, path))
        else:
            wrong.append(line)
    return tuple(entries), tuple(wrong)
