"""Texts of NVIDIA's kernel driver below /proc: version, params, device majors.

Source: nvidia.ko's procfs code as seen in the samples of tests/data; drivers/char majors in
/proc/devices are printed by fs/char_dev.c as ``"%3d %s"``.
"""

from nvhook.errors import FormatError

# NV_MAJOR_DEVICE_NUMBER: fixed by every NVIDIA driver, whatever name it registers.
FIXED_MAJOR = 195


def is_known_uuid(uuid: str) -> bool:
    """Return whether a UUID is one, not empty and not the driver's question marks."""
    return bool(uuid) and "?" not in uuid


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
