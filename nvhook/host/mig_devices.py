"""Find MIG devices: loaded only where some may be meant, on a host that may have some.

Which instances exist, the capabilities tree below /proc says; how NVML numbers and calls them, a
child process asks once, and a file remembers it until an instance comes or goes.
"""

from __future__ import annotations

from nvhook import observations
from nvhook.core.inventory import MigDevice
from nvhook.core.mig_plans import node_name
from nvhook.errors import FormatError, HostError
from nvhook.formats import mig_capabilities
from nvhook.host.driver_texts import driver_directory, read_text
from nvhook.host.inventory_cache import remember, remembered, rows, values
from nvhook.host.nodes import read_node
from nvhook.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvhook.core.inventory import Gpu, HostNode, Inventory

FILE_NAME = "mig.json"
# Raise it with every change of the file's content or of what discovery finds.
SCHEMA = 1
FIELDS = (
    ("gpu_index", int),
    ("index", int),
    ("uuid", str),
    ("profile", str),
    ("gpu_instance", int),
    ("compute_instance", int),
    ("gpu_instance_minor", int),
    ("compute_instance_minor", int),
)
# 32 GPUs with 15 GPU instances of 8 compute instances each: 100 KB.
MAX_MINORS = 1 << 20


@record
class Instance:
    """A compute instance that exists; ``inode`` is its directory's, another one when made anew."""

    gpu: Gpu
    gi: int
    ci: int
    inode: int


def add_to(
    inventory: Inventory, dev_root: str, state_directory: str, whole: bool = False
) -> Inventory:
    """Return an inventory with the MIG devices and the nodes of their capabilities.

    ``whole``: with the minors of all capabilities, and the nodes to manage MIG.

    Raises: HostError for an instance whose capability has no minor.
    """
    capabilities = _Capabilities(inventory.proc_root)
    devices = _devices(inventory, capabilities, state_directory)
    minors = {each.gpu_instance_minor for each in devices}
    minors |= {each.compute_instance_minor for each in devices}
    table = capabilities.all(_instances(inventory)) if whole else {}
    minors |= {
        table[name] for name in (mig_capabilities.CONFIG, mig_capabilities.MONITOR) if name in table
    }
    nodes: list[HostNode] = []
    for minor in sorted(minors):
        node = read_node(dev_root.rstrip("/"), node_name(minor))
        nodes += [node] if node is not None else []
    return replace(
        inventory, nodes=(*inventory.nodes, *nodes), mig_devices=devices, mig_capabilities=table
    )


def _devices(
    inventory: Inventory, capabilities: _Capabilities, state_directory: str
) -> tuple[MigDevice, ...]:
    instances = [*_instances(inventory)]
    if not instances:
        return ()
    key = _key(inventory, instances)
    path = f"{state_directory.rstrip('/')}/{FILE_NAME}"
    cached = _read(path, key, inventory.gpus)
    if cached is not None:
        return cached
    with observations.Paused():
        devices = _discover(inventory, instances, capabilities)
    if all(device.uuid for device in devices):
        remember(path, key, {"devices": values(devices, FIELDS)})
    else:
        observations.spoil("NVML does not know all MIG devices")
    return devices


def _instances(inventory: Inventory) -> Iterator[Instance]:
    """Yield the compute instances of the GPUs, in the order of their ids."""
    tree = driver_directory(inventory.proc_root) + "/capabilities"
    for gpu in inventory.gpus:
        partitions = f"{tree}/gpu{gpu.minor}/mig"
        for gi, _ in _numbered(partitions, "gi"):
            for ci, inode in _numbered(f"{partitions}/gi{gi}", "ci"):
                yield Instance(gpu, gi, ci, inode)


def _numbered(directory: str, prefix: str) -> list[tuple[int, int]]:
    """Return (N, inode) of the entries ``<prefix>N``, in order; none where nothing is."""
    entries = observations.inodes(directory, prefix)
    found = [(mig_capabilities.numbered(name, prefix), inode) for name, inode in entries]
    return sorted([(number, inode) for number, inode in found if number is not None])


