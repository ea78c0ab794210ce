"""ld.so.cache as nvhook writes it, against the real ldconfig; and the confined ldconfig itself."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvhook.formats import ldcache
from nvhook.sim.elf_writer import ABIS, shared_library
from tests.runtime.bundle import MAPPED
from tests.runtime.cgroup_view import View
from tests.runtime.expectations import uuids

LDCONFIG = "/sbin/ldconfig"
LIBDIR = f"usr/lib/{os.uname().machine}-linux-gnu"
LIBRARIES = 1300


def _ldconfig(root: Path, *directories: str) -> bytes:
    subprocess.run([LDCONFIG, "-X", "-r", str(root), *directories], check=True, capture_output=True)
    return (root / "etc/ld.so.cache").read_bytes()


def _fill(root: Path) -> None:
    """Add many small libraries, some under glibc-hwcaps, with names that sort oddly."""
    abi = ABIS[os.uname().machine]
    for number in range(LIBRARIES):
        soname = f"lib{'acgnvz'[number % 6]}{number * 7919 % 4001}-{number % 3}.so.{number % 13}"
        path = root / LIBDIR / soname
        path.write_bytes(shared_library(abi, soname, soname))
        if number % 40 == 0:
            other = root / LIBDIR / "glibc-hwcaps/x86-64-v3" / soname
            other.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, other)


@contextmanager
def _instead_of_ldconfig(view: View, program: Path) -> Iterator[None]:
    """Put another program where the host's ldconfig is."""
    host = next(p for p in ("/sbin/ldconfig.real", LDCONFIG) if Path(p).exists())
    view.run("mount", "--bind", program, host)
    try:
        yield
    finally:
        view.run("umount", host)


@pytest.mark.parametrize("capabilities", ["compute,utility", "all"])
@pytest.mark.parametrize("large", [False, True], ids=["debian", "debian-1300-libraries"])
def test_equals_what_ldconfig_writes(runc, bundles, driver, debian, large, capabilities):
    bundle = bundles(runc, debian)
    root = bundle.seen_root
    if large:
        _fill(root)
    before = ldcache.parse(_ldconfig(root))
    present = set(bundle.tree())
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")

    runc.start(bundle)

    written = (root / "etc/ld.so.cache").read_bytes()
    mine = ldcache.parse(written)
    # The mounts went with the container: put the real files where their empty mount points are.
    for name in set(bundle.tree()) - present:
        source = driver.directory / "root" / name
        if ".so" in name and source.is_file() and not (root / name).is_symlink():
            (root / name).unlink()  # the mount points are links to one file
            shutil.copy(source, root / name)
    # Debian's own configuration does not name the directory of 32-bit libraries.
    directories = ["/usr/lib/i386-linux-gnu"] if capabilities == "all" else []
    theirs = ldcache.parse(_ldconfig(root, *directories))
    assert len(mine.entries) >= len(before.entries) + 15
    assert len(before.entries) > (LIBRARIES if large else 50)
    for one, other in zip(mine.entries, theirs.entries, strict=False):
        assert one == other
    assert mine == theirs
    assert ldcache.render(mine) == ldcache.render(theirs)


def test_a_missing_cache_is_made(each_runtime, bundles):
    bundle = bundles(each_runtime)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    each_runtime.start(bundle)

    entries = ldcache.parse((bundle.root / "etc/ld.so.cache").read_bytes()).entries
    names = {entry.name: entry.path for entry in entries}
    assert names["libcuda.so.1"] == "/usr/lib64/libcuda.so.1"
    assert (bundle.root / "etc/ld.so.cache").stat().st_mode & 0o777 == 0o644


