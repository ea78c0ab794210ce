"""The lists of a Jetson's system that say what containers get: ``lib, /usr/lib/...``.

Source: nvidia-container-stack reference, section 3 (Tegra CSV).
"""

from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

KINDS = ("dev", "dir", "lib", "sym")


class Entry(Record):
    """One line: ``kind`` is of KINDS, ``path`` absolute and may be a shell pattern."""

    __slots__ = ("kind", "path")

    def __init__(self, kind: str, path: str) -> None:
        self.kind: Final = kind
        self.path: Final = path


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
