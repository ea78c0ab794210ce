"""The loader cache of glibc, /etc/ld.so.cache: read it, write it, put libraries into it.

Whatever is not understood in a file is a FormatError: the caller then lets ldconfig do the work.
"""

from _struct import iter_unpack, pack

from nvhook.errors import FormatError
from nvhook.formats.ldcache_layout import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    HWCAP_INDEX,
    LITTLE_ENDIAN,
    MAX_BYTES,
    Strings,
    Table,
    assemble,
    decode,
    encode,
    is_extension,
    order,
)
from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final, TypeAlias

    # A new plain entry: the old one to stand in front of, its order, -flags, name, path.
    _Insertion: TypeAlias = tuple[int, tuple[int, ...], int, bytes, bytes]

__all__ = ["MAX_BYTES", "Entry", "LdCache", "parse", "render", "splice"]


class Entry(Record):
    """One library; ``hwcap`` is the raw 64-bit field: see LdCache.subdirectory."""

    __slots__ = ("flags", "hwcap", "name", "osversion", "path")

    def __init__(
        self, name: str, path: str, flags: int, hwcap: int = 0, osversion: int = 0
    ) -> None:
        self.name: Final = name
        self.path: Final = path
        self.flags: Final = flags
        self.hwcap: Final = hwcap
        self.osversion: Final = osversion


class LdCache(Record):
    """A whole cache: entries in file order, the glibc-hwcaps names they index, who wrote it."""

    __slots__ = ("entries", "generator", "hwcaps")

    def __init__(
        self, entries: tuple[Entry, ...], hwcaps: tuple[str, ...] = (), generator: str = ""
    ) -> None:
        self.entries: Final = entries
        self.hwcaps: Final = hwcaps
        self.generator: Final = generator

    def subdirectory(self, entry: Entry) -> str:
        """Return the entry's glibc-hwcaps subdirectory (``x86-64-v3``), empty for a plain entry.

        Raises: FormatError if the cache lacks the name.
        """
        if not is_extension(entry.hwcap):
            return ""
        index = entry.hwcap & HWCAP_INDEX
        if index >= len(self.hwcaps):
            raise FormatError(f"the entry {entry.name} has no glibc-hwcaps name")
        return self.hwcaps[index]


def parse(data: bytes) -> LdCache:
    """Read a cache; an empty file is an empty cache.

    Raises: FormatError.
    """
    table = Table(data)
    # Entries may share strings, so the file's size does not bound what they add up to.
    budget = 2 * MAX_BYTES
    entries = []
    for flags, name, path, osversion, hwcap in iter_unpack(ENTRY, table.rows):
        entry = Entry(
            decode(table.string(name)), decode(table.string(path)), flags, hwcap, osversion
        )
        budget -= len(entry.name) + len(entry.path)
        if budget < 0:
            raise FormatError("the loader cache is broken: its strings overlap")
        entries.append(entry)
    hwcaps = tuple([decode(table.string(offset)) for offset in table.hwcaps])
    return LdCache(tuple(entries), hwcaps, decode(table.generator))


def render(cache: LdCache) -> bytes:
    """Return the file of a cache, with its entries in the loader's order.

    Raises: FormatError for what the format can't hold.
    """
    strings = Strings(HEADER_BYTES + ENTRY_BYTES * len(cache.entries))
    rows = [
        strings.row(
            encode(entry.name), encode(entry.path), entry.flags, entry.osversion, entry.hwcap
        )
        for entry in sorted(cache.entries, key=lambda entry: _position(cache, entry))
    ]
    hwcaps = [strings.add(encode(name)) for name in cache.hwcaps]
    return assemble(b"".join(rows), strings, hwcaps, encode(cache.generator), LITTLE_ENDIAN)


def splice(data: bytes, additions: "Iterable[tuple[str, str, int]]") -> bytes:
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


def _position(cache: LdCache, entry: Entry) -> "tuple[object, ...]":
    """Return a sort key: an entry's place in the loader's order."""
    # Higher flags first; then glibc-hwcaps by name, before the old hwcaps with more and higher
    # bits, before plain entries.
    if is_extension(entry.hwcap):
        hwcap = (0, encode(cache.subdirectory(entry)), 0, 0)
    else:
        hwcap = (1, b"", -entry.hwcap.bit_count(), -entry.hwcap)
    return order(encode(entry.name)), -entry.flags, hwcap, -entry.osversion


def _merge(table: Table, removed: list[int], inserted: "list[_Insertion]") -> bytes:
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
