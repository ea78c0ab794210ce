"""Which devices a container has, by the nodes that a CDI spec gave it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.inventory import Device, Inventory


def having(numbers: frozenset[tuple[int, int]], inventory: Inventory) -> tuple[Device, ...]:
    """Return the devices whose nodes, (major, minor), are all among these."""
    if inventory.platform:  # its nodes stand for all its GPUs
        nodes = {(node.major, node.minor) for node in inventory.nodes}
        return inventory.gpus if nodes & numbers else ()
    found: list[Device] = []
    major, capabilities = (
        inventory.majors.get("nvidia", -1),
        inventory.majors.get("nvidia-caps", -1),
    )
    for gpu in inventory.gpus:
        if (major, gpu.minor) not in numbers:
            continue
        found.append(gpu)
        for device in inventory.mig_devices:
            minors = device.gpu_instance_minor, device.compute_instance_minor
            if device.gpu_index == gpu.index and numbers.issuperset(
                [(capabilities, minor) for minor in minors]
            ):
                found.append(device)
    return tuple(found)