def test_a_missing_cache_in_debian_still_finds_the_other_libraries(runc, bundles, debian, compiled):
    bundle = bundles(runc, debian)
    (bundle.seen_root / "etc/ld.so.cache").unlink()
    shutil.copy(compiled / "cuda_check", bundle.seen_root / "cuda_check")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/sh", "-c", "/cuda_check && perl -e 'print \"perl runs\"'")

    result = runc.start(bundle)

    assert uuids(bundle, (1,))[0] in result.stdout
    assert "perl runs" in result.stdout


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("damage", ["text", "half", "empty"])
@pytest.mark.parametrize("user_namespace", [False, True], ids=["root", "userns"])
def test_a_damaged_cache_is_rebuilt(
    each_runtime, bundles, debian, compiled, damage, user_namespace
):
    bundle = bundles(each_runtime, debian)
    cache = bundle.seen_root / "etc/ld.so.cache"
    data = cache.read_bytes()
    cache.write_bytes(
        {"text": b"no cache at all\n" * 99, "half": data[: len(data) // 2], "empty": b""}[damage]
    )
    shutil.copy(compiled / "cuda_check", bundle.seen_root / "cuda_check")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/cuda_check")
    if user_namespace:
        bundle.use_user_namespace(owned=True)

    result = each_runtime.start(bundle)

    assert result.stdout.splitlines()[1:] == ["devices = 1", *uuids(bundle, (1,))]
    names = {entry.name for entry in ldcache.parse(cache.read_bytes()).entries}
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= names
    assert ("libc.so.6" in names) == (damage != "empty")


@pytest.mark.parametrize("user_namespace", [False, True], ids=["root", "userns"])
def test_ldconfig_runs_confined(runc, bundles, compiled, user_namespace):
    """A program that tells what it may do stands in for the host's ldconfig."""
    bundle = bundles(runc)
    bundle.put("/etc/ld.so.cache", b"damaged")
    bundle.put("/locked", b"", 0o000)
    if user_namespace:
        bundle.use_user_namespace(owned=True)
    os.chown(bundle.root / "locked", 12345, 12345)
    (bundle.root / "etc").chmod(0o777)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    with _instead_of_ldconfig(runc.view, compiled / "confined"):
        runc.start(bundle)

    lines = (bundle.root / "etc/report").read_text().splitlines()
    report = dict(line.split(" = ") for line in lines)
    owner = MAPPED if user_namespace else 0
    assert report == {
        **dict.fromkeys(
            ("mount", "socket", "unshare", "ptrace", "chroot", "mknod", "capget"), "EPERM"
        ),
        "host": "ENOENT",
        "no_new_privs": "1",
        "seccomp": "2",
        "bounding": "0",
        "ids": f"{owner}:{owner}",
        "locked": "EACCES",
    }


def test_an_ldconfig_that_fails_leaves_nothing(each_runtime, bundles):
    bundle = bundles(each_runtime)
    bundle.put("/etc/ld.so.cache", b"damaged")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    with _instead_of_ldconfig(each_runtime.view, Path("/bin/false")):
        error = each_runtime.fail(bundle)

    assert "ldconfig failed" in error
    assert (bundle.root / "etc/ld.so.cache").read_bytes() == b"damaged"


def test_a_host_without_ldconfig(runc, bundles):
    """What is there is no program: a distribution's wrapper script, for example."""
    bundle = bundles(runc)
    bundle.put("/etc/ld.so.cache", b"damaged")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    with _instead_of_ldconfig(runc.view, Path("/etc/os-release")):
        error = runc.fail(bundle)

    assert "the host has no ldconfig" in error


def test_an_ldconfig_that_waits_for_the_image_is_ended(runc, bundles):
    """Its configuration is a FIFO that nobody writes: no container start may wait for that."""
    bundle = bundles(runc)
    bundle.put("/etc/ld.so.cache", b"damaged")
    os.mkfifo(bundle.root / "etc/ld.so.conf")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    error = runc.fail(bundle)

    assert "ldconfig was ended by signal 14" in error


def test_ldconfig_opens_no_device_of_the_image(runc, bundles):
    bundle = bundles(runc)
    bundle.put("/etc/ld.so.cache", b"damaged")
    number = os.stat("/dev/zero").st_rdev  # endless, if it could be opened
    os.mknod(bundle.root / "etc/ld.so.conf", 0o666 | stat.S_IFCHR, number)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    runc.start(bundle)

    entries = ldcache.parse((bundle.root / "etc/ld.so.cache").read_bytes()).entries
    assert "libcuda.so.1" in {entry.name for entry in entries}


def test_what_ldconfig_says_stays_inside(runc, bundles):
    bundle = bundles(runc)
    bundle.put("/etc/ld.so.cache", b"damaged")
    bundle.put("/usr/lib64/libevil\x1b[31m.so.1", b"\x7fELF, but no more")
    hook = bundle.config["hooks"]["prestart"][0]
    script = f'exec "$0" "$@" 2>{bundle.directory}/hook-stderr'
    hook["args"] = ["sh", "-c", script, hook["path"], *hook["args"][1:]]
    hook["path"] = "/bin/sh"
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    runc.start(bundle)

    assert (bundle.directory / "hook-stderr").read_bytes() == b""


def test_links_of_the_image_are_restored(runc, bundles):
    bundle = bundles(runc)
    bundle.link("/usr/lib64/libcuda.so.1", "mine.so")
    (bundle.root / "etc").mkdir(exist_ok=True)
    os.mkfifo(bundle.root / "etc/ld.so.cache")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    assert "the image has a fifo at /etc/ld.so.cache" in runc.fail(bundle)
    assert os.readlink(bundle.root / "usr/lib64/libcuda.so.1") == "mine.so"
