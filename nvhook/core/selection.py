"""From requested device ids to the host's GPUs and MIG devices.

Source: nvidia-container-stack reference, section 1.2 (accepted forms) and appendix G.
"""

from __future__ import annotations

from nvhook.errors import FormatError, HostError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.inventory import Device, Gpu, Inventory

ALL = ("all",)


def select(devices: tuple[str, ...], inventory: Inventory) -> tuple[Device, ...]:
    """Return the requested devices in host order, each once; a GPU stands before its MIG devices.

    devices are ids, or ``("all",)``, or empty. One unknown id refuses the whole request.

    Raises: RequestError, HostError (all, but there is none; or NVML does not tell MIG devices
    apart).
    """
    if not devices:
        return ()
    if devices == ALL:
        if not inventory.gpus:
            raise HostError("this host has no NVIDIA GPU", "is the driver loaded? try nvhook list")
        return _in_order(inventory)
    wanted = {_find(name, inventory) for name in devices}
    return tuple([device for device in _in_order(inventory) if device in wanted])


def may_mean_mig(devices: tuple[str, ...]) -> bool:
    """Tell whether a request can be about MIG devices."""
    return devices == ALL or any(is_mig_name(name) for name in devices)


def is_mig_name(name: str) -> bool:
    """Tell whether an id has a form that only MIG devices have: ``0:1`` or ``MIG-...``."""
    gpu, colon, instance = name.partition(":")
    digits = gpu + instance
    return name[:4].upper() == "MIG-" or bool(
        colon and gpu and instance and digits.isascii() and digits.isdigit()
    )


def _in_order(inventory: Inventory) -> tuple[Device, ...]:
    if not inventory.mig_devices:
        return inventory.gpus
    found: list[Device] = []
    for gpu in inventory.gpus:
        found.append(gpu)
        found += [device for device in inventory.mig_devices if device.gpu_index == gpu.index]
    return tuple(found)


def _find(name: str, inventory: Inventory) -> Device:
    """Return the GPU of an index, a UUID or a PCI bus id, or the MIG device of this name."""
    if is_mig_name(name):
        from nvhook.core.mig_plans import find_mig

        return find_mig(name, inventory)
    gpus = inventory.gpus
    if name.isascii() and name.isdigit():
        index = int(name) if len(name) < 10 else -1
        matches = [gpu for gpu in gpus if gpu.index == index]
    elif ":" in name:
        bus_id = _pci_bus_id(name)
        matches = [gpu for gpu in gpus if bus_id and _pci_bus_id(gpu.pci_bus_id) == bus_id]
    else:
        uuid = name.lower()
        # An unreadable UUID is full of question marks, the same ones for every GPU.
        matches = [gpu for gpu in gpus if gpu.uuid.lower() == uuid and "?" not in uuid]
    if matches:
        return matches[0]
    raise unknown(name, f"{describe(gpus)}; nvhook list shows them")


def unknown(name: str, hint: str) -> RequestError:
    """Return why a device id names nothing."""
    return RequestError(f"unknown device id {short(name)}", hint)


def _pci_bus_id(name: str) -> tuple[int, ...] | None:
    """Return (domain, bus, device, function) of ``[domain:]bus:device.function``."""
    from nvhook.formats.gpu_information import parse_bus_id

    try:
        return parse_bus_id(name if name.count(":") == 2 else f"0000:{name}")
    except FormatError:
        return None


def describe(gpus: tuple[Gpu, ...]) -> str:
    if not gpus:
        return "this host has no GPU"
    indices = [gpu.index for gpu in gpus]
    if indices == list(range(len(indices))):
        return f"this host has 0-{indices[-1]}" if len(indices) > 1 else "this host has only 0"
    return "this host has " + ",".join([str(index) for index in indices[:32]])


def short(name: str) -> str:
    # A long id must not push the hint out of the line.
    return name if len(name) <= 100 else name[:97] + "..."
