"""The edits that give one device node, or one whole GPU."""

from __future__ import annotations

from nvhook.core.edits import (
    PROC_OPTIONS,
    AdditionalGid,
    CgroupRule,
    DeviceNode,
    Mount,
    Plan,
)
from nvhook.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Gpu, HostNode, Inventory


def gpu_plan(gpu: Gpu, inventory: Inventory) -> Plan:
    """Return the part of a plan that gives one GPU as a whole."""
    if inventory.platform:
        # The same nodes for every GPU: merge has them once.
        return Plan(tuple([edit for node in inventory.nodes for edit in device_edits(node)]))
    node = find_node(f"nvidia{gpu.minor}", "nvidia", gpu.minor, inventory)
    edits: list[Edit] = [*device_edits(node)]
    if inventory.proc_files:
        path = f"/driver/nvidia/gpus/{gpu.pci_bus_id}"
        edits.append(Mount(inventory.proc_root + path, "/proc" + path, PROC_OPTIONS))
    if inventory.drm:
        from nvhook.core.graphics import drm_edits

        edits += drm_edits(gpu, inventory)
    return Plan(tuple(edits))


def device_edits(node: HostNode) -> Iterable[Edit]:
    """Return a node and what it takes to open it: the rule and, where it is closed, its group."""
    yield DeviceNode(
        f"/dev/{node.name}",
        node.host_path,
        node.major,
        node.minor,
        node.mode,
        node.uid,
        node.gid,
    )
    yield CgroupRule("c", node.major, node.minor)
    if node.gid and node.mode & 0o060 == 0o060 and node.mode & 0o006 != 0o006:
        yield AdditionalGid(node.gid)


def find_node(
    name: str, major_name: str, minor: int, inventory: Inventory, remedy: str = ""
) -> HostNode:
    """Return the host's node of the driver, which must have the driver's numbers.

    ``remedy`` says what makes the node, if it is not one that nvidia-modprobe knows by number.

    Raises: HostError where the host lacks the node, or it has other numbers.
    """
    major = _major(major_name, inventory)
    for node in inventory.nodes:
        if node.name != name:
            continue
        if (node.major, node.minor) != (major, minor):
            raise HostError(
                f"{node.host_path} is device {node.major}:{node.minor}, "
                f"but the driver has {major}:{minor}",
                f"remove it and run nvidia-modprobe, or mknod it as c {major} {minor}",
            )
        return node
    flag = "-u -c 0" if "uvm" in name else f"-c {minor}"
    raise HostError(
        f"device node {name} is missing on the host", remedy or f"nvidia-modprobe {flag}"
    )


def _major(name: str, inventory: Inventory) -> int:
    major = inventory.majors.get(name)
    if major is None:
        module = name.replace("-", "_")
        raise HostError(
            f"kernel module {module} is not loaded: {inventory.proc_root}/devices has no {name}",
            f"modprobe {module}",
        )
    return major
