from __future__ import annotations

from pathlib import Path
from struct import pack, pack_into, unpack_from

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvhook.errors import FormatError
from nvhook.formats.ldcache import Entry, LdCache, parse, render
from nvhook.formats.ldcache_layout import MAX_BYTES, MAX_STRING_BYTES, order
from nvhook.formats.ldcache_splice import splice
from nvhook.record import replace

DATA = Path(__file__).parent.parent / "data" / "ldcache"
# Written by ldconfig of glibc 2.36 for one small root, in its formats "new", "compat" and "old".
NEW = (DATA / "glibc-2.36-new.cache").read_bytes()
COMPAT = (DATA / "glibc-2.36-compat.cache").read_bytes()
OLD = (DATA / "glibc-2.36-old.cache").read_bytes()

X86_64, I386 = 0x0303, 0x0003
LIBDIR = "/usr/lib/x86_64-linux-gnu"
DRIVER = [
    ("libcuda.so.1", f"{LIBDIR}/libcuda.so.550.54.14", X86_64),
    ("libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.550.54.14", I386),
    ("libnvidia-ml.so.1", f"{LIBDIR}/libnvidia-ml.so.550.54.14", X86_64),
]


def merged(cache: LdCache, additions: list[tuple[str, str, int]]) -> LdCache:
    """Merge the slow and obvious way."""
    wanted: dict[tuple[str, int], str] = {}
    for name, path, flags in additions:
        wanted.setdefault((name, flags), path)
    kept = [e for e in cache.entries if e.hwcap or (e.name, e.flags) not in wanted]
    new = [Entry(name, path, flags) for (name, flags), path in wanted.items()]
    return replace(cache, entries=(*kept, *new))


def plain(entry: Entry) -> tuple[str, str, int]:
    return entry.name, entry.path, entry.flags


def test_a_real_cache_is_read_entry_by_entry() -> None:
    cache = parse(NEW)

    assert cache.generator.startswith("ldconfig (")
    assert cache.hwcaps == ("x86-64-v2", "x86-64-v3")
    assert [
        (e.name, e.path.removeprefix("/usr/lib/"), e.flags, cache.subdirectory(e))
        for e in cache.entries
        if e.name.startswith(("libcuda.so", "libfoo.so"))
    ] == [
        ("libfoo.so.10", "x86_64-linux-gnu/libfoo.so.10", X86_64, ""),
        (
            "libfoo.so.9",
            "x86_64-linux-gnu/glibc-hwcaps/x86-64-v2/libfoo.so.9",
            X86_64,
            "x86-64-v2",
        ),
        (
            "libfoo.so.9",
            "x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libfoo.so.9",
            X86_64,
            "x86-64-v3",
        ),
        ("libfoo.so.09", "x86_64-linux-gnu/libfoo.so.09", X86_64, ""),
        ("libfoo.so.9", "x86_64-linux-gnu/libfoo.so.9", X86_64, ""),
        ("libfoo.so.9", "odd/libfoo.so.9", X86_64, ""),
        ("libfoo.so.9", "i386-linux-gnu/libfoo.so.9", I386, ""),
        ("libcuda.so.1", "x86_64-linux-gnu/libcuda.so.1", X86_64, ""),
    ]


def test_the_old_prefix_does_not_change_what_is_read() -> None:
    assert COMPAT.startswith(b"ld.so-1.7.0\0")
    assert parse(COMPAT) == parse(NEW)


def test_the_new_header_is_aligned_behind_an_odd_old_table() -> None:
    new = splice(b"", DRIVER)

    assert parse(b"ld.so-1.7.0\0" + pack("<IIII", 1, 1, 0, 0) + bytes(4) + new) == parse(new)


def test_an_isa_level_does_not_hide_the_subdirectory() -> None:
    entry = Entry("liba.so", "/liba.so", X86_64, 1 << 62 | 3 << 32 | 1)

    cache = parse(render(LdCache((entry,), ("one", "two"))))

    assert cache.subdirectory(cache.entries[0]) == "two"
    with pytest.raises(FormatError, match="lacks a glibc-hwcaps name"):
        parse(patched(render(cache), 48 + 16, "<I", 2))


