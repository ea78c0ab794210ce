"""What a host has: the result of discovery, and the only thing the planner knows of the machine."""

from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


class Gpu(Record):
    """One physical GPU.

    ``index`` counts in PCI order from 0 (NVML's order); ``minor`` is the N of /dev/nvidiaN and
    need not equal it. ``uuid`` is ``GPU-...`` in lower case, or has question marks where neither
    /proc nor NVML tells. ``pci_bus_id`` is ``dddd:bb:dd.f`` in lower case, as the driver's /proc
    directory names it.
    """

    __slots__ = ("index", "minor", "model", "pci_bus_id", "uuid")

    def __init__(self, index: int, uuid: str, minor: int, pci_bus_id: str, model: str) -> None:
        self.index: Final = index
        self.uuid: Final = uuid
        self.minor: Final = minor
        self.pci_bus_id: Final = pci_bus_id
        self.model: Final = model


class HostNode(Record):
    """A device node that exists on the host. ``name`` is relative to the dev root: ``nvidia0``."""

    __slots__ = ("gid", "host_path", "major", "minor", "mode", "name", "uid")

    def __init__(
        self, name: str, host_path: str, major: int, minor: int, mode: int, uid: int, gid: int
    ) -> None:
        self.name: Final = name
        self.host_path: Final = host_path
        self.major: Final = major
        self.minor: Final = minor
        self.mode: Final = mode
        self.uid: Final = uid
        self.gid: Final = gid


class DrmNode(Record):
    """A node of a GPU for rendering or for its screens: ``dri/renderD128``, ``dri/card1``.

    ``by_path`` is the name of the host's link to it in /dev/dri/by-path, empty where there is none.
    """

    __slots__ = ("by_path", "node", "pci_bus_id")

    def __init__(self, pci_bus_id: str, node: HostNode, by_path: str) -> None:
        self.pci_bus_id: Final = pci_bus_id
        self.node: Final = node
        self.by_path: Final = by_path


class Library(Record):
    """A driver library file.

    ``name`` is the catalogue name (``libcuda.so``), ``soname`` its DT_SONAME, ``path`` the resolved
    file as seen inside the driver root, ``host_path`` the same with the driver root in front,
    ``flags`` the ld.so.cache flags of its ABI (0x0303: x86-64), ``bits`` 32 or 64.
    """

    __slots__ = ("bits", "flags", "host_path", "name", "path", "soname")

    def __init__(
        self, name: str, soname: str, path: str, host_path: str, flags: int, bits: int
    ) -> None:
        self.name: Final = name
        self.soname: Final = soname
        self.path: Final = path
        self.host_path: Final = host_path
        self.flags: Final = flags
        self.bits: Final = bits


class HostFile(Record):
    """A binary, firmware image, socket or directory of the driver.

    ``group`` is the catalogue group it was found for (``binary``, ``firmware``, ``socket``, or one
    of catalog.FILE_GROUPS), ``name`` the name looked up (``nvidia-smi``; of FILE_GROUPS the path to
    be in a container), ``path`` where it stands inside the driver root (the resolved file),
    ``host_path`` the same with the root in front.
    """

    __slots__ = ("group", "host_path", "name", "path")

    def __init__(self, group: str, name: str, path: str, host_path: str) -> None:
        self.group: Final = group
        self.name: Final = name
        self.path: Final = path
        self.host_path: Final = host_path


class Inventory(Record):
    """Everything the planner needs to know of a host.

    ``majors`` maps a /proc/devices name (``nvidia``, ``nvidia-uvm``, ``nvidia-caps``) to its major;
    ``proc_files`` maps ``params``, ``version`` and ``registry`` to their text, and is empty where
    the host has no /proc/driver/nvidia. ``driver_version`` is not semver (``535.054.03``). ``drm``
    is only filled in for who needs it.
    """

    __slots__ = (
        "cuda_version",
        "driver_root",
        "driver_version",
        "drm",
        "files",
        "gpus",
        "libraries",
        "majors",
        "nodes",
        "proc_files",
        "proc_root",
    )

    def __init__(
        self,
        driver_version: str,
        cuda_version: str,
        driver_root: str,
        proc_root: str,
        majors: dict[str, int],
        gpus: tuple[Gpu, ...],
        nodes: tuple[HostNode, ...],
        libraries: tuple[Library, ...],
        files: tuple[HostFile, ...],
        proc_files: dict[str, str],
        drm: tuple[DrmNode, ...] = (),
    ) -> None:
        self.driver_version: Final = driver_version
        self.cuda_version: Final = cuda_version
        self.driver_root: Final = driver_root
        self.proc_root: Final = proc_root
        self.majors: Final = majors
        self.gpus: Final = gpus
        self.nodes: Final = nodes
        self.libraries: Final = libraries
        self.files: Final = files
        self.proc_files: Final = proc_files
        self.drm: Final = drm
