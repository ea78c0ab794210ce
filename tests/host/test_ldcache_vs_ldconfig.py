"""The machine's own ldconfig says what a loader cache must hold, its loader what it is good for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING

import pytest

from nvhook.formats import elf
from nvhook.formats.ldcache import LdCache, parse, render
from nvhook.formats.ldcache_splice import splice
from nvhook.sim.elf_writer import Abi, shared_library

if TYPE_CHECKING:
    from collections.abc import Callable

LDCONFIG = "/sbin/ldconfig"
LIBDIR = "/usr/lib/x86_64-linux-gnu"
LIBDIR32 = "/usr/lib/i386-linux-gnu"
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
VERSION = "550.54.14"
SONAMES = (
    "libcuda.so.1",
    "libcudadebugger.so.1",
    "libEGL_nvidia.so.0",
    "libGLX_nvidia.so.0",
    "libnvcuvid.so.1",
    "libnvidia-allocator.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-encode.so.1",
    f"libnvidia-glcore.so.{VERSION}",
    "libnvidia-ml.so.1",
    "libnvidia-opencl.so.1",
    f"libnvidia-rtcore.so.{VERSION}",
    "libnvoptix.so.1",
)

pytestmark = pytest.mark.root


def library(
    soname: str, needed: tuple[str, ...] = (), machine: int = elf.EM_X86_64, bits: int = 64
) -> bytes:
    return shared_library(Abi(bits, machine), soname, soname, needed)


class Root:
    """A directory that ldconfig takes for the root of a system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.put("/etc/ld.so.conf", f"{LIBDIR}\n{LIBDIR32}\n/opt/odd\n".encode())

    def put(self, path: str, data: bytes) -> None:
        target = self.path / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def link(self, path: str, target: str) -> None:
        (self.path / path[1:]).symlink_to(target)

    def ldconfig(self, *options: str) -> bytes:
        subprocess.run([LDCONFIG, "-r", str(self.path), *options], check=True)
        return (self.path / "etc/ld.so.cache").read_bytes()

    def entries(self, *options: str) -> list[tuple[str, str]]:
        return [(entry.name, entry.path) for entry in parse(self.ldconfig(*options)).entries]


@pytest.fixture
def root(tmp_path: Path, require: Callable[[bool, str], None]) -> Root:
    require(os.geteuid() == 0, "ldconfig -r needs root")
    require(os.path.exists(LDCONFIG), f"no {LDCONFIG}: not a system of glibc")
    return Root(tmp_path)


def fill_small(root: Root) -> None:
    for name in ("libc.so.6", "libfoo.so.9", "libfoo.so.10", "libnvidia-container.so.1"):
        root.put(f"{LIBDIR}/{name}", library(name, ("libc.so.6",)))
    for level in ("x86-64-v2", "x86-64-v3"):
        root.put(f"{LIBDIR}/glibc-hwcaps/{level}/libfoo.so.9", library("libfoo.so.9"))
    root.put(f"{LIBDIR32}/libc.so.6", library("libc.so.6", (), elf.EM_386, 32))
    root.put("/opt/odd/libfoo.so.9", library("libfoo.so.9"))


def fill_big(root: Root) -> None:
    fill_small(root)
    for number in range(1300):
        name = f"lib{'cgnvz'[number % 5]}{number * 7919 % 4001}-{number % 3}.so.{number % 13}"
        root.put(f"{LIBDIR}/{name}", library(name, ("libc.so.6",)))
        if number % 40 == 0:
            root.put(f"{LIBDIR}/glibc-hwcaps/x86-64-v3/{name}", library(name))
            root.put(f"{LIBDIR32}/{name}", library(name, (), elf.EM_386, 32))
    real = [path for path in Path("/lib/x86_64-linux-gnu").glob("*.so.*") if path.is_file()]
    for path in sorted(real)[:120]:
        if path.stat().st_size < 200_000:
            shutil.copy(path, root.path / LIBDIR[1:] / path.name)


def add_driver(root: Root) -> list[tuple[str, str, int]]:
    """Add the driver's files as they are mounted, and say what they are in the cache."""
    added = []
    for directory, machine, bits in ((LIBDIR, elf.EM_X86_64, 64), (LIBDIR32, elf.EM_386, 32)):
        for soname in SONAMES:
            data = library(soname, ("libc.so.6",), machine, bits)
            root.put(f"{directory}/{soname.partition('.so')[0]}.so.{VERSION}", data)
            flags = elf.cache_flags(elf.parse(data))
            assert flags is not None
            added.append((soname, f"{directory}/{soname}", flags))
    return added


def assert_same(found: bytes, expected: bytes) -> None:
    one, other = parse(found), parse(expected)
    for mine, theirs in zip(one.entries, other.entries, strict=False):
        assert mine == theirs
    assert one == other
    # The string table keeps replaced and unshared strings: written anew, all bytes are the same.
    assert render(one) == render(other)
    assert len(render(other)) == len(expected)


