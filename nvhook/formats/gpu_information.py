"""What the driver tells of one GPU: ``gpus/<bus id>/information``, UUIDs, PCI bus ids.

Source: nvidia.ko's procfs code as seen in the samples of tests/data.
"""

from __future__ import annotations

from nvhook.errors import FormatError
from nvhook.formats.proc_driver import is_decimal
from nvhook.record import record

UNKNOWN_UUID = "GPU-????????-????-????-????-????????????"

_HEX = frozenset("0123456789abcdef")
# "GPU Excluded" was called "Blacklisted" before driver 450.
_EXCLUDED_LABELS = ("GPU Excluded", "Blacklisted")
_LABELS = ("Model", "GPU UUID", "Bus Location", "Device Minor", "Card Type", *_EXCLUDED_LABELS)


@record
class GpuInformation:
    """What one ``gpus/<bus id>/information`` says.

    ``pci_bus_id`` is empty and ``minor`` None where the text lacks them. ``uuid`` holds
    question marks for a GPU that the driver has not initialised yet.
    """

    model: str
    uuid: str
    pci_bus_id: str
    minor: int | None
    excluded: bool


def parse_information(text: str) -> tuple[GpuInformation, ...]:
    """Return the GPUs in the text of one information file, or of several joined.

    Raises: FormatError for no GPU at all and for the /proc/driver/nvidia/cards layout, which has
    neither UUID nor minor.
    """
    sections: list[dict[str, str]] = []
    for line in text.splitlines():
        label, colon, value = line.partition(":")
        label = label.strip()
        if not colon or label not in _LABELS:
            continue
        if not sections or label == "Model" or label in sections[-1]:
            sections.append({})
        sections[-1][label] = value.strip()
    if not sections:
        raise FormatError("no GPU in the driver's information text")
    return tuple([_information(section) for section in sections])


def _information(fields: dict[str, str]) -> GpuInformation:
    if "Card Type" in fields:
        raise FormatError(
            "GPU information is in the cards layout of drivers before 304",
            "install a current NVIDIA driver",
        )
    uuid = fields.get("GPU UUID", "")
    minor = fields.get("Device Minor")
    if minor is not None and not is_decimal(minor):
        raise FormatError(f"device minor {minor!r} of a GPU is not a number")
    location = fields.get("Bus Location")
    return GpuInformation(
        model=fields.get("Model", "Unknown"),
        uuid=normalize_uuid(uuid) if uuid else UNKNOWN_UUID,
        pci_bus_id=normalize_bus_id(location) if location else "",
        minor=None if minor is None else int(minor),
        excluded=any(fields.get(label, "").lower() == "yes" for label in _EXCLUDED_LABELS),
    )


def normalize_uuid(uuid: str) -> str:
    """Return a UUID as the inventory has it: prefix ``GPU-`` kept, the rest in lower case."""
    return "GPU-" + uuid[4:].lower() if uuid[:4].lower() == "gpu-" else uuid.lower()


def parse_bus_id(text: str) -> tuple[int, int, int, int]:
    """Return (domain, bus, device, function) of ``dddd:bb:dd.f``; NVML writes 8 d's.

    Raises: FormatError.
    """
    parts = text.strip().lower().replace(".", ":", 1).split(":")
    if (
        "." not in text
        or len(parts) != 4
        or not all(0 < len(part) <= 8 and _HEX.issuperset(part) for part in parts)
    ):
        raise FormatError(f"{text!r} is not a PCI bus id (dddd:bb:dd.f)")
    domain, bus, device, function = [int(part, 16) for part in parts]
    if bus > 0xFF or device > 0x1F or function > 7:
        raise FormatError(f"{text!r} is not a PCI bus id (dddd:bb:dd.f)")
    return domain, bus, device, function


def normalize_bus_id(text: str) -> str:
    """Return a PCI bus id in the form of /proc/driver/nvidia/gpus: ``dddd:bb:dd.f``, lower case."""
    domain, bus, device, function = parse_bus_id(text)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
