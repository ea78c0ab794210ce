"""What a running container has of the host's devices, by inject, a hook or its engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nvhook.core.catalog import PROC_DRIVER
from nvhook.core.inventory import Device, Inventory, MigDevice
from nvhook.core.mig_plans import CAPABILITIES, capabilities_of, node_name
from nvhook.core.ownership import owner_of
from nvhook.formats.mig_capabilities import path_of
from nvhook.kernel.device_rules import DeviceRule
from nvhook.live.container import LiveContainer


@dataclass(frozen=True, slots=True)
class Belonging:
    """What is one device's own: rules to open its nodes, container paths, its node's first."""

    rules: tuple[DeviceRule, ...]
    places: tuple[str, ...]


def belongings(
    owners: Iterable[str], container: LiveContainer, host: Inventory | None
) -> dict[str, Belonging]:
    """Return by owner what is theirs alone; nothing for an owner that the host does not have.

    A GPU instance is a MIG device's own where the container has no other compute instance of it.
    """
    if host is None:
        return {}
    wanted = {*owners}
    others = [each for each in host.mig_devices if owner_of(each) not in wanted]
    kept = {_instance(each) for each in others if _has_node(container, each)}
    return {
        owner_of(device): _belonging(device, host, kept)
        for device in _devices(host)
        if owner_of(device) in wanted
    }


def given(container: LiveContainer, host: Inventory | None) -> list[str]:
    """Return what the container has: by a node, or by a rule for a node elsewhere."""
    if host is None:
        return []
    own = belongings(map(owner_of, _devices(host)), container, host)
    open_to_it = openable(own, container) if container.access.restricts() else ()
    return [
        owner
        for owner, each in own.items()
        if owner in open_to_it or container.rootfs.has(each.places[0])
    ]


def openable(own: dict[str, Belonging], container: LiveContainer) -> list[str]:
    """Return the owners of whose devices the container's cgroups let any be opened."""
    devices = {rule[:3] for each in own.values() for rule in each.rules}
    found = container.access.openable(sorted(devices))
    return [owner for owner, each in own.items() if any(rule[:3] in found for rule in each.rules)]


def _belonging(device: Device, host: Inventory, kept: set[tuple[str, int]]) -> Belonging:
    if not isinstance(device, MigDevice):
        bus = device.pci_bus_id
        nodes = [(f"/dev/nvidia{device.minor}", host.majors.get("nvidia"), device.minor)]
        drm = [each.node for each in host.drm if each.pci_bus_id == bus]
        nodes += [(f"/dev/{node.name}", node.major, node.minor) for node in drm]
        files = [f"{PROC_DRIVER}/gpus/{bus}"]
    else:
        of_gpu_instance, own = capabilities_of(device)
        capabilities = [own] if _instance(device) in kept else [own, of_gpu_instance]
        major = host.majors.get("nvidia-caps")
        nodes = [(f"/dev/{node_name(minor)}", major, minor) for _, minor in capabilities]
        files = [f"/proc{CAPABILITIES}/{path_of(name)}" for name, _ in capabilities]
    rules = [("c", major, minor, "rw") for _, major, minor in nodes if major is not None]
    return Belonging(tuple(rules), tuple([path for path, _, _ in nodes] + files))


def _devices(host: Inventory) -> list[Device]:
    return [*host.gpus, *host.mig_devices]


def _has_node(container: LiveContainer, device: MigDevice) -> bool:
    return container.rootfs.has(f"/dev/{node_name(device.compute_instance_minor)}")


def _instance(device: MigDevice) -> tuple[str, int]:
    return device.gpu.pci_bus_id, device.gpu_instance
