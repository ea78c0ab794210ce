"""How well GPUs are linked: at once from sysfs, and better as soon as NVML has told.

A pair's score grows with the speed of the way between them; an NVLink outweighs everything else.
"""

import os
import re
from collections.abc import Iterable
from itertools import takewhile

from nvhook.core.inventory import Gpu
from nvhook.kubelet.preferred import Links
from nvhook.kubelet.reports import Driver, Link, Ready, Report

# NVML's levels of a common ancestor, and what a pair is worth that has it.
SINGLE, MULTIPLE, HOSTBRIDGE, NODE, SYSTEM = 10, 20, 30, 40, 50
_SCORES = {0: 60, SINGLE: 50, MULTIPLE: 40, HOSTBRIDGE: 30, NODE: 20, SYSTEM: 10}
_NVLINK = 100

_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


def score(ancestor: int, nvlinks: int = 0) -> int:
    """Return what a pair is worth; an ancestor of a kind that nobody knows is worth nothing."""
    return _SCORES.get(ancestor, 0) + _NVLINK * nvlinks


class Topology:
    """The links between a machine's GPUs, as far as they are known."""

    def __init__(self, sys_root: str, gpus: Iterable[Gpu]) -> None:
        self._of_pci = pci_links(sys_root, gpus)
        self._told: dict[tuple[str, str], int] = {}
        self.links: Links = self._of_pci

    def take(self, report: Report) -> None:
        """Note what the NVML child tells; ``links`` changes when it has told everything."""
        match report:
            case Driver():
                self._told = {}
            case Link():
                self._told[_pair(report.first, report.second)] = score(
                    report.ancestor, report.nvlinks
                )
            case Ready():
                self.links = {**self._of_pci, **self._told}
            case _:
                pass


def pci_links(sys_root: str, gpus: Iterable[Gpu]) -> Links:
    """Return links by the place of GPUs on the PCI tree; none of GPUs whose place is not told."""
    places = {gpu.uuid: _place(sys_root, gpu.pci_bus_id) for gpu in gpus}
    known = [(uuid, *place) for uuid, place in places.items() if place is not None]
    links = {}
    for n, (first, path, node) in enumerate(known):
        for second, other_path, other_node in known[n + 1 :]:
            ancestor = _ancestor(path, other_path, node == other_node)
            links[_pair(first, second)] = score(ancestor)
    return links


def _pair(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first < second else (second, first)


def _place(sys_root: str, bus_id: str) -> tuple[list[str], str] | None:
    """Return the bridges above a device, the root complex first, and its NUMA node."""
    directory = f"{sys_root.rstrip('/')}/bus/pci/devices/{bus_id}"
    names = os.path.realpath(directory).split("/")
    top = next((n for n, name in enumerate(names) if _ROOT_COMPLEX.fullmatch(name)), None)
    if top is None:
        return None
    try:
        with open(f"{directory}/numa_node", encoding="ascii") as file:
            node = file.read().strip()
    except OSError:
        node = "-1"
    return names[top:-1], node


def _ancestor(first: list[str], second: list[str], same_node: bool) -> int:
    """Return NVML's level of two devices' common ancestor, from the bridges above each."""
    if first[0] != second[0]:
        return NODE if same_node else SYSTEM
    pairs = zip(first, second, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if shared == 1:
        return HOSTBRIDGE
    # Below a switch's upstream port each device has a downstream port of its own, or shares one.
    apart = max(len(first), len(second)) - shared
    return SINGLE if apart <= 1 else MULTIPLE
