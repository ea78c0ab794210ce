"""How an ld.so.cache file is laid out: a checked view of one, how to write one, the order in it.

A file is a header, a table of entries in the loader's own order, a string table, and since glibc
2.33 an extension with the names of glibc-hwcaps subdirectories. An older ldconfig puts a table in
the format of libc5 in front; extension offsets then still count from the start of the file, but
string offsets from the new header.
Source: glibc 2.36, what ldconfig writes and the loader reads.
"""

from __future__ import annotations

from struct import pack, unpack_from

from nvhook.errors import FormatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BYTES = 16 << 20
MAX_ENTRIES = 1 << 16
MAX_STRING_BYTES = 4096
MAX_NAME_BYTES = 255  # NAME_MAX
MAX_SAME = 1000  # entries of one name: a library has a handful, one for each ABI and hwcap
MAX_HWCAPS = 1024
MAX_NUMBER = (1 << 30) - 1

OLD_MAGIC = b"ld.so-1.7.0\0"
MAGIC = b"glibc-ld.so.cache1.1"
HEADER = "<20sIIB3xI12x"  # magic, entries, string bytes, byte order, offset of the extension
HEADER_BYTES = 48
ENTRY = "<iIIIQ"  # flags, name offset, path offset, osversion, hwcap
ENTRY_BYTES = 24
BYTE_ORDER_UNSET, LITTLE_ENDIAN = 0, 2
EMPTY = pack(HEADER, MAGIC, 0, 0, LITTLE_ENDIAN, 0)

EXTENSION_MAGIC = 0xEAA42174
SECTION = "<IIII"  # tag, flags, offset, size
TAG_GENERATOR, TAG_HWCAPS = 0, 1
# An hwcap whose upper half is bit 62 and at most these ISA level bits is an index of a name.
ISA_LEVELS = 0x3FF << 32
HWCAP_EXTENSION = 1 << 62
HWCAP_INDEX = 0xFFFFFFFF

# In a key of order() digits are before every other character, and these before a name's end.
_DIGIT, _END = b"\0", b"\xff"
_BACKWARDS = bytes([0 if 48 <= each <= 57 else 0xFF - each for each in range(256)])


