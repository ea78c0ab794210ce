"""Write small ELF shared libraries that a dynamic loader really loads.

The simulated driver needs some sixty libraries, some of them for another machine, and no compiler.
Each has a soname, needs libc.so.6 and exports one text object, ``nvhook_sim_text``.
Source: the System V ABI, chapters 4 and 5, and its processor supplements.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SYMBOL = "nvhook_sim_text"

# Large enough for every page size of the three machines (aarch64 kernels use up to 64 KiB).
ALIGN = 0x10000

_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_READ, _READ_WRITE = 4, 6
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB = 1, 4, 5, 6
_DT_STRSZ, _DT_SYMENT, _DT_SONAME = 10, 11, 14
_GLOBAL_OBJECT = 1 << 4 | 1
_SEGMENTS = 4


@dataclass(frozen=True, slots=True)
class Abi:
    """A machine's ELF class and number. All three are little-endian."""

    bits: int
    machine: int


ABIS = {"x86_64": Abi(64, 62), "aarch64": Abi(64, 183), "i386": Abi(32, 3)}


def shared_library(
    abi: Abi, soname: str, text: str, needed: tuple[str, ...] = ("libc.so.6",)
) -> bytes:
    """Return the bytes of a library whose only symbol, ``nvhook_sim_text``, holds text."""
    wide = abi.bits == 64
    strings, offsets = _string_table((SYMBOL, soname, *needed))
    value = text.encode() + b"\0"

    hash_at = _header_size(wide)
    symbols_at = _round_up(hash_at + 5 * 4, 8)
    strings_at = symbols_at + 2 * _symbol_size(wide)
    value_at = strings_at + len(strings)
    read_only_end = value_at + len(value)
    # The loader relocates the dynamic section in place: it gets a writable page of its own.
    dynamic_at = _round_up(read_only_end, 16)
    dynamic_address = ALIGN + dynamic_at

    entries = [(_DT_NEEDED, offsets[name]) for name in needed]
    entries += [
        (_DT_SONAME, offsets[soname]),
        (_DT_HASH, hash_at),
        (_DT_STRTAB, strings_at),
        (_DT_SYMTAB, symbols_at),
        (_DT_STRSZ, len(strings)),
        (_DT_SYMENT, _symbol_size(wide)),
        (0, 0),
    ]
    dynamic = b"".join(struct.pack("<QQ" if wide else "<II", *entry) for entry in entries)

    image = _file_header(abi)
    image += _segment(wide, _PT_LOAD, _READ, 0, 0, read_only_end, ALIGN)
    image += _segment(wide, _PT_LOAD, _READ_WRITE, dynamic_at, dynamic_address, len(dynamic), ALIGN)
    image += _segment(wide, _PT_DYNAMIC, _READ_WRITE, dynamic_at, dynamic_address, len(dynamic), 8)
    # Without it the loader takes an executable stack to be wanted, and glibc 2.41 refuses that.
    image += _segment(wide, _PT_GNU_STACK, _READ_WRITE, 0, 0, 0, 16)
    # One bucket, two symbols (the null one and ours): the chain is short.
    image += struct.pack("<5I", 1, 2, 1, 0, 0)
    image = image.ljust(symbols_at, b"\0")
    image += b"\0" * _symbol_size(wide)
    image += _symbol(wide, offsets[SYMBOL], value_at, len(value))
    image += strings + value
    return image.ljust(dynamic_at, b"\0") + dynamic


def _round_up(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit


def _header_size(wide: bool) -> int:
    return 64 + _SEGMENTS * 56 if wide else 52 + _SEGMENTS * 32


def _symbol_size(wide: bool) -> int:
    return 24 if wide else 16


def _string_table(names: tuple[str, ...]) -> tuple[bytes, dict[str, int]]:
    table = b"\0"
    offsets: dict[str, int] = {}
    for name in names:
        offsets.setdefault(name, len(table))
        table += name.encode() + b"\0"
    return table, offsets


def _file_header(abi: Abi) -> bytes:
    wide = abi.bits == 64
    ident = b"\x7fELF" + bytes((2 if wide else 1, 1, 1)) + b"\0" * 9
    sizes = (64, 56, 64) if wide else (52, 32, 40)
    return ident + struct.pack(
        "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH",
        3,  # ET_DYN
        abi.machine,
        1,
        0,
        sizes[0],
        0,
        0,
        sizes[0],
        sizes[1],
        _SEGMENTS,
        sizes[2],
        0,
        0,
    )


def _segment(
    wide: bool, kind: int, flags: int, offset: int, address: int, size: int, align: int
) -> bytes:
    if wide:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)
    return struct.pack("<IIIIIIII", kind, offset, address, address, size, size, flags, align)


def _symbol(wide: bool, name: int, address: int, size: int) -> bytes:
    # The section number only has to say "defined here": there are no section headers.
    if wide:
        return struct.pack("<IBBHQQ", name, _GLOBAL_OBJECT, 0, 1, address, size)
    return struct.pack("<IIIBBH", name, address, size, _GLOBAL_OBJECT, 0, 1)
