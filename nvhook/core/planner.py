"""Request + Inventory -> Plan. Pure: same arguments, same edits, whoever renders them."""

from __future__ import annotations

from nvhook.core import catalog
from nvhook.core.device_edits import device_edits, find_node, gpu_plan
from nvhook.core.edits import (
    SOCKET_OPTIONS,
    AdditionalGid,
    CachedLibrary,
    CgroupRule,
    DeviceNode,
    EnvVar,
    LdCacheUpdate,
    Mount,
    Plan,
    Symlink,
    TextFile,
)
from nvhook.core.inventory import Gpu
from nvhook.errors import HostError, assert_never
from nvhook.formats.proc_driver import masked_params

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Device, Inventory, Library
    from nvhook.core.layout import ContainerLayout


def plan_request(
    capabilities: Iterable[str],
    devices: tuple[Device, ...],
    inventory: Inventory,
    layout: ContainerLayout,
    device_rules: bool = True,
    manages_mig: tuple[str, ...] = (),
) -> Plan:
    """Return everything a container gets that asked for these capabilities and devices.

    ``manages_mig`` names what of ``config`` and ``monitor`` it may do with the MIG devices of these
    GPUs.

    Raises: HostError if something of the required set is missing on the host.
    """
    wanted = tuple(sorted(capabilities))
    if inventory.platform:
        from nvhook.core import platforms  # not loaded where NVIDIA's own driver is

        platforms.check_whole(devices, inventory)
    plan = merge(
        (
            driver_plan(wanted, inventory, layout, uvm_required=bool(devices)),
            *(device_plan(device, inventory) for device in devices),
        )
    )
    if devices and not inventory.platform and any(c in catalog.GRAPHICS for c in wanted):
        from nvhook.core.graphics import profile  # not loaded for compute

        plan = merge((plan, Plan((profile(devices),))))
    if manages_mig:
        from nvhook.core.mig_plans import with_management

        plan = with_management(plan, manages_mig, devices, inventory)
    return plan if device_rules else without_rules(plan)


def without_rules(plan: Plan) -> Plan:
    """Return a plan that leaves the device cgroup alone."""
    return Plan(tuple(edit for edit in plan.edits if not isinstance(edit, CgroupRule)))


def driver_plan(
    capabilities: tuple[str, ...],
    inventory: Inventory,
    layout: ContainerLayout,
    uvm_required: bool = True,
) -> Plan:
    """Return the part of a plan that does not depend on which GPUs are given."""
    implied = [name for c in capabilities for name in catalog.IMPLIED.get(c, ())]
    capabilities = tuple(sorted({*capabilities, *implied}))
    if inventory.platform:
        from nvhook.core import platforms

        return platforms.driver_plan(capabilities, inventory)
    edits: list[Edit] = [
        *_control_nodes(capabilities, inventory, uvm_required),
        *_proc_mask(inventory),
        *_files(capabilities, inventory, layout),
    ]
    required = required_libraries(capabilities)
    known_links = catalog.SYMLINKS
    if any(c in catalog.GRAPHICS for c in capabilities):
        known_links += catalog.GRAPHICS_SYMLINKS
    more, cached = library_edits(_libraries(capabilities, inventory), layout, required, known_links)
    edits += more
    # In front: of two libraries of a name the first is the loader's.
    cached[:0] = _compat_libraries(capabilities, inventory, layout)
    if cached:
        edits.append(LdCacheUpdate(tuple(cached)))
    return Plan(tuple(edits))


def library_edits(
    libraries: Iterable[Library],
    layout: ContainerLayout,
    required: set[str],
    known_links: tuple[tuple[str, str, str], ...],
) -> tuple[list[Edit], list[CachedLibrary]]:
    """Return the mounts of libraries, then their links, and what the loader is to find.

    ``required`` are catalogue names; ``known_links`` are like catalog.SYMLINKS.
    """
    mounts: list[Edit] = []
    links: list[Edit] = []
    cached: list[CachedLibrary] = []
    for library in libraries:
        directory = _library_directory(library, layout)
        path = f"{directory}/{_basename(library.path)}"
        mounts.append(Mount(library.host_path, path, required=library.name in required))
        soname = library.soname or _basename(library.path)
        if soname != _basename(path):
            links.append(Symlink(f"{directory}/{soname}", _basename(path)))
        cached.append(CachedLibrary(soname, f"{directory}/{soname}", library.flags))
        for name, of, target in known_links:
            if of == library.name:
                link = target.replace("{file}", _basename(path))
                links.append(Symlink(f"{directory}/{name}", link))
                # ldconfig lists .so links under their own name
                if name.endswith(".so") and "/" not in name:
                    cached.append(CachedLibrary(name, f"{directory}/{name}", library.flags))
    return [*mounts, *links], cached


def device_plan(device: Device, inventory: Inventory) -> Plan:
    """Return the part of a plan that gives one device."""
    if isinstance(device, Gpu):
        return gpu_plan(device, inventory)
    from nvhook.core.mig_plans import mig_plan, parent_plan

    return merge((parent_plan(device, inventory), mig_plan(device, inventory)))


def merge(plans: Iterable[Plan]) -> Plan:
    """Return one plan with every edit once, in order; one loader cache update at the end."""
    edits: dict[Edit, None] = {}
    libraries: dict[CachedLibrary, None] = {}
    for plan in plans:
        for edit in plan.edits:
            if isinstance(edit, LdCacheUpdate):
                libraries.update(dict.fromkeys(edit.libraries))
            else:
                edits[edit] = None
    update = (LdCacheUpdate(tuple(libraries)),) if libraries else ()
    return Plan((*edits, *update))


