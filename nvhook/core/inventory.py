"""What a host has: the result of discovery, and the only thing the planner knows of the machine."""

from __future__ import annotations

from nvhook.record import EMPTY, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@record
class Gpu:
    """One physical GPU.

    ``index`` counts in PCI order from 0 (NVML's order); ``minor`` is the N of /dev/nvidiaN and
    need not equal it. ``uuid`` is ``GPU-...`` in lower case, or has question marks where neither
    /proc nor NVML tells. ``pci_bus_id`` is ``dddd:bb:dd.f`` in lower case, as the driver's /proc
    directory names it.
    """

    index: int
    uuid: str
    minor: int
    pci_bus_id: str
    model: str


@record
class MigDevice:
    """A MIG device: a compute instance of a partitioned GPU.

    ``index`` counts within its GPU in NVML's order, ``uuid`` is ``MIG-...`` (before driver 470
    ``MIG-GPU-<uuid>/<gi>/<ci>``), ``profile`` ``1g.5gb`` or empty; where NVML does not answer,
    index is -1 and uuid empty. ``gpu_instance`` and ``compute_instance`` are the ids of its GPU
    instance, and of its compute instance within that; the minors are those of their capabilities,
    the N of /dev/nvidia-caps/nvidia-capN.
    """

    gpu: Gpu
    index: int
    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    gpu_instance_minor: int
    compute_instance_minor: int

    @property
    def gpu_index(self) -> int:
        """The index of its GPU."""
        return self.gpu.index

    @property
    def name(self) -> str:
        """What NVIDIA's tools call it by number: ``0:1``; ``0:?`` where NVML gave it none."""
        return f"{self.gpu_index}:{self.index if self.index >= 0 else '?'}"


@record
class HostNode:
    """A device node that exists on the host. ``name`` is relative to the dev root: ``nvidia0``."""

    name: str
    host_path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


@record
class DrmNode:
    """A node of a GPU for rendering or for its screens: ``dri/renderD128``, ``dri/card1``.

    ``by_path`` is the name of the host's link to it in /dev/dri/by-path, empty where there is none.
    """

    pci_bus_id: str
    node: HostNode
    by_path: str


@record
class Library:
    """A driver library file.

    ``name`` is the catalogue name (``libcuda.so``), ``soname`` its DT_SONAME, ``path`` the resolved
    file as seen inside the driver root, ``host_path`` the same with the driver root in front,
    ``flags`` the ld.so.cache flags of its ABI (0x0303: x86-64), ``bits`` 32 or 64.
    """

    name: str
    soname: str
    path: str
    host_path: str
    flags: int
    bits: int


@record
class HostFile:
    """A binary, firmware image, socket or directory of the driver.

    ``group`` is the catalogue group it was found for (``binary``, ``firmware``, ``socket``, or one
    of catalog.FILE_GROUPS), ``name`` the name looked up (``nvidia-smi``; of FILE_GROUPS the path to
    be in a container), ``path`` where it stands inside the driver root (the resolved file),
    ``host_path`` the same with the root in front.
    """

    group: str
    name: str
    path: str
    host_path: str


@record
class Inventory:
    """Everything the planner needs to know of a host.

    ``majors`` maps a /proc/devices name (``nvidia``, ``nvidia-uvm``, ``nvidia-caps``) to its major;
    ``proc_files`` maps ``params``, ``version`` and ``registry`` to their text, and is empty where
    the host has no /proc/driver/nvidia. ``driver_version`` is not semver (``535.054.03``).
    ``mig_devices`` are there where they were looked for (host.mig_devices), with their capability
    nodes among ``nodes``; ``mig_capabilities`` has the minors of all capabilities by name
    (formats.mig_capabilities) where a container shall manage MIG. ``drm`` is only filled in for who
    needs it. ``platform`` is empty where NVIDIA's own kernel driver has the GPUs, else a name of
    core.platforms: there ``nodes`` are all that a container with GPUs gets, and ``links`` (path,
    target) stand beside the files.
    """

    driver_version: str
    cuda_version: str
    driver_root: str
    proc_root: str
    majors: Mapping[str, int]
    gpus: tuple[Gpu, ...]
    nodes: tuple[HostNode, ...]
    libraries: tuple[Library, ...]
    files: tuple[HostFile, ...]
    proc_files: Mapping[str, str]
    mig_devices: tuple[MigDevice, ...] = ()
    mig_capabilities: Mapping[str, int] = EMPTY
    drm: tuple[DrmNode, ...] = ()
    platform: str = ""
    links: tuple[tuple[str, str], ...] = ()

    def library(self, name: str) -> Library | None:
        """Return the 64-bit library of this catalogue name."""
        return next((each for each in self.libraries if (each.name, each.bits) == (name, 64)), None)


Device = Gpu | MigDevice


def gpus_of(devices: Iterable[Device]) -> tuple[Gpu, ...]:
    """Return the GPUs that devices are, or are part of, each once and in order."""
    gpus = [each.gpu if isinstance(each, MigDevice) else each for each in devices]
    return tuple(dict.fromkeys(gpus))
