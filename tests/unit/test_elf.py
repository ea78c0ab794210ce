import os
import sys
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvhook.errors import FormatError
from nvhook.formats.elf import (
    EM_386,
    EM_AARCH64,
    EM_PPC64,
    EM_X86_64,
    ElfLibrary,
    cache_flags,
    parse,
    parse_file,
)


def library(
    soname: str = "",
    needed: tuple[str, ...] = (),
    machine: int = EM_X86_64,
    bits: int = 64,
    address: int = 0,
) -> bytes:
    """Return a shared library; ``address`` is where its first byte is loaded."""
    word, header_bytes, program_bytes = ("Q", 64, 56) if bits == 64 else ("I", 52, 32)
    strings = b"\0"
    tags = []
    for tag, name in [(14, soname), *((1, name) for name in needed)]:
        if name:
            tags.append((tag, len(strings)))
            strings += name.encode() + b"\0"
    dynamic_at = header_bytes + 2 * program_bytes
    dynamic_bytes = (len(tags) + 3) * (bits // 4)
    strings_at = dynamic_at + dynamic_bytes
    total = strings_at + len(strings)
    tags += [(5, address + strings_at), (10, len(strings)), (0, 0)]
    ident = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    header = ident + pack(
        f"<HHI{word}{word}{word}IHHHHHH",
        *(3, machine, 1, 0, header_bytes, 0, 0, header_bytes, program_bytes, 2, 0, 0, 0),
    )
    segments = _segment(bits, 1, 0, address, total)
    segments += _segment(bits, 2, dynamic_at, address + dynamic_at, dynamic_bytes)
    dynamic = b"".join(pack(f"<{word}{word}", *pair) for pair in tags)
    return header + segments + dynamic + strings


def _segment(bits: int, kind: int, offset: int, address: int, size: int) -> bytes:
    if bits == 64:
        return pack("<IIQQQQQQ", kind, 4, offset, address, address, size, size, 8)
    return pack("<IIIIIIII", kind, offset, address, address, size, size, 4, 4)


LIBCUDA = library("libcuda.so.1", ("libc.so.6", "libm.so.6"))


@pytest.mark.parametrize(("machine", "bits"), [(EM_X86_64, 64), (EM_AARCH64, 64), (EM_386, 32)])
def test_soname_and_needed_are_read_in_both_classes(machine: int, bits: int) -> None:
    data = library("libcuda.so.1", ("libc.so.6", "libm.so.6"), machine, bits, address=0x400000)

    assert parse(data) == ElfLibrary("libcuda.so.1", machine, bits, ("libc.so.6", "libm.so.6"))


def test_a_library_without_names_has_an_empty_soname() -> None:
    assert parse(library()) == ElfLibrary("", EM_X86_64, 64, ())


def test_the_interpreter_itself_is_read() -> None:
    with open(sys.executable, "rb") as file:
        found = parse(file.read())

    assert any(name.startswith("libc.so") for name in found.needed)
    assert found.bits == 64


def test_a_large_file_is_read_in_small_pieces() -> None:
    pieces = []
    size = 100 << 20
    data = LIBCUDA + os.urandom(64)

    def read(offset: int, length: int) -> bytes:
        pieces.append(length)
        return data[offset : offset + length].ljust(min(length, size - offset), b"\0")

    assert parse_file(read).soname == "libcuda.so.1"
    assert sum(pieces) < 64 << 10


@pytest.mark.parametrize(
    ("machine", "bits", "needed", "flags"),
    [
        (EM_X86_64, 64, ("libc.so.6",), 0x0303),
        (EM_X86_64, 64, (), 0x0303),
        (EM_X86_64, 32, (), 0x0803),
        (EM_386, 32, ("libc.so.6",), 0x0003),
        (EM_386, 32, ("libdl.so.2", "libm.so.6"), 0x0003),
        (EM_386, 32, ("libdl.so.2",), 0x0001),
        (EM_AARCH64, 64, (), 0x0A03),
        (EM_PPC64, 64, (), 0x0503),
        (243, 64, (), None),
        (EM_386, 64, ("libc.so.6",), None),
    ],
)
def test_cache_flags(machine: int, bits: int, needed: tuple[str, ...], flags: int | None) -> None:
    assert cache_flags(ElfLibrary("x", machine, bits, needed)) == flags


def changed(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


def test_no_size_in_the_file_makes_a_read_large() -> None:
    strings_size = LIBCUDA.rindex(pack("<Q", 10)) + 8
    pieces = []

    def read(offset: int, length: int) -> bytes:
        pieces.append(length)
        return data[offset : offset + length]

    data = changed(LIBCUDA, strings_size, pack("<Q", 1 << 40))

    assert parse_file(read).soname == "libcuda.so.1"
    assert max(pieces) <= 4096


def test_offsets_beyond_any_file_are_refused_before_the_read(tmp_path: Path) -> None:
    (tmp_path / "lib").write_bytes(changed(LIBCUDA, 32, b"\xff" * 8))
    fd = os.open(tmp_path / "lib", os.O_RDONLY)
    try:
        with pytest.raises(FormatError, match="truncated"):
            parse_file(lambda offset, size: os.pread(fd, size, offset))
    finally:
        os.close(fd)


def test_the_dynamic_section_ends_with_its_null_entry() -> None:
    needed = LIBCUDA.index(pack("<QQ", 1, 1 + len("libcuda.so.1") + 1))

    dynamic = LIBCUDA.index(pack("<QQ", 14, 1))
    table = LIBCUDA.index(pack("<Q", 5), needed)
    swapped = LIBCUDA[table : table + 32] + bytes(16) + LIBCUDA[needed : needed + 32]
    assert parse(changed(LIBCUDA, dynamic, swapped)).needed == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an ELF file"),
        (b"/* GNU ld script */", "not an ELF file"),
        (LIBCUDA[:4], "header is broken"),
        (LIBCUDA[:63], "header is broken"),
        (changed(LIBCUDA, 4, b"\x03"), "header is broken"),
        (changed(LIBCUDA, 5, b"\x02"), "not little-endian"),
        (changed(LIBCUDA, 16, b"\x01"), "neither a shared library nor a program"),
        (changed(LIBCUDA, 32, b"\xff" * 8), "truncated"),
        (changed(LIBCUDA, 54, b"\x20\x00"), "program headers are broken"),
        (changed(LIBCUDA, 56, b"\xff\xff"), "program headers are broken"),
        (changed(LIBCUDA, 64 + 56 + 32, b"\xff" * 8), "dynamic segment is too large"),
        (changed(LIBCUDA, 64, b"\x06"), "in no loaded segment"),
        (LIBCUDA[:-1], "has no end"),
        (LIBCUDA[:190], "truncated"),
        (changed(LIBCUDA, 176 + 8, b"\xff" * 8), "has no end"),
        (changed(LIBCUDA, 176 + 3 * 16, b"\x7f"), "no dynamic string table"),
    ],
)
def test_broken_files_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse(data)


def only_format_errors(data: bytes) -> None:
    try:
        found = parse(data)
    except FormatError:
        return
    assert found.bits in {32, 64}
    assert all("\0" not in name for name in (found.soname, *found.needed))


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_raise_only_format_errors(data: bytes) -> None:
    only_format_errors(b"\x7fELF" + data)


@settings(deadline=None)
@given(
    st.sampled_from([LIBCUDA, library("libcuda.so.1", ("libc.so.6",), EM_386, 32)]),
    st.lists(st.tuples(st.integers(0, 330), st.binary(min_size=1, max_size=8)), max_size=4),
    st.integers(0, 340),
)
def test_mutated_libraries_raise_only_format_errors(
    data: bytes, changes: list[tuple[int, bytes]], length: int
) -> None:
    for offset, new in changes:
        data = changed(data, offset, new)
    only_format_errors(data)
    only_format_errors(data[:length])
