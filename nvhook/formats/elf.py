"""What a loader cache needs to know of an ELF file: soname, machine, needed libraries.

Only the headers, the dynamic segment and the strings it names are read: libcuda is 100 MB.
Source: elf.h, System V ABI chapter 5; cache flags: glibc's ldconfig.
"""

from __future__ import annotations

from struct import unpack_from

from nvhook.errors import FormatError
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # read(offset, size): up to size bytes, fewer at the end of the file
    Read = Callable[[int, int], bytes]

EM_386 = 3
EM_PPC64 = 21
EM_ARM = 40
EM_X86_64 = 62
EM_AARCH64 = 183

# What marks a 32-bit x86 library as one of glibc and not of libc5. Source: ldconfig.
GLIBC_LIBRARIES = ("libc.so.6", "libm.so.6")
FLAG_ELF = 0x0001
FLAG_ELF_LIBC6 = 0x0003
LIBC6_FLAGS = {
    (EM_X86_64, 64): 0x0303,
    (EM_X86_64, 32): 0x0803,
    (EM_AARCH64, 64): 0x0A03,
    (EM_PPC64, 64): 0x0503,
}

MAX_PROGRAM_HEADERS = 1024
MAX_DYNAMIC_BYTES = 1 << 16
MAX_STRING_BYTES = 4096

_TYPES = (2, 3)  # ET_EXEC, ET_DYN
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 0, 1, 5, 10, 14

# (type, machine, phoff, phentsize, phnum); (p_type, p_offset, p_vaddr, p_filesz) from p_type on
_HEADER = {32: "<16xHH8xI10xHH", 64: "<16xHH12xQ14xHH"}
_HEADER_BYTES = {32: 52, 64: 64}
_PROGRAM_HEADER = {32: "<IIIxxxxI", 64: "<IxxxxQQxxxxxxxxQ"}
_PROGRAM_HEADER_BYTES = {32: 32, 64: 56}


@record
class ElfLibrary:
    """A shared library or a program; ``soname`` is empty where it has none, ``bits`` 32 or 64."""

    soname: str
    machine: int
    bits: int
    needed: tuple[str, ...]


def parse(data: bytes) -> ElfLibrary:
    """Read an ELF file given whole.

    Raises: FormatError.
    """
    return parse_file(lambda offset, size: data[offset : offset + size])


def parse_file(read: Read) -> ElfLibrary:
    """Read an ELF file piece by piece through ``read(offset, size)``.

    Raises: FormatError, and whatever ``read`` raises.
    """
    head = read(0, 64)
    if head[:4] != b"\x7fELF":
        raise FormatError("not an ELF file")
    bits = {1: 32, 2: 64}.get(head[4] if len(head) > 4 else 0)
    if bits is None or len(head) < _HEADER_BYTES[bits]:
        raise FormatError("the ELF header is broken")
    if head[5] != 1:
        raise FormatError("the ELF file is not little-endian")
    kind, machine, offset, entry_bytes, count = unpack_from(_HEADER[bits], head)
    if kind not in _TYPES:
        raise FormatError("the ELF file is neither a shared library nor a program")
    if entry_bytes != _PROGRAM_HEADER_BYTES[bits] or count > MAX_PROGRAM_HEADERS:
        raise FormatError("the ELF program headers are broken")
    table = _exactly(read, offset, entry_bytes * count)
    headers = [
        unpack_from(_PROGRAM_HEADER[bits], table, entry_bytes * number) for number in range(count)
    ]
    for segment, start, _, size in headers:
        if segment == _PT_DYNAMIC:
            soname, needed = _dynamic_strings(read, bits, headers, start, size)
            return ElfLibrary(soname, machine, bits, needed)
    return ElfLibrary("", machine, bits, ())


def cache_flags(library: ElfLibrary) -> int | None:
    """Return the flags ldconfig gives the library, or None for a machine nvhook does not know.

    64-bit libraries count as glibc's whatever they need; a 32-bit x86 one only if it needs
    glibc's libc or libm.
    """
    if (library.machine, library.bits) == (EM_386, 32):
        glibc = any(name in GLIBC_LIBRARIES for name in library.needed)
        return FLAG_ELF_LIBC6 if glibc else FLAG_ELF
    return LIBC6_FLAGS.get((library.machine, library.bits))


def _dynamic_strings(
    read: Read, bits: int, headers: list[tuple[int, ...]], start: int, size: int
) -> tuple[str, tuple[str, ...]]:
    if size > MAX_DYNAMIC_BYTES:
        raise FormatError("the ELF dynamic segment is too large")
    word = "Q" if bits == 64 else "I"
    data = _exactly(read, start, size)
    pairs = unpack_from(f"<{size // (bits // 4) * 2}{word}", data)
    soname, table, table_bytes = None, None, 0
    needed = []
    for tag, value in zip(pairs[::2], pairs[1::2], strict=True):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            needed.append(value)
        elif tag == _DT_SONAME:
            soname = value
        elif tag == _DT_STRTAB:
            table = value
        elif tag == _DT_STRSZ:
            table_bytes = value
    if soname is None and not needed:
        return "", ()
    if table is None:
        raise FormatError("the ELF file has no dynamic string table")
    offset = _file_offset(headers, table)

    def string(index: int) -> str:
        return _string(read, offset + index, table_bytes - index)

    return "" if soname is None else string(soname), tuple([string(index) for index in needed])


def _file_offset(headers: list[tuple[int, ...]], address: int) -> int:
    for segment, start, virtual, size in headers:
        if segment == _PT_LOAD and virtual <= address < virtual + size:
            return start + address - virtual
    raise FormatError("the ELF dynamic string table is in no loaded segment")


def _exactly(read: Read, offset: int, size: int) -> bytes:
    # a signed 64-bit offset is what pread takes: anything above is no file position
    data = read(offset, size) if offset < 1 << 62 else b""
    if len(data) != size:
        raise FormatError("the ELF file is truncated")
    return data


def _string(read: Read, offset: int, available: int) -> str:
    data = read(offset, min(available, MAX_STRING_BYTES)) if 0 < available < 1 << 62 else b""
    end = data.find(0)
    if end < 0:
        raise FormatError("a name in the ELF file has no end")
    return data[:end].decode("utf-8", "surrogateescape")
