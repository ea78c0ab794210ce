"""Put libraries into a loader cache without reading all of it."""

from __future__ import annotations

from struct import pack

from nvhook.errors import FormatError
from nvhook.formats.ldcache_layout import (
    ENTRY,
    ENTRY_BYTES,
    Strings,
    Table,
    assemble,
    encode,
    order,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    # A new plain entry: the old one to stand in front of, its order, -flags, name, path.
    _Insertion: TypeAlias = tuple[int, bytes, int, bytes, bytes]


def splice(data: bytes, additions: Iterable[tuple[str, str, int]]) -> bytes:
    """Put (name, path, flags) libraries into a cache, as ldconfig would if it found them there.

    Plain entries (no hwcap) of the same name and flags give way; of two additions of a name and
    flags the first counts. Returns ``data`` itself if nothing changes. What is in the cache is
    found by bisection and moved as one block: no loop runs over all entries.

    Raises: FormatError for a cache nvhook does not understand, or an entry it can't hold.
    """
    table = Table(data)
    wanted: dict[tuple[bytes, int], bytes] = {}
    for name, path, flags in additions:
        if not name or not path.startswith("/"):
            raise FormatError(f"not a library for a loader cache: {name!r} at {path!r}")
        wanted.setdefault((encode(name), flags), encode(path))
    removed: set[int] = set()
    inserted: list[_Insertion] = []
    for (name_bytes, flags), path_bytes in wanted.items():
        key = order(name_bytes)
        same, position = table.place(name_bytes, key, flags)
        if len(same) == 1 and table.string(table.paths[same[0]]) == path_bytes:
            continue
        removed.update(same)
        inserted.append((position, key, -flags, name_bytes, path_bytes))
    if not inserted:
        return data
    inserted.sort()
    return _merge(table, sorted(removed), inserted)


def _merge(table: Table, removed: list[int], inserted: list[_Insertion]) -> bytes:
    """Return the file with rows taken out and plain entries put in, each in front of a row."""
    count = len(table.names)
    growth = ENTRY_BYTES * (len(inserted) - len(removed))
    # All strings move by the growth of the table. The rows are taken as one number and the growth
    # is added in two columns of every row at once: offsets stay far below 32 bits, so that
    # nothing is carried from one column to the next.
    ones = int.from_bytes(pack(ENTRY, 0, 1, 1, 0, 0) * count, "little")
    moved = int.from_bytes(table.rows, "little") + ones * growth
    old_rows = moved.to_bytes(ENTRY_BYTES * count, "little")
    strings = Strings(table.start - table.base + growth, table.data[table.start : table.end])
    # Where both happen at one place, the new entry comes before the old one goes.
    edits: list[tuple[int, bytes]] = [
        (position, strings.row(name, path, -flags, 0, 0))
        for position, _, flags, name, path in inserted
    ]
    edits += [(index, b"") for index in removed]
    edits.sort(key=lambda edit: edit[0])
    rows: list[bytes] = []
    taken = 0
    for index, row in edits:
        rows += (old_rows[ENTRY_BYTES * taken : ENTRY_BYTES * index], row)
        taken = index if row else index + 1
    rows.append(old_rows[ENTRY_BYTES * taken :])
    hwcaps = [offset + growth for offset in table.hwcaps]
    return assemble(b"".join(rows), strings, hwcaps, table.generator, table.byte_order)