def rest(plan: Plan, devices: Iterable[tuple[str, int, int]]) -> Plan:
    """Return what a spec leaves to the hook; devices are the (path, major, minor) it has.

    Mounts stay: the hook sees for itself which are there.
    """
    made = set(devices)
    edits: list[Edit] = []
    for edit in plan.edits:
        match edit:
            case DeviceNode():
                if (edit.container_path, edit.major, edit.minor) not in made:
                    edits.append(edit)
            case Mount() | Symlink() | TextFile() | LdCacheUpdate():
                edits.append(edit)
            case CgroupRule() | EnvVar() | AdditionalGid():
                pass  # the spec's
            case _:
                assert_never(edit)
    return Plan(tuple(edits))


def _control_nodes(
    capabilities: tuple[str, ...], inventory: Inventory, uvm_required: bool
) -> Iterable[Edit]:
    present = {node.name for node in inventory.nodes}
    for name, (major_name, minor, needed_by) in catalog.CONTROL_NODES.items():
        if needed_by and not any(c in needed_by for c in capabilities):
            continue
        required = name in catalog.REQUIRED_NODES and (name != "nvidia-uvm" or uvm_required)
        if not required and name not in present:
            continue
        yield from device_edits(find_node(name, major_name, minor, inventory))


def _proc_mask(inventory: Inventory) -> Iterable[Edit]:
    """Hide the host's /proc/driver/nvidia: GPUs not given, and ModifyDeviceFiles.

    With ModifyDeviceFiles: 1 the driver's own tools try to create nodes inside the container.
    """
    if not inventory.proc_files:
        return
    yield Mount("", catalog.PROC_DRIVER, ("ro", "nosuid", "nodev", "noexec"))
    for name in catalog.PROC_FILES:
        if name in inventory.proc_files:
            text = inventory.proc_files[name]
            masked = masked_params(text) if name == "params" else text
            yield TextFile(f"{catalog.PROC_DRIVER}/{name}", masked)


def _compat_libraries(
    capabilities: tuple[str, ...], inventory: Inventory, layout: ContainerLayout
) -> tuple[CachedLibrary, ...]:
    if layout.compat is None or "compute" not in capabilities:
        return ()
    from nvhook.core import compat  # not loaded for the many images without

    wanted = compat.is_wanted(layout.compat, inventory.driver_version, inventory.cuda_version)
    return layout.compat.libraries if wanted else ()


def _files(
    capabilities: tuple[str, ...], inventory: Inventory, layout: ContainerLayout
) -> Iterable[Edit]:
    binaries = {name for c in capabilities for name in catalog.BINARIES.get(c, ())}
    sockets = {path for c in capabilities for paths in catalog.SOCKETS.get(c, ()) for path in paths}
    firmware = any(c in catalog.FIRMWARE_CAPABILITIES for c in capabilities)
    for file in inventory.files:
        if file.group == "binary" and file.name in binaries:
            directory = layout.binaries or file.path.rpartition("/")[0]
            yield Mount(file.host_path, f"{directory}/{file.name}")
        elif file.group == "socket" and file.name in sockets:
            yield Mount(file.host_path, file.name, SOCKET_OPTIONS)
        elif file.group == "firmware" and firmware:
            # Where the driver looks, whatever the host's own directories link to.
            directory = f"/lib/firmware/nvidia/{inventory.driver_version}"
            yield Mount(file.host_path, f"{directory}/{file.name}")
        elif file.group == catalog.NAMED_LIBRARIES and _is_kept(file.name, layout):
            pass  # its library is there already
        elif any(c in catalog.FILE_GROUPS.get(file.group, ()) for c in capabilities):
            yield Mount(file.host_path, file.name)
            link, target = catalog.XORG_LINK
            target = target.replace("{version}", inventory.driver_version)
            if _basename(file.name) == target:
                yield Symlink(f"{file.name.rpartition('/')[0]}/{link}", target)


def _is_kept(path: str, layout: ContainerLayout) -> bool:
    """Tell whether a library of the host is at this path in the container anyway."""
    directory = path.rpartition("/")[0]
    return not layout.libraries or directory in (layout.libraries, layout.libraries32)


def _libraries(capabilities: tuple[str, ...], inventory: Inventory) -> list[Library]:
    names = {name for c in capabilities for name in catalog.LIBRARIES.get(c, ())}
    unlisted = any(c in catalog.UNLISTED_CAPABILITIES for c in capabilities)
    glvnd = {library.bits for library in inventory.libraries if library.name == catalog.GLVND}
    found = [
        library
        for library in inventory.libraries
        if (library.name in names or (unlisted and library.name not in catalog.LISTED))
        and (library.bits == 64 or "compat32" in capabilities)
        and not (library.name in catalog.WITHOUT_GLVND and library.bits in glvnd)
    ]
    have = {library.name for library in found if library.bits == 64}
    for capability in capabilities:
        for name in catalog.REQUIRED_LIBRARIES.get(capability, ()):
            if name not in have:
                raise HostError(
                    f"the driver's {name} for version {inventory.driver_version} was not found "
                    f"below {inventory.driver_root}",
                    "install the driver's user-space libraries, run ldconfig, or set driver-root",
                )
    return found


def required_libraries(capabilities: tuple[str, ...]) -> set[str]:
    """Return the catalogue names of what these capabilities can't do without."""
    return {name for c in capabilities for name in catalog.REQUIRED_LIBRARIES.get(c, ())}


def _library_directory(library: Library, layout: ContainerLayout) -> str:
    chosen = layout.libraries if library.bits == 64 else layout.libraries32
    return chosen or library.path.rpartition("/")[0]


def _basename(path: str) -> str:
    return path.rpartition("/")[2]
