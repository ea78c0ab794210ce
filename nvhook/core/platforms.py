"""Machines where NVIDIA's own kernel driver does not have the GPUs: WSL 2 and Jetsons.

Windows has the GPUs of WSL 2, one node stands for all of them, and the libraries are in Windows'
driver store. A Jetson's GPU is part of its Tegra chip; files of its system list what containers
get. Both have everything at the host's paths, and neither can give one GPU of several.

Source: nvidia-container-stack reference, sections 1.7, 2.1 and 3.
"""

from __future__ import annotations

from nvhook.core import catalog
from nvhook.core.edits import LdCacheUpdate, Mount, Plan, Symlink
from nvhook.core.layout import ContainerLayout
from nvhook.core.planner import library_edits, merge, required_libraries
from nvhook.errors import HostError, RequestError, UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Device, HostFile, Inventory

WSL, TEGRA = "wsl", "tegra"
NAMES = {WSL: "WSL 2", TEGRA: "a Jetson"}

# Below the driver root. Windows shows its driver packages, of all vendors and versions, as
# directories; CUDA itself is libcuda.so.1.1 in one of them.
WSL_STORE = "/usr/lib/wsl/drivers"
WSL_LIBRARIES = "/usr/lib/wsl/lib"
WSL_NODES = ("dxg",)
WSL_MARK = "libcuda.so.1.1"
# What else of a driver package the libraries load: NVIDIA's stack takes all of these.
WSL_DATA = (".bin", ".dll")

TEGRA_RELEASE = "/etc/nv_tegra_release"
CSV_DIRECTORY = "/etc/nvidia-container-runtime/host-files-for-container.d"
# The others (cuDNN, TensorRT...) only for an image with NVIDIA_REQUIRE_JETPACK=csv-mounts=all.
BASE_CSV = ("devices.csv", "drivers.csv", "l4t.csv")
# NVML came to Jetsons late: not having it is no fault.
_OPTIONAL: dict[str, set[str]] = {TEGRA: {"libnvidia-ml.so"}, WSL: set()}

# First release of Jetson Linux (L4T) -> CUDA, newest first; an older one is not known.
# Source: NVIDIA's release notes of JetPack 4.2 to 7.0.
L4T_CUDA = (
    ((38, 0), "13.0"),
    ((36, 4), "12.6"),
    ((36, 0), "12.2"),
    ((34, 0), "11.4"),
    ((32, 4), "10.2"),
    ((32, 0), "10.0"),
)


def driver_plan(capabilities: tuple[str, ...], inventory: Inventory) -> Plan:
    """Return the part of a plan that does not depend on which GPUs are given.

    Raises: HostError if something of the required set is missing on the host.
    """
    libraries, files = inventory.libraries, inventory.files
    if inventory.platform == WSL:  # a Jetson's lists know no capabilities
        libraries = tuple([each for each in libraries if _is_wanted(each.name, capabilities)])
        files = tuple([each for each in files if _is_wanted_file(each, capabilities)])
    required = required_libraries(capabilities) - _OPTIONAL[inventory.platform]
    have = {library.name for library in libraries}
    for name in sorted(required - have):
        raise _missing(name, inventory)
    edits: list[Edit] = [Mount(file.host_path, file.name) for file in files]
    links = {path for path, _ in inventory.links}
    more, cached = library_edits(libraries, ContainerLayout(), required, catalog.SYMLINKS)
    # What the system itself links is as it says.
    edits += [e for e in more if not (isinstance(e, Symlink) and e.container_path in links)]
    mounted = {each.container_path for each in edits if isinstance(each, Mount)}
    for path, target in inventory.links:
        if inventory.platform == TEGRA or target in mounted:
            edits.append(Symlink(path, target))
    if cached:
        edits.append(LdCacheUpdate(tuple(cached)))
    return merge((Plan(tuple(edits)),))


def check_whole(devices: Iterable[Device], inventory: Inventory) -> None:
    """Refuse some of several GPUs.

    Raises: RequestError.
    """
    given = {*devices}
    if given and len(given) < len(inventory.gpus):
        raise RequestError(
            f"{NAMES[inventory.platform]} gives a container all its {len(inventory.gpus)} GPUs "
            "or none",
            "ask for all: NVIDIA_VISIBLE_DEVICES=all, docker --gpus all",
        )


def refuse_running(inventory: Inventory) -> None:
    """Refuse to change a container that runs on such a machine.

    Raises: UnsupportedError.
    """
    raise UnsupportedError(
        f"GPUs of {NAMES[inventory.platform]} can't be given to a running container yet, nor taken",
        "start the container with them: NVIDIA_VISIBLE_DEVICES=all",
    )


def l4t_release(text: str) -> tuple[int, int]:
    """Return (36, 4) for ``# R36 (release), REVISION: 4.3``; zeros where none is said."""
    words = text.replace(",", " ").split()
    found = [0, 0]
    for place, (before, prefix) in enumerate((("#", "R"), ("REVISION:", ""))):
        after = words[words.index(before) + 1 :][:1] if before in words else []
        number = after[0].removeprefix(prefix).partition(".")[0] if after else ""
        found[place] = int(number) if number.isascii() and number.isdigit() else 0
    return found[0], found[1]


def l4t_cuda(release: tuple[int, int]) -> str:
    """Return the CUDA version of a release of Jetson Linux, empty where it is not known."""
    return next((cuda for first, cuda in L4T_CUDA if release >= first), "")


def _is_wanted(name: str, capabilities: tuple[str, ...]) -> bool:
    """Tell whether a library is needed; those that no capability has are needed by the others."""
    names = [catalog.LIBRARIES.get(capability, ()) for capability in capabilities]
    return name not in catalog.LISTED or any(name in each for each in names)


def _is_wanted_file(file: HostFile, capabilities: tuple[str, ...]) -> bool:
    name = file.path.rpartition("/")[2]
    is_program = file.group == "binary"
    return not is_program or any(name in catalog.BINARIES.get(c, ()) for c in capabilities)


def _missing(name: str, inventory: Inventory) -> HostError:
    if inventory.platform == WSL:
        return HostError(
            f"NVIDIA's driver package in {WSL_STORE} has no {name}",
            "update the NVIDIA driver of Windows, then: wsl --update, wsl --shutdown",
        )
    return HostError(
        f"no file in {CSV_DIRECTORY} names {name}, or it is not there",
        "install the Jetson's packages nvidia-l4t-init and nvidia-l4t-cuda",
    )
