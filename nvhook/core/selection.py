"""From requested device ids to the host's GPUs and MIG devices.

Source: nvidia-container-stack reference, section 1.2 (accepted forms) and appendix G.
"""

from nvhook.errors import FormatError, HostError, RequestError
from nvhook.formats.proc_driver import parse_bus_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.inventory import Device, Gpu, Inventory, MigDevice

ALL = ("all",)


def select(devices: tuple[str, ...], inventory: "Inventory") -> "tuple[Device, ...]":
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


def having(numbers: frozenset[tuple[int, int]], inventory: "Inventory") -> "tuple[Device, ...]":
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


def _in_order(inventory: "Inventory") -> "tuple[Device, ...]":
    if not inventory.mig_devices:
        return inventory.gpus
    found: list[Device] = []
    for gpu in inventory.gpus:
        found.append(gpu)
        found += [device for device in inventory.mig_devices if device.gpu_index == gpu.index]
    return tuple(found)


def _find(name: str, inventory: "Inventory") -> "Device":
    """Return the GPU of an index, a UUID or a PCI bus id, or the MIG device of this name."""
    if is_mig_name(name):
        return _find_mig(name, inventory)
    gpus = inventory.gpus
    if name.isascii() and name.isdigit():
        index = int(name) if len(name) < 10 else -1
        matches = [gpu for gpu in gpus if gpu.index == index]
    elif bus_id := _pci_bus_id(name):
        matches = [gpu for gpu in gpus if _pci_bus_id(gpu.pci_bus_id) == bus_id]
    else:
        uuid = name.lower()
        # An unreadable UUID is full of question marks, the same ones for every GPU.
        matches = [gpu for gpu in gpus if gpu.uuid.lower() == uuid and "?" not in uuid]
    if matches:
        return matches[0]
    raise _unknown(name, f"{_describe(gpus)}; nvhook list shows them")


def _find_mig(name: str, inventory: "Inventory") -> "MigDevice":
    """Return the MIG device of ``<gpu>:<index>``, a UUID or ``MIG-GPU-<uuid>/<gi>/<ci>``."""
    from nvhook.formats.mig import parse_old_name

    devices = inventory.mig_devices
    if name[:4].upper() != "MIG-":
        gpu_index, _, index = name.partition(":")
        if len(name) > 12 or all(gpu.index != int(gpu_index) for gpu in inventory.gpus):
            raise _unknown(name, f"{_describe(inventory.gpus)}; nvhook list shows them")
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
        raise _unknown(name, f"{where} has no MIG device: {remedy}")
    if not parse_old_name(name) and any(not each.uuid for each in devices):
        raise HostError(
            f"NVML does not tell which MIG device is {_short(name)}",
            "does nvidia-smi -L list it? MIG-GPU-<uuid>/<gi>/<ci> works without NVML",
        )
    names = ", ".join([each.name for each in devices[:8]])
    raise _unknown(name, f"{where} has MIG devices {names}; nvhook list shows them")


def _instances(device: "MigDevice") -> tuple[str, int, int]:
    return device.gpu.uuid.lower(), device.gpu_instance, device.compute_instance


def _unknown(name: str, hint: str) -> RequestError:
    return RequestError(f"unknown device id {_short(name)}", hint)


def _pci_bus_id(name: str) -> tuple[int, ...] | None:
    """Return (domain, bus, device, function) of ``[domain:]bus:device.function``."""
    try:
        return parse_bus_id(name if name.count(":") == 2 else f"0000:{name}")
    except FormatError:
        return None


def _describe(gpus: "tuple[Gpu, ...]") -> str:
    if not gpus:
        return "this host has no GPU"
    indices = [gpu.index for gpu in gpus]
    if indices == list(range(len(indices))):
        return f"this host has 0-{indices[-1]}" if len(indices) > 1 else "this host has only 0"
    return "this host has " + ",".join([str(index) for index in indices[:32]])


def _short(name: str) -> str:
    # A long id must not push the hint out of the line.
    return name if len(name) <= 100 else name[:97] + "..."