def test_strings_are_as_long_as_a_path_may_be() -> None:
    path = "/" + "x" * (MAX_STRING_BYTES - 1)

    data = splice(b"", [("liba.so", path, 1)])

    assert parse(data).entries[0].path == path
    with pytest.raises(FormatError, match="too long"):
        parse(data.replace(b"\0liba.so", b"xliba.so"))


def test_render_keeps_a_real_cache_and_its_size() -> None:
    assert parse(render(parse(NEW))) == parse(NEW)
    assert len(render(parse(NEW))) == len(NEW)


def test_render_sorts() -> None:
    cache = parse(NEW)

    # the two equal entries of libfoo.so.9, and libfoo.so.09, keep the order they come in
    swapped = sorted(cache.entries, key=lambda entry: entry.flags)

    assert parse(render(replace(cache, entries=tuple(swapped)))) == cache


@pytest.mark.parametrize("data", [NEW, COMPAT, b""])
def test_splice_is_the_full_rebuild(data: bytes) -> None:
    assert parse(splice(data, DRIVER)) == parse(render(merged(parse(data), DRIVER)))


@pytest.mark.parametrize("data", [NEW, COMPAT, b""])
def test_a_second_splice_changes_nothing(data: bytes) -> None:
    once = splice(data, DRIVER)

    assert once != data
    assert splice(once, DRIVER) is once
    assert splice(once, []) is once


def test_an_empty_cache_becomes_one() -> None:
    cache = parse(splice(b"", DRIVER))

    assert [plain(e) for e in cache.entries] == [DRIVER[2], DRIVER[0], DRIVER[1]]
    assert cache.hwcaps == ()
    assert parse(b"") == LdCache(())


def test_the_same_name_and_flags_are_replaced_and_hwcaps_stay() -> None:
    cache = parse(splice(NEW, [("libfoo.so.9", "/opt/libfoo.so.9.1", X86_64)]))

    assert [
        (e.path, e.flags, cache.subdirectory(e)) for e in cache.entries if e.name == "libfoo.so.9"
    ] == [
        (f"{LIBDIR}/glibc-hwcaps/x86-64-v2/libfoo.so.9", X86_64, "x86-64-v2"),
        (f"{LIBDIR}/glibc-hwcaps/x86-64-v3/libfoo.so.9", X86_64, "x86-64-v3"),
        ("/opt/libfoo.so.9.1", X86_64, ""),
        ("/usr/lib/i386-linux-gnu/libfoo.so.9", I386, ""),
    ]


def test_replacing_more_than_is_added_makes_a_smaller_table() -> None:
    count = len(parse(NEW).entries)

    cache = parse(splice(NEW, [("libfoo.so.9", "/opt/libfoo.so.9", X86_64)]))

    assert len(cache.entries) == count - 1
    assert cache.hwcaps == ("x86-64-v2", "x86-64-v3")


def test_the_first_addition_of_a_name_counts() -> None:
    cache = parse(splice(b"", [("liba.so", "/1/liba.so", 1), ("liba.so", "/2/liba.so", 1)]))

    assert [e.path for e in cache.entries] == ["/1/liba.so"]


def test_legacy_hwcaps_come_by_number_of_bits_before_plain_entries() -> None:
    hwcaps = (0, 1 << 3, 1 << 5, 3)
    entries = tuple([Entry("liba.so", f"/{hwcap}/liba.so", X86_64, hwcap) for hwcap in hwcaps])

    cache = parse(splice(render(LdCache(entries)), [("liba.so", "/new/liba.so", X86_64)]))

    assert [e.hwcap for e in cache.entries] == [3, 1 << 5, 1 << 3, 0]
    assert cache.entries[-1].path == "/new/liba.so"


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (b"libfoo.so.9", b"libfoo.so.10"),
        (b"libfoo.so", b"libfoo.so.1"),
        (b"libfoo-x.so", b"libfoo-1.so"),
        (b"libfoo+.so", b"libfoo-.so"),
        (b"libc12a", b"libc12b"),
        (b"libc12", b"libc120"),
        (b"libc0129", b"libc130"),
        # numbers wrap like a C int
        (b"libfoo-3345678901", b"libfoo-12345678901"),
        (b"libfoo-12345678901", b"libfoo-5"),
        (b"", b"a"),
    ],
)
def test_names_are_ordered_as_by_the_loader(less: bytes, more: bytes) -> None:
    assert order(more) < order(less)  # a cache is backwards


