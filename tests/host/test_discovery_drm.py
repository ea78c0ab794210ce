"""Render and card nodes: those of the GPU at that place of the bus, whatever their numbers."""

import os
from pathlib import Path

import pytest

from nvhook.core.inventory import Gpu
from nvhook.host.drm import find_drm

BUS = ("0000:07:00.0", "000f:01:00.0")
GPUS = tuple([Gpu(index, f"GPU-{index}", index, bus, "NVIDIA L4") for index, bus in enumerate(BUS)])
MAJOR = 499  # not the real one: a test must not make a node that opens a screen


def put(host, bus: str, name: str, minor: int, numbers: str | None = None) -> None:
    directory = host.sys / "bus/pci/devices" / bus / "drm" / name
    directory.mkdir(parents=True)
    (directory / "dev").write_text(numbers or f"{MAJOR}:{minor}\n")
    (host.dev / "dri/by-path").mkdir(parents=True, exist_ok=True)


def found(host) -> dict[str, tuple[str, str]]:
    drm = find_drm(GPUS, str(host.dev), str(host.sys))
    return {each.node.name: (each.pci_bus_id, each.by_path) for each in drm}


def test_a_host_without_nvidia_drm_has_none(host) -> None:
    assert found(host) == {}


@pytest.mark.root
def test_nodes_belong_to_the_gpu_that_sysfs_says(host) -> None:
    put(host, BUS[0], "card2", 2)
    put(host, BUS[0], "renderD129", 129)
    put(host, BUS[1], "card1", 1)
    put(host, BUS[1], "card1-DP-1", 1)  # a connector
    put(host, "0000:00:02.0", "card0", 0)
    for name, minor in (("card0", 0), ("card1", 1), ("card2", 2), ("renderD129", 129)):
        host.node(f"dri/{name}", MAJOR, minor)
    os.symlink("../card2", host.dev / f"dri/by-path/pci-{BUS[0]}-card")
    os.symlink("../card0", host.dev / f"dri/by-path/pci-{BUS[1]}-card")
    assert found(host) == {
        "dri/card2": (BUS[0], f"pci-{BUS[0]}-card"),
        "dri/renderD129": (BUS[0], ""),
        "dri/card1": (BUS[1], ""),
    }


@pytest.mark.root
def test_what_is_no_node_or_another_device_is_left_out(host) -> None:
    put(host, BUS[0], "card1", 1)
    put(host, BUS[0], "renderD128", 128, "226:7\n")
    put(host, BUS[0], "card3", 3)
    host.node("dri/renderD128", MAJOR, 128)
    Path(host.dev / "dri/card1").write_text("")
    os.symlink("/dev/null", host.dev / "dri/card3")
    assert found(host) == {}
