"""The GPUs' nodes for rendering and screens: which are whose stands in /sys.

The numbers of /dev/dri follow the order in which drivers came up, and boards of other makers have
some of them, so that neither index nor minor of a GPU tells its nodes.
"""

from __future__ import annotations

import os

from nvhook import observations
from nvhook.core.inventory import DrmNode
from nvhook.formats.proc_driver import is_decimal
from nvhook.host.driver_texts import read_text
from nvhook.host.nodes import read_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.core.inventory import Gpu, HostNode

# Beginning of a node's name -> what udev calls it in /dev/dri/by-path.
_KINDS = {"card": "card", "renderD": "render"}


def find_drm(gpus: Iterable[Gpu], dev_root: str, sys_root: str) -> tuple[DrmNode, ...]:
    """Return the nodes that belong to these GPUs and exist; none where nvidia-drm is not loaded."""
    found = []
    for gpu in gpus:
        directory = f"{sys_root.rstrip('/')}/bus/pci/devices/{gpu.pci_bus_id}/drm"
        for name in sorted(observations.names(directory) or ()):
            prefix = name.rstrip("0123456789")
            if prefix not in _KINDS or not is_decimal(name[len(prefix) :]):
                continue
            node = read_node(dev_root.rstrip("/"), f"dri/{name}")
            if node is not None and _is_same(node, f"{directory}/{name}/dev"):
                link = f"pci-{gpu.pci_bus_id}-{_KINDS[prefix]}"
                by_path = link if _leads_to(f"{dev_root}/dri/by-path/{link}", name) else ""
                found.append(DrmNode(gpu.pci_bus_id, node, by_path))
    return tuple(found)


def _is_same(node: HostNode, numbers: str) -> bool:
    """Tell whether a node has the device numbers that /sys gives: old nodes may be left behind."""
    text = read_text(numbers, 64)
    return text is None or text.strip() == f"{node.major}:{node.minor}"


def _leads_to(link: str, name: str) -> bool:
    target = observations.link(link)
    return target is not None and os.path.basename(target) == name