class Table:
    """A checked view of a file: where everything is, nothing decoded.

    Raises: FormatError.
    """

    __slots__ = (
        "_orders",
        "base",
        "byte_order",
        "data",
        "end",
        "flags",
        "generator",
        "hwcap_fields",
        "hwcaps",
        "names",
        "paths",
        "rows",
        "start",
    )

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_BYTES:
            raise FormatError(f"the loader cache is larger than {MAX_BYTES >> 20} MiB")
        self.data = data = data or EMPTY
        self.base = base = _new_header(data)
        magic, count, string_bytes, byte_order, extension = unpack_from(HEADER, data, base)
        if magic != MAGIC or byte_order not in (BYTE_ORDER_UNSET, LITTLE_ENDIAN):
            raise FormatError("not a loader cache in glibc's format for little-endian machines")
        self.byte_order: int = byte_order
        self.start: int = base + HEADER_BYTES + ENTRY_BYTES * count
        self.end: int = self.start + string_bytes
        if count > MAX_ENTRIES or self.end > len(data) or (string_bytes and data[self.end - 1]):
            raise FormatError("the loader cache is broken: it is shorter than its header says")
        self.rows = data[base + HEADER_BYTES : self.start]
        # Strided views read one column of the table without a Python loop over its rows.
        words = memoryview(self.rows).cast("I")
        self.flags = memoryview(self.rows).cast("i")[::6]
        self.names: list[int] = words[1::6].tolist()
        self.paths: list[int] = words[2::6].tolist()
        self.hwcap_fields = memoryview(self.rows).cast("Q")[2::3]
        self.hwcaps: tuple[int, ...] = ()
        self.generator = b""
        self._orders: dict[int, bytes] = {}
        if extension:
            self._read_extension(extension)
        # Every string ends, at the latest with the table's last byte: the starts are enough.
        for offsets in (self.names, self.paths, self.hwcaps):
            self._check(offsets)
        for hwcap in set(self.hwcap_fields.tolist()):
            if is_extension(hwcap) and hwcap & HWCAP_INDEX >= len(self.hwcaps):
                raise FormatError("the loader cache is broken: it lacks a glibc-hwcaps name")

    def string(self, offset: int) -> bytes:
        """Return the string at an offset from the new header."""
        start = self.base + offset
        end = self.data.find(0, start, start + MAX_STRING_BYTES + 1)
        if end < 0:
            raise FormatError("the loader cache is broken: a name is too long")
        return self.data[start:end]

    def place(self, name: bytes, wanted: bytes, flags: int) -> tuple[list[int], int]:
        """Return the indices of the plain entries of a name and flags, and where a new one goes.

        wanted is the name's order.
        """
        low, high = 0, len(self.names)
        while low < high:
            middle = (low + high) // 2
            if self._order(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        same = []
        position = low
        for index in range(low, len(self.names)):
            if index - low >= MAX_SAME:
                raise FormatError("the loader cache has one name too often")
            # Equal in the loader's order is not the same name: libx.so.1 and libx.so.01.
            if self._order(index) != wanted:
                break
            if self.flags[index] >= flags:
                position = index + 1
            plain = self.flags[index] == flags and not self.hwcap_fields[index]
            if plain and self.string(self.names[index]) == name:
                same.append(index)
        return same, position

    def _order(self, index: int) -> bytes:
        """Return an entry's place in the order; most bisections pass the same entries."""
        key = self._orders.get(index)
        if key is None:
            name = self.string(self.names[index])
            if len(name) > MAX_NAME_BYTES:  # a file name: comparing long ones takes long
                raise FormatError("the loader cache is broken: a name is too long")
            key = self._orders[index] = order(name)
        return key

    def _check(self, offsets: Sequence[int]) -> None:
        low, high = self.start - self.base, self.end - self.base
        if offsets and not low <= min(offsets) <= max(offsets) < high:
            raise FormatError("the loader cache is broken: a string is outside its table")

    def _read_extension(self, offset: int) -> None:
        data = self.data
        if not self.end <= offset <= len(data) - 8:
            raise FormatError("the loader cache is broken: its extension is out of place")
        magic, count = unpack_from("<II", data, offset)
        if magic != EXTENSION_MAGIC or count > 2 or offset + 8 + 16 * count > len(data):
            raise FormatError("the loader cache has an extension nvhook does not know")
        for number in range(count):
            tag, _, start, size = unpack_from(SECTION, data, offset + 8 + 16 * number)
            if start > len(data) or size > len(data) - start:
                raise FormatError("the loader cache is broken: a section is out of range")
            if tag == TAG_GENERATOR and size <= MAX_STRING_BYTES:
                self.generator = data[start : start + size]
            elif tag == TAG_HWCAPS and size % 4 == 0 and size <= 4 * MAX_HWCAPS:
                self.hwcaps = unpack_from(f"<{size // 4}I", data, start)
            else:
                raise FormatError("the loader cache has a section nvhook does not know")


class Strings:
    """A string table in the making; offsets count from the new header."""

    __slots__ = ("_known", "end", "pieces")

    def __init__(self, start: int, existing: bytes = b"") -> None:
        self.end = start + len(existing)
        self.pieces = [existing]
        self._known: dict[bytes, int] = {}

    def add(self, text: bytes) -> int:
        """Return the offset of a string, appended unless it was before."""
        offset = self._known.get(text)
        if offset is None:
            offset = self._known[text] = self.end
            self.pieces += (text, b"\0")
            self.end += len(text) + 1
        return offset

    def row(self, name: bytes, path: bytes, flags: int, osversion: int, hwcap: int) -> bytes:
        """Return a table row; a name that ends its path is stored once, as ldconfig does.

        Raises: FormatError for numbers the row can't hold.
        """
        at = self.add(path)
        name_at = at + len(path) - len(name) if path.endswith(name) else self.add(name)
        if flags >> 31 not in (0, -1) or osversion >> 32 or hwcap >> 64:
            raise FormatError(f"a loader cache can't hold the numbers of {decode(name)}")
        return pack(ENTRY, flags, name_at, at, osversion, hwcap)


def assemble(
    rows: bytes, strings: Strings, hwcaps: list[int], generator: bytes, byte_order: int
) -> bytes:
    """Return the file made of these parts.

    Raises: FormatError if it is larger than a file nvhook reads.
    """
    text = b"".join(strings.pieces)
    count = len(rows) // ENTRY_BYTES
    end = HEADER_BYTES + len(rows) + len(text)
    padding = extension = b""
    if hwcaps or generator:
        padding = bytes(-end % 4)
        end += len(padding)
        extension = _extension(end, hwcaps, generator)
    if count > MAX_ENTRIES or len(hwcaps) > MAX_HWCAPS or end + len(extension) > MAX_BYTES:
        raise FormatError("the loader cache would become too large")
    header = pack(HEADER, MAGIC, count, len(text), byte_order, end if extension else 0)
    return b"".join((header, rows, text, padding, extension))


def encode(text: str) -> bytes:
    """Return a string as the file holds it, without its final NUL.

    Raises: FormatError.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as bad:
        raise FormatError(f"the name {text!r} can't be encoded") from bad
    if b"\0" in data or len(data) > MAX_STRING_BYTES:
        raise FormatError(f"the name {text!r} is too long or has a NUL in it")
    return data


def decode(data: bytes) -> str:
    """Return the text of a string of the file; bytes that are no UTF-8 survive encode."""
    return data.decode("utf-8", "surrogateescape")


def is_extension(hwcap: int) -> bool:
    """Tell whether an hwcap field is the index of a glibc-hwcaps name."""
    return (hwcap & ~HWCAP_INDEX & ~ISA_LEVELS) == HWCAP_EXTENSION


def order(name: bytes) -> bytes:
    """Return a key by which library names sort as they stand in a cache.

    That is backwards: digits before all else, their runs by value, then every other character.

    Raises: FormatError where the order depends on the machine, whose char may be signed, or on the
        directory: numbers that are too far apart have no order.
    """
    if not name.isascii():
        raise FormatError("a name in the loader cache is not ASCII: its order is not certain")
    key = name.translate(_BACKWARDS)
    start = key.find(_DIGIT)
    if start < 0:
        return key + _END
    parts: list[bytes] = []
    taken = 0
    while start >= 0:
        end = start + 1
        while key[end : end + 1] == _DIGIT:
            end += 1
        number = _wrapped(int(name[start:end]))
        parts += (key[taken : start + 1], (MAX_NUMBER - number).to_bytes(4, "big"))
        taken = end
        start = key.find(_DIGIT, end)
    parts += (key[taken:], _END)
    return b"".join(parts)


def _wrapped(number: int) -> int:
    """Return a number as glibc counts, in an int that wraps.

    It subtracts them, and the difference wraps, too: within half an int that is still an order.
    """
    value = ((number + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise FormatError(
            f"a name in the loader cache has the number {number}: its order is not certain"
        )
    return value


def _new_header(data: bytes) -> int:
    base = 0
    if data.startswith(OLD_MAGIC) and len(data) >= 16:
        # a header of 16 bytes, entries of 12, and the new header aligned to 8
        base = 16 + 12 * int(unpack_from("<I", data, 12)[0])
        base += -base % 8
    if base + HEADER_BYTES > len(data):
        raise FormatError("not a loader cache in glibc's format")
    return base


def _extension(offset: int, hwcaps: list[int], generator: bytes) -> bytes:
    sections = 2 if hwcaps else 1
    start = offset + 8 + 16 * sections
    names = pack(f"<{len(hwcaps)}I", *hwcaps)
    parts = [
        pack("<II", EXTENSION_MAGIC, sections),
        pack(SECTION, TAG_GENERATOR, 0, start + len(names), len(generator)),
    ]
    if hwcaps:
        parts.append(pack(SECTION, TAG_HWCAPS, 0, start, len(names)))
    return b"".join((*parts, names, generator))