@pytest.mark.parametrize("fill", [fill_small, fill_big])
def test_splice_writes_what_ldconfig_writes(root: Root, fill: Callable[[Root], None]) -> None:
    fill(root)
    before = root.ldconfig()
    added = add_driver(root)
    after = root.ldconfig()

    assert len(parse(after).entries) == len(parse(before).entries) + len(added)
    assert parse(before).hwcaps == ("x86-64-v2", "x86-64-v3")
    assert_same(splice(before, added), after)
    assert_same(splice(before, added[::-1]), after)
    assert splice(after, added) is after


def test_splice_into_the_compat_format(root: Root) -> None:
    fill_small(root)
    before = root.ldconfig("-c", "compat")
    added = add_driver(root)

    assert before.startswith(b"ld.so-1.7.0\0")
    assert_same(splice(before, added), root.ldconfig("-c", "new"))
    after = root.ldconfig("-c", "compat")
    assert splice(after, added) is after


def test_a_new_cache_is_what_ldconfig_writes_for_an_empty_root(root: Root) -> None:
    added = add_driver(root)
    expected = parse(root.ldconfig())

    assert parse(splice(b"", added)) == LdCache(expected.entries)


def test_replacing_moves_no_entry(root: Root) -> None:
    fill_small(root)
    before = root.ldconfig()
    added = add_driver(root)
    after = parse(root.ldconfig())
    elsewhere = [(name, f"/else{path}", flags) for name, path, flags in added]

    moved = parse(splice(splice(before, elsewhere), added))

    assert moved == after


def test_long_numbers_sort_as_ldconfig_sorts_them(root: Root) -> None:
    # As wrapped 32-bit numbers they lie less than 2^31 apart: further apart the loader's order is
    # a circle, ldconfig's result depends on the order of the directory, and nvhook refuses them.
    numbers = ("5", "05", "4294967301", "3345678901", "12345678901", "20230101121212", "9" * 30)
    names = [f"libfoo-{number}.so.1" for number in numbers]
    for name in names:
        root.put(f"{LIBDIR}/{name}", library(name))
    for name in names:
        os.rename(root.path / LIBDIR[1:] / name, root.path / "kept")
        before = root.ldconfig()
        os.rename(root.path / "kept", root.path / LIBDIR[1:] / name)
        after = parse(root.ldconfig())

        found = parse(splice(before, [(name, f"{LIBDIR}/{name}", 0x0303)]))

        # names that are equal but for leading zeros or wrapping stand in directory order
        assert {*found.entries} == {*after.entries}
        if name not in {"libfoo-5.so.1", "libfoo-05.so.1", "libfoo-4294967301.so.1"}:
            assert found == after


def test_flags_are_those_of_ldconfig(root: Root) -> None:
    libraries = {
        "libneeds.so.1": library("libneeds.so.1", ("libc.so.6",)),
        "libnone.so.1": library("libnone.so.1"),
        "libx32.so.1": library("libx32.so.1", (), elf.EM_X86_64, 32),
        "libold.so.1": library("libold.so.1", (), elf.EM_386, 32),
        "lib386.so.1": library("lib386.so.1", ("libdl.so.2", "libc.so.6"), elf.EM_386, 32),
        "libmath.so.1": library("libmath.so.1", ("libm.so.6",), elf.EM_386, 32),
    }
    for name, data in libraries.items():
        root.put(f"{LIBDIR}/{name}", data)

    found = {entry.name: entry.flags for entry in parse(root.ldconfig()).entries}

    assert found == {name: elf.cache_flags(elf.parse(data)) for name, data in libraries.items()}


def test_the_machines_own_cache_survives(
    require: Callable[[bool, str], None],
) -> None:
    require(os.path.exists("/etc/ld.so.cache"), "no /etc/ld.so.cache: not a system of glibc")
    data = Path("/etc/ld.so.cache").read_bytes()

    assert_same(render(parse(data)), data)
    assert parse(data).entries


# What ldconfig itself writes for a driver library and its links: an executor that puts files into
# a container has to splice exactly these entries.
CUDA = library("libcuda.so.1", ("libc.so.6",))
GLX = library("libGLX_nvidia.so.0", ("libc.so.6",))
FILE = f"{LIBDIR}/libcuda.so.{VERSION}"


def test_the_file_alone_is_entered_by_its_soname_and_linked(root: Root) -> None:
    root.put(FILE, CUDA)

    assert root.entries() == [("libcuda.so.1", f"{LIBDIR}/libcuda.so.1")]
    assert os.readlink(root.path / LIBDIR[1:] / "libcuda.so.1") == f"libcuda.so.{VERSION}"


def test_the_entry_has_the_path_of_the_link_even_if_no_link_is_made(root: Root) -> None:
    root.put(FILE, CUDA)

    assert root.entries("-X") == [("libcuda.so.1", f"{LIBDIR}/libcuda.so.1")]
    assert not os.path.lexists(root.path / LIBDIR[1:] / "libcuda.so.1")