def _key(inventory: Inventory, instances: list[Instance]) -> list[str]:
    """Return what the numbers and names of MIG devices hang on."""
    boot_id = read_text(inventory.proc_root.rstrip("/") + "/sys/kernel/random/boot_id", 64) or ""
    return [
        str(SCHEMA),
        inventory.driver_root,
        inventory.proc_root,
        boot_id.strip(),
        inventory.driver_version,
        " ".join([f"{gpu.index}={gpu.minor}={gpu.pci_bus_id}" for gpu in inventory.gpus]),
        " ".join([f"{each.gpu.minor}/{each.gi}/{each.ci}={each.inode}" for each in instances]),
    ]


def _read(path: str, key: list[str], gpus: tuple[Gpu, ...]) -> tuple[MigDevice, ...] | None:
    by_index = {gpu.index: gpu for gpu in gpus}
    try:
        return rows(
            remembered(path, key).get("devices"),
            lambda index, *rest: MigDevice(by_index[index], *rest),
            FIELDS,
        )
    except (FormatError, KeyError):
        return None


def _discover(
    inventory: Inventory, instances: list[Instance], capabilities: _Capabilities
) -> tuple[MigDevice, ...]:
    from nvhook.host.nvml import mig_devices

    library = inventory.library("libnvidia-ml.so")
    answers = mig_devices(library.host_path) if library is not None else {}
    devices = []
    for each in instances:
        answer = answers.get((each.gpu.pci_bus_id, each.gi, each.ci))
        index, uuid, name = (-1, "", "") if answer is None else answer
        gpu_instance = mig_capabilities.gpu_instance(each.gpu.minor, each.gi)
        compute_instance = mig_capabilities.compute_instance(each.gpu.minor, each.gi, each.ci)
        devices.append(
            MigDevice(
                each.gpu,
                index,
                uuid,
                mig_capabilities.profile_of(name),
                each.gi,
                each.ci,
                capabilities.minor(gpu_instance),
                capabilities.minor(compute_instance),
            )
        )
    return tuple(sorted(devices, key=lambda device: (device.gpu_index, device.index)))


class _Capabilities:
    """The minors of capabilities: from the tree, or else from the driver's table of all."""

    def __init__(self, proc_root: str) -> None:
        self._tree = driver_directory(proc_root) + "/capabilities"
        self._path = f"{proc_root.rstrip('/')}/driver/{mig_capabilities.MINORS_FILE}"
        self._table: dict[str, int] | None = None

    def minor(self, capability: str) -> int:
        """Return a capability's minor.

        Raises: HostError where the driver tells none.
        """
        found = self._in_tree(capability)
        if found is None:
            found = self.table().get(capability)
        if found is None:
            raise HostError(
                f"the driver tells no device minor for capability {capability}",
                f"neither {self._tree} nor {self._path} has it",
            )
        return found

    def all(self, instances: Iterator[Instance]) -> dict[str, int]:
        """Return the driver's table, or where there is none, what stands in the tree."""
        if self.table():
            return self.table()
        names = {mig_capabilities.CONFIG: None, mig_capabilities.MONITOR: None}
        for each in instances:
            names[mig_capabilities.gpu_instance(each.gpu.minor, each.gi)] = None
            names[mig_capabilities.compute_instance(each.gpu.minor, each.gi, each.ci)] = None
        found = {name: self._in_tree(name) for name in names}
        return {name: minor for name, minor in found.items() if minor is not None}

    def table(self) -> dict[str, int]:
        """Return what mig-minors says, empty where the driver has none."""
        if self._table is None:
            self._table = mig_capabilities.parse_minors(read_text(self._path, MAX_MINORS) or "")
        return self._table

    def _in_tree(self, capability: str) -> int | None:
        return mig_capabilities.parse_access(
            read_text(f"{self._tree}/{mig_capabilities.path_of(capability)}", 4096) or ""
        )
