"""CUDA forward compatibility: the note in an image's libcuda, and the decision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.core.compat import CompatDirectory, is_wanted
from nvhook.core.edits import CachedLibrary, LdCacheUpdate
from nvhook.core.layout import COMPAT_DIRECTORY
from nvhook.core.planner import plan_request
from nvhook.errors import FormatError
from nvhook.formats.cuda_note import CudaNote, read_note
from nvhook.record import replace
from nvhook.sim.elf_writer import ABIS, shared_library
from tests.cuda_note import note, with_note, with_section
from tests.unit.test_planner import DEBIAN, inventory

IMAGE = shared_library(ABIS["x86_64"], "libcuda.so.1", "compat")


def reading(data: bytes) -> CudaNote | None:
    return read_note(lambda offset, size: data[offset : offset + size])


def test_the_note_is_read() -> None:
    assert reading(with_note(IMAGE, [535, 550], "13.1")) == CudaNote("13.1", (535, 550))
    padded = note(b'{"CUDA Version": "12.4"}\0\0\0', b"NVIDIA Corporation")
    assert reading(with_section(IMAGE, padded)) == CudaNote("12.4", ())


def test_without_the_note_there_is_none() -> None:
    assert reading(IMAGE) is None
    assert reading(with_section(IMAGE, note(b"{}"), b".note.other")) is None
    assert reading(with_section(IMAGE, note(b"{}"), kind=1)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        shared_library(ABIS["i386"], "libcuda.so.1", "32 bits"),
        with_note(IMAGE, [550])[:-1],
        with_section(IMAGE, b"short"),
        with_section(IMAGE, note(b"{}", b"Somebody Else\0")),
        with_section(IMAGE, note(b"no json")),
        with_section(IMAGE, note(b"[]")),
        with_section(IMAGE, note(b'{"Driver": "550"}')),
        with_section(IMAGE, note(b'{"Driver": ["550"]}')),
        with_section(IMAGE, note(b'{"CUDA Version": 13}')),
        with_section(IMAGE, note(b"{}")[:-1]),
        with_section(IMAGE, note(b"{}").replace(b"\x02\0\0\0", b"\x09\0\0\0", 1)),
        with_section(IMAGE, bytes(70_000)),
    ],
)
def test_a_broken_note_is_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        reading(data)


@given(st.binary(max_size=200), st.integers(0, 1 << 16), st.binary(max_size=8))
def test_arbitrary_bytes_raise_only_format_errors(text: bytes, place: int, junk: bytes) -> None:
    data = bytearray(with_section(IMAGE, note(text)))
    place %= len(data)
    data[place : place + len(junk)] = junk
    try:
        found = reading(bytes(data))
    except FormatError:
        pass
    else:
        assert found is None or isinstance(found, CudaNote)


@pytest.mark.parametrize(
    ("compat", "drivers", "cuda", "host", "host_cuda", "wanted"),
    [
        # a note that lists the host's branch, and a newer version
        ("590.44.01", (535, 550), "13.1", "550.54.14", "12.4", True),
        ("590.44.01", (535, 550), "13.1", "560.35.03", "12.6", False),
        ("590.44.01", (590,), "13.1", "590.40.01", "13.1", True),
        ("590.44.01", (590,), "13.1", "590.44.01", "13.1", False),
        ("590.44.01", (590,), "13.1", "590.100.02", "13.1", False),
        ("535.054.03", (535,), "12.2", "535.54.2", "12.2", True),
        # a note with nothing but the CUDA version
        ("590.44.01", (), "13.1", "550.54.14", "12.4", True),
        ("590.44.01", (), "13.1", "590.44.01", "13.1", False),
        ("590.44.01", (), "13.1", "700.10", "", False),
        # no note: the major alone
        ("560.35.03", (), "", "550.54.14", "12.4", True),
        ("550.90.07", (), "", "550.54.14", "12.4", False),
        ("1000.1", (), "", "999.1", "", True),  # numbers, not text
        ("535.104.05", (), "", "550.54.14", "12.4", False),
    ],
)
def test_the_decision(
    compat: str, drivers: tuple[int, ...], cuda: str, host: str, host_cuda: str, wanted: bool
) -> None:
    assert is_wanted(CompatDirectory(compat, (), drivers, cuda), host, host_cuda) is wanted


def test_the_images_libraries_come_first_and_only_for_compute() -> None:
    own = CachedLibrary("libcuda.so.1", f"{COMPAT_DIRECTORY}/libcuda.so.1", 0x0303)

    def entries(version: str, capability: str) -> tuple[CachedLibrary, ...]:
        layout = replace(DEBIAN, compat=CompatDirectory(version, (own,)))
        plan = plan_request((capability,), (), inventory(), layout)
        return next(e.libraries for e in plan.edits if isinstance(e, LdCacheUpdate))

    assert entries("560.35.03", "compute")[0] == own
    assert own not in entries("560.35.03", "utility")
    assert own not in entries("545.23.08", "compute")
