"""Texts of NVIDIA's kernel driver below /proc: GPU information, version, params, device majors.

Source: nvidia.ko's procfs code as seen in the samples of tests/data; drivers/char majors in
/proc/devices are printed by fs/char_dev.c as ``"%3d %s"``.
"""

from nvhook.errors import FormatError
from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

# NV_MAJOR_DEVICE_NUMBER: fixed by every NVIDIA driver, whatever name it registers.
FIXED_MAJOR = 195
UNKNOWN_UUID = "GPU-????????-????-????-????-????????????"

_HEX = frozenset("0123456789abcdef")
# "GPU Excluded" was called "Blacklisted" before driver 450.
_EXCLUDED_LABELS = ("GPU Excluded", "Blacklisted")
_LABELS = ("Model", "GPU UUID", "Bus Location", "Device Minor", "Card Type", *_EXCLUDED_LABELS)


class GpuInformation(Record):
    """What one ``gpus/<bus id>/information`` says.

    ``pci_bus_id`` is empty and ``minor`` None where the text lacks them. ``uuid`` holds
    question marks for a GPU that the driver has not initialised yet.
    """

    __slots__ = ("excluded", "minor", "model", "pci_bus_id", "uuid")

    def __init__(
        self, model: str, uuid: str, pci_bus_id: str, minor: int | None, excluded: bool
    ) -> None:
        self.model: Final = model
        self.uuid: Final = uuid
        self.pci_bus_id: Final = pci_bus_id
        self.minor: Final = minor
        self.excluded: Final = excluded


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


def is_known_uuid(uuid: str) -> bool:
    """Return whether a UUID is one, not empty and not the driver's question marks."""
    return bool(uuid) and "?" not in uuid


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


def parse_version(text: str) -> str:
    """Return the driver version in the text of /proc/driver/nvidia/version, digits as they stand.

    The compiler's version on the second line looks the same, so only the NVRM line counts.
    Raises: FormatError.
    """
    for line in text.splitlines():
        label, colon, value = line.partition(":")
        if not colon or label.strip() != "NVRM version":
            continue
        for word in value.split():
            if is_driver_version(word):
                return word
    raise FormatError("no driver version in /proc/driver/nvidia/version")


def is_driver_version(word: str) -> bool:
    """Return whether a word looks like ``535.054.03`` or ``580.142``: the first number is >= 100.

    The bound tells a driver version from ``libcuda.so.1.1`` on Jetson.
    """
    fields = word.split(".")
    return (
        2 <= len(fields) <= 4
        and all(len(field) <= 6 and is_decimal(field) for field in fields)
        and int(fields[0]) >= 100
    )


def parse_devices(text: str) -> dict[str, int]:
    """Return the majors of the character devices in /proc/devices by exact name.

    A name that is registered twice keeps its first major. Lines that are not ``major name`` are
    ignored, so are block devices.
    """
    majors: dict[str, int] = {}
    in_block_section = False
    for line in text.splitlines():
        number, name = [*line.split(None, 1), "", ""][:2]
        name = name.strip()
        if name == "devices:":
            in_block_section = number == "Block"
        elif name and not in_block_section and is_decimal(number) and len(number) <= 4:
            majors.setdefault(name, int(number))
    return majors


def nvidia_majors(text: str) -> dict[str, int]:
    """Return the majors of NVIDIA's devices in /proc/devices; the GPUs' is always ``nvidia``.

    Drivers before 550.40 registered it as ``nvidia-frontend``. Where both names stand with
    different numbers, the one with NVIDIA's fixed number is the driver's.
    Raises: FormatError if neither has it.
    """
    majors = {
        name: major for name, major in parse_devices(text).items() if name.startswith("nvidia")
    }
    frontend = majors.pop("nvidia-frontend", None)
    if frontend is None:
        return majors
    if majors.setdefault("nvidia", frontend) != frontend:
        if FIXED_MAJOR not in (majors["nvidia"], frontend):
            raise FormatError(
                f"/proc/devices has nvidia at {majors['nvidia']} and nvidia-frontend at {frontend}",
                "unload the module that is not NVIDIA's",
            )
        majors["nvidia"] = FIXED_MAJOR
    return majors


def parse_params(text: str) -> dict[str, str]:
    """Return the settings of params, registry and capability files, without quotes."""
    params: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip():
            value = value.strip()
            quoted = len(value) >= 2 and value[0] == value[-1] == '"'
            params[name.strip()] = value[1:-1] if quoted else value
    return params


def masked_params(text: str) -> str:
    """Return the params text with ``ModifyDeviceFiles: 0``, every other byte as it was.

    NVIDIA's user space would otherwise create device nodes in the container. A text without the
    setting gets it: absent means 1.
    """
    masked = []
    found = False
    for line in text.splitlines(keepends=True):
        if line.partition(":")[0].strip() == "ModifyDeviceFiles":
            found = True
            masked.append("ModifyDeviceFiles: 0\n")
        else:
            masked.append(line)
    if not found:
        if masked and not masked[-1].endswith("\n"):
            masked.append("\n")
        masked.append("ModifyDeviceFiles: 0\n")
    return "".join(masked)


def is_decimal(text: str) -> bool:
    """Return whether text is ASCII digits only, few enough for int() to be cheap."""
    return text.isascii() and text.isdigit() and len(text) <= 19
