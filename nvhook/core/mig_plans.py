"""MIG devices, by name and their plans: loaded only for a container that asks for one.

A MIG device is two capabilities of its GPU, to use the GPU instance and the compute instance: a
device node each, and a file below /proc that names it. The GPU's own node is needed as well; what a
process may do through that, the driver decides by the capabilities.

Source: nvidia-container-stack reference, sections 1.7 (11, 12) and 2.1, appendix D.
"""

from __future__ import annotations

from nvhook.core.device_edits import device_edits, find_node, gpu_plan
from nvhook.core.edits import PROC_OPTIONS, CgroupRule, DeviceNode, Mount, Plan
from nvhook.core.inventory import MigDevice, gpus_of
from nvhook.core.planner import merge
from nvhook.core.selection import describe, short, unknown
from nvhook.errors import HostError
from nvhook.formats.mig_capabilities import compute_instance, gpu_instance, parse_old_name, path_of
from nvhook.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Device, Inventory

CAPABILITIES = "/driver/nvidia/capabilities"
NODES = "nvidia-caps"
_PROC = f"/proc{CAPABILITIES}"
# As every mount of device nodes; writing to a node is not writing to its file system.
_NODE_OPTIONS = ("ro", "nosuid", "noexec")


def node_name(minor: int) -> str:
    """Return the name of a capability's node below the dev root."""
    return f"{NODES}/nvidia-cap{minor}"


def node_names(device: Device) -> tuple[str, ...]:
    """Return the names of the nodes that a device needs, its GPU's first."""
    if not isinstance(device, MigDevice):
        return (f"nvidia{device.minor}",)
    minors = device.gpu_instance_minor, device.compute_instance_minor
    return f"nvidia{device.gpu.minor}", *[node_name(minor) for minor in minors]


def does_graphics(device: MigDevice) -> bool:
    """Tell whether a MIG device can render: ``1g.24gb+gfx``.

    Source: nvidia-container-stack reference, section 2.2.
    """
    return "gfx" in device.profile


def mig_plan(device: MigDevice, inventory: Inventory) -> Plan:
    """Return what a MIG device needs beside its GPU.

    Raises: HostError where a capability's node is missing.
    """
    return merge(capability_plans(device, inventory))


def capability_plans(device: MigDevice, inventory: Inventory) -> tuple[Plan, Plan]:
    """Return what it takes to use the GPU instance, and the compute instance in it.

    Raises: HostError where a capability's node is missing.
    """
    (gi, gi_minor), (ci, ci_minor) = capabilities_of(device)
    return _capability_plan(gi, gi_minor, inventory), _capability_plan(ci, ci_minor, inventory)


def capabilities_of(device: MigDevice) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return name and minor of the capabilities to use the GPU and the compute instance."""
    gpu, gi, ci = device.gpu.minor, device.gpu_instance, device.compute_instance
    return (
        (gpu_instance(gpu, gi), device.gpu_instance_minor),
        (compute_instance(gpu, gi, ci), device.compute_instance_minor),
    )


def _capability_plan(capability: str, minor: int, inventory: Inventory) -> Plan:
    edits = _node(capability, minor, inventory)
    if inventory.proc_files:
        path = f"{CAPABILITIES}/{path_of(capability)}"
        edits.append(Mount(inventory.proc_root + path, f"/proc{path}", PROC_OPTIONS, required=True))
    return Plan(tuple(edits))


def parent_plan(device: MigDevice, inventory: Inventory) -> Plan:
    """Return what a MIG device needs of its GPU.

    Raises: HostError where the GPU's node is missing.
    """
    # The nodes for rendering are its whole GPU's.
    parent = inventory if does_graphics(device) else replace(inventory, drm=())
    return gpu_plan(device.gpu, parent)


def with_management(
    plan: Plan, names: tuple[str, ...], devices: tuple[Device, ...], inventory: Inventory
) -> Plan:
    """Return a plan with what it takes to make (``config``) or watch (``monitor``) MIG devices.

    As these come and go, the container gets the directories of all capabilities in place of
    single ones, and rules for the named capability and for every one of the GPUs that it has.

    Raises: HostError where the driver has no such capability, or a node is missing.
    """
    minors = inventory.mig_capabilities
    nodes: list[DeviceNode] = []
    for name in names:
        if name not in minors:
            raise HostError(
                f"the driver has no capability to {name} MIG devices",
                "it needs driver 450 or newer, and a GPU that can be partitioned",
            )
        edits = _node(name, minors[name], inventory)
        nodes += [edit for edit in edits if isinstance(edit, DeviceNode)]
    prefixes = tuple([f"gpu{gpu.minor}/" for gpu in gpus_of(devices)])
    directory = nodes[0].host_path.rpartition("/")[0]
    edits = [edit for edit in plan.edits if not _is_covered(edit)]
    edits.append(Mount(directory, f"/dev/{NODES}", _NODE_OPTIONS, required=True))
    if inventory.proc_files:
        source = inventory.proc_root + CAPABILITIES
        edits.append(Mount(source, _PROC, PROC_OPTIONS, required=True))
    edits += [
        CgroupRule("c", nodes[0].major, minor)
        for name, minor in minors.items()
        if name in names or (prefixes and name.startswith(prefixes))
    ]
    return merge((Plan(tuple(edits)),))


def _node(capability: str, minor: int, inventory: Inventory) -> list[Edit]:
    remedy = f"nvidia-modprobe -f {inventory.proc_root}{CAPABILITIES}/{path_of(capability)}"
    return [*device_edits(find_node(node_name(minor), NODES, minor, inventory, remedy))]


def _is_covered(edit: Edit) -> bool:
    return isinstance(edit, (DeviceNode, Mount)) and edit.container_path.startswith(
        (f"/dev/{NODES}/", f"{_PROC}/")
    )


def find_mig(name: str, inventory: Inventory) -> MigDevice:
    """Return the MIG device of ``<gpu>:<index>``, a UUID or ``MIG-GPU-<uuid>/<gi>/<ci>``."""
    devices = inventory.mig_devices
    if name[:4].upper() != "MIG-":
        gpu_index, _, index = name.partition(":")
        if len(name) > 12 or all(gpu.index != int(gpu_index) for gpu in inventory.gpus):
            raise unknown(name, f"{describe(inventory.gpus)}; nvhook list shows them")
        where = f"GPU {int(gpu_index)}"
        devices = tuple([each for each in devices if each.gpu_index == int(gpu_index)])
        matches = [each for each in devices if each.index == int(index)]
    elif old := parse_old_name(name):
        where = "this host"
        matches = [each for each in devices if old == _instances(each)]
    else:
        where = "this host"
        matches = [each for each in devices if each.uuid.lower() == name.lower()]
    if matches:
        return matches[0]
    if not devices:
        remedy = "make one with nvidia-smi mig, or ask for a whole GPU"
        raise unknown(name, f"{where} has no MIG device: {remedy}")
    if not parse_old_name(name) and any(not each.uuid for each in devices):
        raise HostError(
            f"NVML does not tell which MIG device is {short(name)}",
            "does nvidia-smi -L list it? MIG-GPU-<uuid>/<gi>/<ci> works without NVML",
        )
    names = ", ".join([each.name for each in devices[:8]])
    raise unknown(name, f"{where} has MIG devices {names}; nvhook list shows them")


def _instances(device: MigDevice) -> tuple[str, int, int]:
    return device.gpu.uuid.lower(), device.gpu_instance, device.compute_instance