@pytest.mark.parametrize(("one", "other"), [(b"liba.1", b"liba.01"), (b"a", b"a"), (b"00", b"0")])
def test_equal_numbers_have_one_place(one: bytes, other: bytes) -> None:
    assert order(one) == order(other)


@pytest.mark.parametrize("number", [b"1073741824", b"2147483647", b"2147483648"])
def test_numbers_that_may_be_too_far_apart_are_refused(number: bytes) -> None:
    with pytest.raises(FormatError, match="order is not certain"):
        order(b"libfoo-" + number + b".so.1")


def test_an_order_that_depends_on_the_machine_is_refused() -> None:
    data = splice(b"", [("libee.so", "/libee.so", 1)]).replace(b"ee", "é".encode())

    assert parse(data).entries[0].name == "libé.so"
    with pytest.raises(FormatError, match="not ASCII"):
        splice(b"", [("libé.so", "/libé.so", 1)])
    with pytest.raises(FormatError, match="not ASCII"):
        splice(data, [("libcuda.so.1", "/libcuda.so.1", 1)])


def test_undecodable_paths_survive() -> None:
    data = splice(b"", [("liba.so", "/x/\udcff/liba.so", 1)])

    assert b"/x/\xff/liba.so\0" in data
    assert parse(data).entries[0].path == "/x/\udcff/liba.so"


def patched(data: bytes, offset: int, form: str, *values: int) -> bytes:
    copy = bytearray(data)
    pack_into(form, copy, offset, *values)
    return bytes(copy)


EXTENSION = unpack_from("<I", NEW, 32)[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x", "not a loader cache"),
        (NEW[:47], "not a loader cache"),
        (OLD, "not a loader cache"),
        (COMPAT[:15], "not a loader cache"),
        (patched(COMPAT, 12, "<I", 2**32 - 1), "not a loader cache"),
        (patched(NEW, 28, "<B", 3), "little-endian"),
        (patched(NEW, 17, "<B", 0x32), "not a loader cache"),
        (patched(NEW, 20, "<I", 2**32 - 1), "shorter than its header"),
        (patched(NEW, 24, "<I", 2**32 - 1), "shorter than its header"),
        (patched(NEW, 24, "<I", 20), "shorter than its header"),
        (patched(NEW, 48 + 4, "<I", 2**32 - 1), "outside its table"),
        (patched(NEW, 48 + 8, "<I", 47), "outside its table"),
        (patched(NEW, 32, "<I", len(NEW)), "out of place"),
        (patched(NEW, 32, "<I", 48), "out of place"),
        (patched(NEW, 32, "<I", 0), "lacks a glibc-hwcaps name"),
        (patched(NEW, EXTENSION, "<I", 1), "does not know"),
        (patched(NEW, EXTENSION + 4, "<I", 3), "does not know"),
        (NEW[: EXTENSION + 39], "does not know"),
        (patched(NEW, EXTENSION + 8, "<I", 9), "section nvhook does not know"),
        (patched(NEW, EXTENSION + 16, "<I", 2**32 - 1), "section is out of range"),
        (patched(NEW, EXTENSION + 36, "<I", 4000), "section is out of range"),
        (patched(NEW, EXTENSION + 40, "<I", 2**32 - 1), "outside its table"),
        (bytes(MAX_BYTES + 1), "larger than 16 MiB"),
    ],
)
def test_broken_files_are_refused(data: bytes, message: str) -> None:
    for use in (parse, lambda data: splice(data, DRIVER)):
        with pytest.raises(FormatError, match=message):
            use(data)


def test_overlapping_long_strings_do_not_fill_the_memory() -> None:
    count = 1 << 15
    text = bytes([97]) * (MAX_STRING_BYTES - 1) + b"\0"
    rows = pack("<iIIIQ", 1, 48 + 24 * count, 48 + 24 * count, 0, 0) * count
    header = pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", count, len(text), 2, 0)

    with pytest.raises(FormatError, match="overlap"):
        parse(header + rows + text)


