"""Which devices an operator means. Pure.

A selector is an index (``0``), a MIG device's index (``0:1``), a UUID, a PCI bus id, or a shell
pattern for the model (with or without the maker) or for the MIG profile. One that means a GPU
means its MIG devices, too.
"""

from fnmatch import fnmatchcase

from nvhook.core.inventory import Device, MigDevice
from nvhook.errors import FormatError
from nvhook.formats.gpu_information import parse_bus_id


def matches(device: Device, selector: str) -> bool:
    """Tell whether a selector means a device."""
    gpu = device.gpu if isinstance(device, MigDevice) else device
    numbers = _numbers(selector)
    if numbers:
        own = (gpu.index, device.index) if isinstance(device, MigDevice) else (gpu.index,)
        return own[: len(numbers)] == numbers
    if selector.lower() in {gpu.uuid.lower(), device.uuid.lower()}:
        return True
    if _bus_id(selector) is not None:
        return _bus_id(selector) == _bus_id(gpu.pci_bus_id)
    if fits(gpu.model, selector):
        return True
    return isinstance(device, MigDevice) and fnmatchcase(device.profile, selector)


def fits(model: str, pattern: str) -> bool:
    """Tell whether a shell pattern means a model; it may leave out the maker."""
    return fnmatchcase(model, pattern) or fnmatchcase(model.removeprefix("NVIDIA "), pattern)


def index_of(device: Device) -> str:
    """Return what a device is called by number: ``0``, a MIG device ``0:1``."""
    return device.name if isinstance(device, MigDevice) else str(device.index)


def _numbers(selector: str) -> tuple[int, ...]:
    parts = selector.split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
        return ()
    return tuple(int(part) for part in parts) if len(selector) < 20 else ()


def _bus_id(text: str) -> tuple[int, int, int, int] | None:
    try:
        return parse_bus_id(text if text.count(":") == 2 else f"0000:{text}")
    except FormatError:
        return None
