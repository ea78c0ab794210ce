"""What of a plan belongs to which device, so that taking one leaves what another needs.

An owner is a GPU's PCI bus id; of a MIG device with its instances, as in ``0000:04:00.0/gi1/ci0``.
One that ends in a slash is shared by all that begin with it, the empty one (the driver's) by all.
"""

from __future__ import annotations

from nvhook.core.device_edits import gpu_plan
from nvhook.core.inventory import MigDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.core.edits import Plan
    from nvhook.core.inventory import Device, Inventory

DRIVER = ""


def owner_of(device: Device) -> str:
    """Return the owner that a device is."""
    if isinstance(device, MigDevice):
        return f"{_instance(device)}ci{device.compute_instance}"
    return device.pci_bus_id


def is_shared(owner: str) -> bool:
    """Tell whether an owner is none by itself, but what several have in common."""
    return owner == DRIVER or owner.endswith("/")


def is_needed(owner: str, by: Iterable[str]) -> bool:
    """Tell whether what belongs to an owner has to stay for one of others."""
    return any(each == owner or (is_shared(owner) and each.startswith(owner)) for each in by)


def goes_with(owner: str, others: Iterable[str]) -> bool:
    """Tell whether an owner is a MIG device of one of others, or among them itself."""
    return owner in others or owner.partition("/")[0] in others


def owned_plans(devices: Iterable[Device], inventory: Inventory) -> tuple[tuple[str, Plan], ...]:
    """Return the plans of devices and their owners, each owner once.

    Raises: HostError if a node is missing.
    """
    found: dict[str, Plan] = {}
    for device in devices:
        if not isinstance(device, MigDevice):
            found[owner_of(device)] = gpu_plan(device, inventory)
            continue
        from nvhook.core.mig_plans import capability_plans, parent_plan

        bus = device.gpu.pci_bus_id
        if bus not in found:
            found[f"{bus}/"] = parent_plan(device, inventory)
        of_gpu_instance, of_compute_instance = capability_plans(device, inventory)
        found[_instance(device)] = of_gpu_instance
        found[owner_of(device)] = of_compute_instance
    return tuple(found.items())


def _instance(device: MigDevice) -> str:
    return f"{device.gpu.pci_bus_id}/gi{device.gpu_instance}/"