@pytest.mark.parametrize(
    "addition",
    [
        ("", "/lib/liba.so", 1),
        ("liba.so", "lib/liba.so", 1),
        ("lib\0a.so", "/lib/liba.so", 1),
        ("liba.so", "/lib/lib\0a.so", 1),
        ("liba.so", "/" + "x" * MAX_STRING_BYTES, 1),
        ("liba.so", "/\ud800", 1),
        ("liba.so", "/liba.so", 1 << 31),
        ("liba.so", "/liba.so", -(1 << 31) - 1),
    ],
)
def test_additions_that_no_cache_can_hold_are_refused(addition: tuple[str, str, int]) -> None:
    with pytest.raises(FormatError):
        splice(NEW, [addition])


@pytest.mark.parametrize("entry", [Entry("a", "/a", 1, 1 << 64), Entry("a", "/a", 1, 0, 1 << 32)])
def test_numbers_that_no_cache_can_hold_are_refused(entry: Entry) -> None:
    with pytest.raises(FormatError, match="can't hold"):
        render(LdCache((entry,)))


def test_a_missing_hwcaps_name_is_refused() -> None:
    with pytest.raises(FormatError, match="no glibc-hwcaps name"):
        render(LdCache((Entry("a", "/a", 1, 1 << 62),)))


def only_format_errors(data: bytes) -> None:
    try:
        cache = parse(data)
        again = splice(data, DRIVER)
    except FormatError:
        return
    assert {plain(e) for e in parse(again).entries} >= {*DRIVER}
    assert len(parse(again).entries) <= len(cache.entries) + len(DRIVER)


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from([b"", NEW[:20], COMPAT[:12], NEW[:400]]))
def test_arbitrary_bytes_raise_only_format_errors(data: bytes, head: bytes) -> None:
    only_format_errors(head + data)


@settings(deadline=None)
@given(
    st.sampled_from([NEW, COMPAT]),
    st.lists(st.tuples(st.integers(0, len(COMPAT)), st.binary(min_size=1, max_size=8)), max_size=5),
    st.integers(0, len(COMPAT)),
)
def test_mutated_real_caches_raise_only_format_errors(
    data: bytes, changes: list[tuple[int, bytes]], length: int
) -> None:
    for offset, new in changes:
        data = data[:offset] + new + data[offset + len(new) :]
    only_format_errors(data)
    only_format_errors(data[:length])


NAMES = st.text("ab.019-", min_size=1, max_size=6)
FLAGS = st.sampled_from([X86_64, I386, 1])
PATHS = st.builds("{}/{}".format, st.sampled_from(["/lib", "/usr/lib", ""]), NAMES)
HWCAPS = st.sampled_from([0, 0, 0, 1 << 62, 1 << 62 | 1, 7, 1 << 5])
ENTRIES = st.lists(st.builds(Entry, NAMES, PATHS, FLAGS, HWCAPS), max_size=30)


@settings(deadline=None)
@given(ENTRIES, st.lists(st.tuples(NAMES, PATHS, FLAGS), max_size=8), st.booleans())
def test_random_merges_are_the_full_rebuild(
    entries: list[Entry], additions: list[tuple[str, str, int]], with_generator: bool
) -> None:
    generator = "ldconfig" if with_generator else ""
    data = render(LdCache(tuple(entries), ("v2", "v3"), generator))
    expected = merged(parse(data), additions)

    result = splice(data, additions)

    assert splice(result, additions) is result
    found = parse(result)
    assert (found.hwcaps, found.generator) == (expected.hwcaps, expected.generator)
    by_position = parse(render(expected)).entries
    assert len(found.entries) == len(by_position)
    # names that differ only in leading zeros have no order of their own: as sets
    assert sorted(map(repr, found.entries)) == sorted(map(repr, by_position))
    for one, other in zip(found.entries, by_position, strict=True):
        assert order(one.name.encode()) == order(other.name.encode())
        assert one.flags == other.flags


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        (b"libcuda.so." + b"0" * 3900 + b"1", 1, "a name is too long"),
        (b"libcuda.so.1", 60_000, "one name too often"),
    ],
)
def test_a_cache_made_to_take_long_is_refused(name: bytes, rows: int, message: str) -> None:
    """All equal in the loader's order: every comparison would have to look at all of them."""
    first = 48 + 24 * rows
    table = pack("<iIIIQ", 1, first, first, 0, 0) * rows
    header = pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", rows, len(name) + 1, 2, 0)

    with pytest.raises(FormatError, match=message):
        splice(header + table + name + b"\0", DRIVER)
