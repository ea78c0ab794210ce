"""From requested device ids to the host's GPUs.

Source: nvidia-container-stack reference, section 1.2 (accepted forms) and appendix G.
"""

from nvhook.errors import FormatError, HostError, RequestError, UnsupportedError
from nvhook.formats.proc_driver import parse_bus_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.inventory import Gpu, Inventory


def select(devices: tuple[str, ...], inventory: "Inventory") -> "tuple[Gpu, ...]":
    """Return the requested GPUs in host order, each once.

    devices are ids, or ``("all",)``, or empty. One unknown id refuses the whole request.

    Raises: RequestError, HostError (all, but there is none), UnsupportedError (MIG names).
    """
    if not devices:
        return ()
    if devices == ("all",):
        if not inventory.gpus:
            raise HostError("this host has no NVIDIA GPU", "is the driver loaded? try nvhook list")
        return inventory.gpus
    wanted = {_find(name, inventory.gpus).index for name in devices}
    return tuple([gpu for gpu in inventory.gpus if gpu.index in wanted])


def _find(name: str, gpus: "tuple[Gpu, ...]") -> "Gpu":
    """Return the GPU of an index, a UUID or a PCI bus id."""
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
    if _is_mig(name):
        raise UnsupportedError(
            f"MIG device {_short(name)} is not supported yet",
            "ask for a whole GPU by index or UUID",
        )
    raise RequestError(
        f"unknown device id {_short(name)}", f"{_describe(gpus)}; nvhook list shows them"
    )


def _is_mig(name: str) -> bool:
    gpu, colon, instance = name.partition(":")
    digits = gpu + instance
    return name[:4].upper() == "MIG-" or bool(
        colon and gpu and instance and digits.isascii() and digits.isdigit()
    )


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
