"""The nodes and files of a simulated machine's features (nvhook.core.features)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from nvhook.sim.driver_root import write_file
from nvhook.sim.machine import Machine


@dataclass(frozen=True, slots=True)
class SimulatedFeature:
    """A feature: the name of its major in /proc/devices, and (node below /dev, minor)."""

    major_name: str
    nodes: tuple[tuple[str, int], ...]


_CHANNELS = "nvidia-caps-imex-channels"
FEATURES = {
    "gds": SimulatedFeature("nvidia-fs", (("nvidia-fs0", 0), ("nvidia-fs1", 1))),
    "mofed": SimulatedFeature(
        "infiniband_verbs",
        (("infiniband/uverbs0", 192), ("infiniband/uverbs1", 193), ("infiniband/rdma_cm", 0)),
    ),
    "gdrcopy": SimulatedFeature("gdrdrv", (("gdrdrv", 0),)),
    "nvswitch": SimulatedFeature(
        "nvidia-nvswitch", (("nvidia-nvswitchctl", 255), ("nvidia-nvswitch0", 0))
    ),
    "imex": SimulatedFeature(
        _CHANNELS, tuple([(f"{_CHANNELS}/channel{number}", number) for number in range(3)])
    ),
}


def feature_nodes(machine: Machine) -> Iterator[tuple[str, int, int]]:
    """Yield (name below /dev, major, minor)."""
    for name, major in machine.feature_majors.items():
        for node, minor in FEATURES[name].nodes:
            yield node, major, minor


def write_feature_files(base: str, machine: Machine) -> None:
    """Write the files of GDS: the driver root's cufile.json, and udev's data beside /dev."""
    if "gds" in machine.feature_majors:
        write_file(os.path.join(base, "root/etc/cufile.json"), b"{}\n")
        write_file(os.path.join(base, "run/udev/data/c195:0"), b"I:1\n")
