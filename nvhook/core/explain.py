"""Explain a plan: why each edit is there, and what was looked for and not found, and where.

Only people's commands load this.
"""

from __future__ import annotations

from nvhook.core import catalog, places
from nvhook.core.edits import (
    SOCKET_OPTIONS,
    AdditionalGid,
    CgroupRule,
    EnvVar,
    LdCacheUpdate,
    Mount,
)
from nvhook.core.inventory import MigDevice
from nvhook.core.layout import COMPAT_DIRECTORY, TRIPLETS
from nvhook.core.mig_plans import node_names
from nvhook.formats import mig_capabilities
from nvhook.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Device, Inventory

LOADER_CACHE = "/etc/ld.so.cache"


@record
class Absent:
    """What was looked for and not found.

    ``kind`` is library, library32, program, file, firmware, socket or node; ``needed_by`` are
    driver capabilities asked for (empty: every container), ``looked_in`` places on the host.
    """

    kind: str
    name: str
    needed_by: tuple[str, ...]
    looked_in: tuple[str, ...]


# Part of a path in the container, and why it is there.
_REASONS = (
    ("/dev/dri/", "rendering and screens of the container's GPUs"),
    (catalog.PROFILE_FILE, "EGL uses the container's own GPUs only"),
    (catalog.PROC_DRIVER, "only the container's own GPUs are visible"),
    ("/firmware/", "firmware of the GPU's own processor"),
    ("/OpenCL/", "OpenCL finds the driver"),
    ("/vulkan/", "Vulkan finds the driver"),
    ("/glvnd/", "EGL finds the driver"),
    ("/egl/", "EGL finds the driver"),
    ("/gbm/", "EGL finds the driver"),
    ("/nvoptix.bin", "OptiX's own data"),
    ("/xorg", "Xorg finds the driver"),
    ("/X11", "Xorg finds the driver"),
)


def _paths(device: MigDevice) -> list[str]:
    """Return the container paths of a MIG device's own nodes and files."""
    gpu, gi = device.gpu.minor, device.gpu_instance
    names = (
        mig_capabilities.gpu_instance(gpu, gi),
        mig_capabilities.compute_instance(gpu, gi, device.compute_instance),
    )
    files = [
        f"{catalog.PROC_DRIVER}/capabilities/{mig_capabilities.path_of(name)}" for name in names
    ]
    return [*files, *[f"/dev/{name}" for name in node_names(device)]]


def why(edit: Edit, devices: tuple[Device, ...], capabilities: tuple[str, ...]) -> str:
    """Return what an edit is for: a GPU, or the capabilities that need it."""
    if isinstance(edit, LdCacheUpdate):
        in_image = any(each.container_path.startswith(COMPAT_DIRECTORY) for each in edit.libraries)
        first = f", those in {COMPAT_DIRECTORY} first" if in_image else ""
        return f"the container's loader finds the libraries{first}"
    if isinstance(edit, CgroupRule):
        return "without the rule, opening the node is refused"
    if isinstance(edit, AdditionalGid):
        return "the host gives its nodes to this group only"
    if isinstance(edit, EnvVar):
        return "NVIDIA's programs expect it"
    path = edit.container_path
    for device in devices:
        gpu = device.gpu if isinstance(device, MigDevice) else device
        if path == f"/dev/nvidia{gpu.minor}" or path.endswith(f"/gpus/{gpu.pci_bus_id}"):
            return f"GPU {gpu.index}"
        if isinstance(device, MigDevice) and path in _paths(device):
            return f"MIG device {device.name}"
    name = path.rpartition("/")[2]
    if name in catalog.CONTROL_NODES:
        return ", ".join(catalog.CONTROL_NODES[name][2]) or "every GPU container"
    needed = [
        capability
        for capability in capabilities
        if name in catalog.BINARIES.get(capability, ())
        or _library_name(name) in catalog.LIBRARIES.get(capability, ())
    ]
    if needed:
        return ", ".join(needed)
    if isinstance(edit, Mount) and edit.options == SOCKET_OPTIONS:
        return "a service of the driver on the host"
    return _why_by_place(path)


def _why_by_place(path: str) -> str:
    for part, reason in _REASONS:
        if part in path:
            return reason
    name = path.rpartition("/")[2]
    if name.startswith("lib") and ".so." in name and _library_name(name) not in catalog.LISTED:
        return "unlisted: it carries the driver's version (inject-unlisted-driver-libraries)"
    return "driver"