def test_a_chain_of_links_has_an_entry_for_each_link(root: Root) -> None:
    root.put(FILE, CUDA)
    root.link(f"{LIBDIR}/libcuda.so.1", f"libcuda.so.{VERSION}")
    root.link(f"{LIBDIR}/libcuda.so", "libcuda.so.1")

    assert root.entries() == [
        ("libcuda.so.1", f"{LIBDIR}/libcuda.so.1"),
        ("libcuda.so", f"{LIBDIR}/libcuda.so"),
    ]


def test_a_link_that_dangles_until_ldconfig_mends_it_counts_at_the_second_run(root: Root) -> None:
    root.put(FILE, CUDA)
    root.link(f"{LIBDIR}/libcuda.so", "libcuda.so.1")

    assert [name for name, _ in root.entries()] == ["libcuda.so.1"]
    assert [name for name, _ in root.entries()] == ["libcuda.so.1", "libcuda.so"]


def test_a_development_link_to_the_file_has_an_entry(root: Root) -> None:
    root.put(FILE, CUDA)
    root.link(f"{LIBDIR}/libcuda.so", f"libcuda.so.{VERSION}")

    assert [name for name, _ in root.entries()] == ["libcuda.so.1", "libcuda.so"]


@pytest.mark.parametrize("target", [f"libGLX_nvidia.so.{VERSION}", "libGLX_nvidia.so.0"])
def test_a_link_with_the_name_of_another_library_has_no_entry(root: Root, target: str) -> None:
    root.put(f"{LIBDIR}/libGLX_nvidia.so.{VERSION}", GLX)
    root.link(f"{LIBDIR}/libGLX_nvidia.so.0", f"libGLX_nvidia.so.{VERSION}")
    root.link(f"{LIBDIR}/libGLX_indirect.so.0", target)

    assert root.entries() == [("libGLX_nvidia.so.0", f"{LIBDIR}/libGLX_nvidia.so.0")]


def test_a_development_link_into_a_directory_that_is_not_searched_has_an_entry(root: Root) -> None:
    root.put(f"{LIBDIR}/vdpau/libvdpau_nvidia.so.{VERSION}", library("libvdpau_nvidia.so.1"))
    root.link(f"{LIBDIR}/libvdpau_nvidia.so", f"vdpau/libvdpau_nvidia.so.{VERSION}")

    assert root.entries() == [("libvdpau_nvidia.so", f"{LIBDIR}/libvdpau_nvidia.so")]


def test_a_file_without_soname_and_one_in_two_directories(root: Root) -> None:
    head, _, tail = library("libplain.so.1").rpartition(pack("<Q", 14))  # DT_SONAME
    root.put(f"{LIBDIR}/libplain.so.1.2", head + pack("<Q", 21) + tail)  # DT_DEBUG
    root.put("/opt/odd/libcuda.so.1", CUDA)
    root.put(f"{LIBDIR}/libcuda.so.1", CUDA)
    root.put(f"{LIBDIR}/vdpau/libvdpau_nvidia.so.1", library("libvdpau_nvidia.so.1"))

    assert root.entries() == [
        ("libplain.so.1.2", f"{LIBDIR}/libplain.so.1.2"),
        ("libcuda.so.1", f"{LIBDIR}/libcuda.so.1"),
        ("libcuda.so.1", "/opt/odd/libcuda.so.1"),
    ]


def test_the_loader_finds_libraries_through_a_spliced_cache(
    root: Root, require: Callable[[bool, str], None]
) -> None:
    loader = next((path for path in LOADERS if os.path.exists(path)), "")
    require(bool(loader), f"no loader of glibc at {' or '.join(LOADERS)}")
    entries = parse(Path("/etc/ld.so.cache").read_bytes()).entries
    host = {entry.name: entry.path for entry in reversed(entries)}  # not a host's 32-bit ones
    wanted = ["libstdc++.so.6"]
    additions = []
    for name in wanted:
        data = Path(host[name]).read_bytes()
        found = elf.parse(data)
        flags = elf.cache_flags(found)
        assert flags is not None
        wanted += [needed for needed in found.needed if needed not in wanted and needed in host]
        root.put(f"/driver/{name}.{VERSION}", data)
        additions.append((name, f"/driver/{name}.{VERSION}", flags))
    root.put(loader, Path(loader).read_bytes())
    (root.path / loader[1:]).chmod(0o755)
    fill_small(root)
    root.put("/etc/ld.so.cache", splice(root.ldconfig("-c", "compat"), additions))

    listed = subprocess.run(
        ["chroot", str(root.path), loader, "--list", f"/driver/libstdc++.so.6.{VERSION}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert len(additions) > 2
    for name, path, _ in additions[1:]:
        assert name in loader or f"{name} => {path} " in listed
