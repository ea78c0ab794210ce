"""The loader cache of glibc, /etc/ld.so.cache: read it and write it.

Whatever is not understood in a file is a FormatError: the caller then lets ldconfig do the work.
"""

from __future__ import annotations

from struct import iter_unpack

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
from nvhook.record import record

__all__ = ["MAX_BYTES", "Entry", "LdCache", "parse", "render"]


@record
class Entry:
    """One library; ``hwcap`` is the raw 64-bit field: see LdCache.subdirectory."""

    name: str
    path: str
    flags: int
    hwcap: int = 0
    osversion: int = 0


@record
class LdCache:
    """A whole cache: entries in file order, the glibc-hwcaps names they index, who wrote it."""

    entries: tuple[Entry, ...]
    hwcaps: tuple[str, ...] = ()
    generator: str = ""

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


def _position(cache: LdCache, entry: Entry) -> tuple[object, ...]:
    """Return a sort key: an entry's place in the loader's order."""
    # Higher flags first; then glibc-hwcaps by name, before the old hwcaps with more and higher
    # bits, before plain entries.
    if is_extension(entry.hwcap):
        hwcap = (0, encode(cache.subdirectory(entry)), 0, 0)
    else:
        hwcap = (1, b"", -entry.hwcap.bit_count(), -entry.hwcap)
    return order(encode(entry.name)), -entry.flags, hwcap, -entry.osversion
