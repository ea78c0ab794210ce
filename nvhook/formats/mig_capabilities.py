"""NVIDIA's capabilities below /proc: which device minor permits what of a partitioned GPU (MIG).

A capability is named as in mig-minors: ``config``, ``monitor``, ``gpu0/gi1/access``,
``gpu0/gi1/ci0/access``; the number behind gpu is the N of /dev/nvidiaN.

Source: nvidia-container-stack reference, section 2.1 and appendix D; NVIDIA's MIG user guide.
"""

from nvhook.formats.proc_driver import is_decimal, parse_params

# Below /proc/driver.
MINORS_FILE = "nvidia-caps/mig-minors"
CONFIG, MONITOR = "config", "monitor"
_LONGEST = 6  # digits: a minor has 20 bits
_OLD_PREFIX = "mig-gpu-"


def parse_minors(text: str) -> dict[str, int]:
    """Return the minors in /proc/driver/nvidia-caps/mig-minors by capability.

    Lines that are not ``capability minor`` are ignored.
    """
    minors: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        if name and is_decimal(number) and len(number) <= _LONGEST:
            minors.setdefault(name.strip(), int(number))
    return minors


def parse_access(text: str) -> int | None:
    """Return the minor that a file of the capabilities tree names, None if it names none."""
    number = parse_params(text).get("DeviceFileMinor", "")
    return int(number) if is_decimal(number) and len(number) <= _LONGEST else None


def gpu_instance(gpu_minor: int, gi: int) -> str:
    """Return the name of the capability to use a GPU instance."""
    return f"gpu{gpu_minor}/gi{gi}/access"


def compute_instance(gpu_minor: int, gi: int, ci: int) -> str:
    """Return the name of the capability to use a compute instance."""
    return f"gpu{gpu_minor}/gi{gi}/ci{ci}/access"


def path_of(capability: str) -> str:
    """Return where a capability's file is, below /proc/driver/nvidia/capabilities."""
    gpu, slash, rest = capability.partition("/")
    return f"{gpu}/mig/{rest}" if slash else f"mig/{capability}"


def numbered(name: str, prefix: str) -> int | None:
    """Return the N of a name ``<prefix>N``, None for any other name."""
    number = name[len(prefix) :]
    is_one = name.startswith(prefix) and is_decimal(number) and len(number) <= _LONGEST
    return int(number) if is_one else None


def profile_of(device_name: str) -> str:
    """Return the profile in NVML's name of a MIG device: ``1g.5gb`` of ``NVIDIA A100 MIG 1g.5gb``.

    Empty where the name has none.
    """
    return device_name.rpartition(" MIG ")[2].strip() if " MIG " in device_name else ""


def parse_old_name(name: str) -> tuple[str, int, int] | None:
    """Return (GPU UUID in lower case, GI id, CI id) of ``MIG-GPU-<uuid>/<gi>/<ci>``.

    None for any other name. Drivers before 470 name MIG devices so.
    """
    parts = name.split("/")
    if len(parts) != 3 or not parts[0].lower().startswith(_OLD_PREFIX):
        return None
    if not all(is_decimal(part) and len(part) <= _LONGEST for part in parts[1:]):
        return None
    return parts[0][4:].lower(), int(parts[1]), int(parts[2])