def _library_name(file_name: str) -> str:
    """Return libcuda.so of libcuda.so.1."""
    stem, dot_so, _ = file_name.partition(".so")
    return stem + dot_so


def absent(
    capabilities: tuple[str, ...], inventory: Inventory, machine: str, dev_root: str
) -> tuple[Absent, ...]:
    """Return what these capabilities look for and this host does not have, in catalogue order.

    Nothing is required of it: what is would have been an error. ``machine`` is what ``uname -m``
    prints.
    """
    found = (
        *_absent_nodes(capabilities, inventory, dev_root),
        *_absent_libraries(capabilities, inventory, machine),
        *_absent_files(capabilities, inventory, machine),
    )
    root = inventory.driver_root.rstrip("/")
    return tuple(
        [
            each
            if each.kind == "node"
            else replace(each, looked_in=tuple([root + place for place in each.looked_in]))
            for each in found
        ]
    )


def _absent_nodes(
    capabilities: tuple[str, ...], inventory: Inventory, dev_root: str
) -> Iterator[Absent]:
    present = {node.name for node in inventory.nodes}
    for name, (_, _, needed_by) in catalog.CONTROL_NODES.items():
        wanted = tuple([each for each in capabilities if each in needed_by])
        if name not in present and (wanted or not needed_by):
            yield Absent("node", name, wanted, (dev_root,))
    graphics = tuple([each for each in capabilities if each in catalog.DRM_CAPABILITIES])
    if graphics and not inventory.drm:
        yield Absent("node", "dri/renderD*", graphics, (f"{dev_root.rstrip('/')}/dri",))


def _absent_libraries(
    capabilities: tuple[str, ...], inventory: Inventory, machine: str
) -> Iterator[Absent]:
    have = {(library.name, library.bits) for library in inventory.libraries}
    kinds: list[tuple[str, int, tuple[str, ...]]] = [("library", 64, places.LIBRARY_DIRECTORIES)]
    if "compat32" in capabilities and machine == "x86_64":
        kinds.append(("library32", 32, places.LIBRARY_DIRECTORIES_32))
    for kind, bits, directories in kinds:
        looked_in = [each.format(triplet=TRIPLETS.get(machine, machine)) for each in directories]
        # Of what is in the older of two ways nothing is missed where the newer one is there.
        given_up = catalog.WITHOUT_GLVND if (catalog.GLVND, bits) in have else ()
        for name, wanted in _needs(catalog.LIBRARIES, capabilities):
            if (name, bits) not in have and name not in given_up:
                yield Absent(kind, name, wanted, (LOADER_CACHE, *looked_in))


def _absent_files(
    capabilities: tuple[str, ...], inventory: Inventory, machine: str
) -> Iterator[Absent]:
    have = {(file.group, file.name) for file in inventory.files}
    for name, wanted in _needs(catalog.BINARIES, capabilities):
        if ("binary", name) not in have:
            yield Absent("program", name, wanted, catalog.BINARY_DIRECTORIES)
    for group, _, names in places.DATA_FILES:
        needed_by = catalog.FILE_GROUPS[group]
        wanted = tuple([each for each in capabilities if each in needed_by])
        full = [name.format(machine=machine) for name in names]
        is_there = any(g == group and n.endswith(f"/{name}") for g, n in have for name in full)
        if wanted and not is_there:
            yield Absent("file", full[0], wanted, places.DATA_DIRECTORIES)
    wanted = tuple([each for each in capabilities if each in catalog.FIRMWARE_CAPABILITIES])
    if wanted and not any(group == "firmware" for group, _ in have):
        directory = f"nvidia/{inventory.driver_version}"
        looked_in = tuple([f"{each}/{directory}" for each in places.FIRMWARE_DIRECTORIES])
        yield Absent("firmware", "gsp*.bin", wanted, looked_in)
    for capability in capabilities:
        for alternatives in catalog.SOCKETS.get(capability, ()):
            if not any(("socket", path) in have for path in alternatives):
                yield Absent("socket", alternatives[0], (capability,), alternatives)


def _needs(
    table: dict[str, tuple[str, ...]], capabilities: Iterable[str]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return each name of a table of capabilities, with those of the given ones that have it."""
    needed: dict[str, list[str]] = {}
    for capability in capabilities:
        for name in table.get(capability, ()):
            needed.setdefault(name, []).append(capability)
    return [(name, tuple(wanted)) for name, wanted in needed.items()]
