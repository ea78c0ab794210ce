"""CUDA forward compatibility in containers: the image's libcuda wins, and nothing of it is mounted.

The simulated host has driver 550.54.14 with CUDA 12.4.
"""

import os

import pytest

from nvhook.formats import ldcache
from nvhook.sim.elf_writer import ABIS, shared_library
from tests.cuda_note import with_note

ABI = ABIS[os.uname().machine]
COMPAT = "/usr/local/cuda-13.1/compat"
NEWER, OLDER = "590.44.01", "535.104.05"
HOST = "/usr/lib64/libcuda.so.1"


def library(soname: str, drivers: list[int] | None = None) -> bytes:
    image = shared_library(ABI, soname, "the image's")
    return image if drivers is None else with_note(image, drivers)


def furnish(bundle, version: str, drivers: list[int] | None = None) -> None:
    """Put a cuda-compat package into an image, with the links CUDA's images have."""
    bundle.put(f"{COMPAT}/libcuda.so.{version}", library("libcuda.so.1", drivers))
    bundle.put(f"{COMPAT}/libnvidia-ptxjitcompiler.so.{version}", library("libptx.so.1"))
    bundle.link(f"{COMPAT}/libcuda.so.1", f"libcuda.so.{version}")
    bundle.link(f"{COMPAT}/libcuda.so", "libcuda.so.1")
    bundle.link(f"{COMPAT}/libptx.so.1", f"libnvidia-ptxjitcompiler.so.{version}")
    bundle.link("/usr/local/cuda", "/etc/alternatives/cuda")
    bundle.link("/etc/alternatives/cuda", COMPAT.rpartition("/")[0])


def cached(bundle) -> dict[str, str]:
    data = (bundle.seen_root / "etc/ld.so.cache").read_bytes()
    return {e.name: e.path for e in ldcache.parse(data).entries if e.name.startswith("lib")}


@pytest.mark.parametrize(
    ("version", "drivers", "wins"),
    [
        (NEWER, None, True),
        (NEWER, [535, 550], True),
        (NEWER, [535, 560], False),
        (OLDER, None, False),
        (OLDER, [550], False),
    ],
)
def test_the_newer_libcuda_wins_where_it_suits_the_driver(
    started_by, bundles, version, drivers, wins
):
    bundle = bundles(started_by)
    furnish(bundle, version, drivers)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/grep", "-c", "compat", "/proc/self/mountinfo")

    mounts = started_by.run(bundle).stdout

    compat = "/usr/local/cuda/compat"
    found = cached(bundle)
    assert found["libcuda.so.1"] == (f"{compat}/libcuda.so.1" if wins else HOST)
    assert found["libcuda.so"] == (f"{compat}/libcuda.so" if wins else HOST[:-2])
    assert found.get("libptx.so.1") == (f"{compat}/libptx.so.1" if wins else None)
    assert mounts == "0\n", "nothing of the image is mounted"


def test_a_restart_changes_nothing(runc, bundles):
    bundle = bundles(runc)
    furnish(bundle, NEWER)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    runc.start(bundle)
    files = bundle.tree()
    cache = (bundle.root / "etc/ld.so.cache").read_bytes()

    runc.start(bundle)

    assert bundle.tree() == files
    assert (bundle.root / "etc/ld.so.cache").read_bytes() == cache


@pytest.mark.parametrize(
    ("variables", "setting"),
    [
        (["NVIDIA_DRIVER_CAPABILITIES=utility"], ""),
        ([], "cuda-forward-compatibility = false\n"),
    ],
    ids=["utility", "switched-off"],
)
def test_who_does_not_want_it(runc, bundles, variables, setting):
    bundle = bundles(runc)
    furnish(bundle, NEWER)
    with bundle.settings.open("a") as settings:
        settings.write(setting)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1", *variables)

    runc.start(bundle)

    assert "/compat/" not in str(cached(bundle))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda bundle: bundle.put(f"{COMPAT}/libcuda.so.580.65.06", library("libcuda.so.1")),
        lambda bundle: bundle.put(f"{COMPAT}/libcuda.so.{NEWER}", b"no ELF"),
        lambda bundle: bundle.put(f"{COMPAT}/libcuda.so.{NEWER}", library("libother.so.1")),
        lambda bundle: (bundle.seen_root / f"{COMPAT[1:]}/libcuda.so.1").unlink(),
        lambda bundle: os.mkfifo(bundle.seen_root / f"{COMPAT[1:]}/libfifo.so.1"),
        lambda bundle: bundle.link(f"{COMPAT}/libnode.so.1", "/nodes/nvidia0"),
    ],
    ids=["two", "broken", "another-soname", "no-link", "fifo", "link-to-a-node"],
)
def test_odd_libraries_of_an_image_are_left_alone(runc, bundles, spoil):
    bundle = bundles(runc)
    furnish(bundle, NEWER)
    spoil(bundle)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    runc.start(bundle)

    assert cached(bundle)["libcuda.so.1"] == HOST


def test_a_directory_that_leads_out_of_the_image_is_looked_for_in_it(runc, bundles, place):
    (place / "host").mkdir()
    (place / "host/libcuda.so.590.44.01").write_bytes(library("libcuda.so.1"))
    (place / "host/libcuda.so.1").symlink_to("libcuda.so.590.44.01")
    bundle = bundles(runc)
    up = "../" * 30
    bundle.link("/usr/local/cuda/compat", f"{up}{str(place)[1:]}/host")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    runc.start(bundle)

    assert cached(bundle)["libcuda.so.1"] == HOST
