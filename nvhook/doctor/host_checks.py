"""The driver: loaded, of which kind and age, its libraries and its services."""

import os

from nvhook.core.catalog import REQUIRED_LIBRARIES, SOCKETS
from nvhook.doctor.check import Check, failed, listed, not_applicable, not_checked, ok, warning
from nvhook.doctor.facts import HostFacts
from nvhook.errors import FormatError, NvhookError
from nvhook.formats import ldcache
from nvhook.formats.proc_driver import is_known_uuid
from nvhook.host.libraries import find_libraries
from nvhook.host.root_paths import open_file, resolve

# Major versions. NVIDIA's container stack asks for 418.81.07; CUDA 12 for 525.60.13 (CUDA release
# notes, minor version compatibility).
OLDEST_BRANCH, CUDA_12_BRANCH = 418, 525
NO_DRIVER = "no driver is loaded"
RELOAD = "reboot, or stop what uses GPUs and: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia"
LD_SO_CACHE = "/etc/ld.so.cache"


def checks(facts: HostFacts) -> tuple[Check, ...]:
    """Check the driver."""
    return (
        driver_loaded(facts),
        driver_age(facts),
        gpus(facts),
        driver_libraries(facts),
        loader_cache(facts),
        persistence_daemon(facts),
    )


def driver_loaded(facts: HostFacts) -> Check:
    """Tell which driver is loaded, and of which kind its modules are."""
    if facts.version:
        open_modules = "Open Kernel Module" in facts.version_text
        kind = "open" if open_modules else "proprietary"
        known = f"{kind} kernel modules" if facts.version_text else "kind of modules not known"
        return ok("driver-loaded", f"driver {facts.version}, {known}")
    fix = "modprobe nvidia; or install the driver for this kernel: dmesg | grep -i nvrm says more"
    if not facts.pci_gpus:
        fix = "lspci -d 10de: shows no GPU: look at the slot, or pass the GPU to this machine"
    elif os.path.isdir(f"{facts.config.sys_root.rstrip('/')}/module/nouveau"):
        fix = "nouveau holds the GPUs: blacklist it, update the initramfs, reboot"
    gpus_there = listed(facts.pci_gpus) or "none"
    return failed(
        "driver-loaded",
        f"{facts.trouble}; NVIDIA GPUs on the PCI bus: {gpus_there}",
        "NVIDIA's kernel module loaded, and the settings proc-root and sys-root right",
        fix,
    )


def driver_age(facts: HostFacts) -> Check:
    """Tell whether the driver is old enough to be a problem."""
    if not facts.version:
        return not_checked("driver-age", NO_DRIVER)
    branch = int(facts.version.split(".")[0])
    newer = "install a newer driver; nvidia.com/drivers, or your distribution's packages"
    if branch < OLDEST_BRANCH:
        return failed(
            "driver-age",
            f"driver {facts.version}",
            f"{OLDEST_BRANCH} or newer: the container stack needs what it shows in /proc",
            newer,
        )
    if branch < CUDA_12_BRANCH:
        return warning(
            "driver-age",
            f"driver {facts.version}",
            f"{CUDA_12_BRANCH} or newer for images with CUDA 12 ({OLDEST_BRANCH} for older ones)",
            newer,
        )
    return ok("driver-age", f"{facts.version} runs CUDA 12 images")


def gpus(facts: HostFacts) -> Check:
    """Tell whether the driver has all GPUs."""
    if not facts.version:
        return not_checked("gpus", NO_DRIVER)
    look = "dmesg | grep -i -e nvrm -e xid"
    if facts.gpu_trouble:
        return failed("gpus", facts.gpu_trouble, "readable information about each GPU", look)
    used = [gpu for gpu in facts.gpus if not gpu.excluded]
    if not used:
        excluded = f" ({len(facts.gpus)} excluded)" if facts.gpus else ""
        return failed("gpus", f"the driver has no GPU{excluded}", "at least one GPU", look)
    bound = {gpu.pci_bus_id for gpu in facts.gpus}
    lost = [bus_id for bus_id in facts.pci_gpus if bus_id.lower() not in bound]
    if lost:
        return warning(
            "gpus",
            f"the driver does not have the GPUs {listed(lost)} of the PCI bus",
            "every NVIDIA GPU bound to the driver, unless it is given to a virtual machine",
            look,
        )
    if no_minor := [gpu.pci_bus_id for gpu in used if gpu.minor is None]:
        saw = f"no device minor for {listed(no_minor)}"
        return failed("gpus", saw, "a minor for each GPU", look)
    if unknown := [gpu.pci_bus_id for gpu in used if not is_known_uuid(gpu.uuid)]:
        return warning(
            "gpus",
            f"the driver has not read the UUID of {listed(unknown)} yet",
            "a UUID for each GPU: until then it can be asked for by index only",
            "nvidia-smi -L",
        )
    excluded = f", {len(facts.gpus) - len(used)} excluded" if len(used) < len(facts.gpus) else ""
    models = listed(dict.fromkeys(gpu.model for gpu in used))
    return ok("gpus", f"{len(used)} ({models}){excluded}")


def driver_libraries(facts: HostFacts) -> Check:
    """Tell whether the libraries are of the version of the kernel module."""
    name = "driver-libraries"
    if not facts.version:
        return not_checked(name, NO_DRIVER)
    root = facts.config.driver_root
    try:
        found = find_libraries(root, facts.version, os.uname().machine)
    except NvhookError as error:
        expected = f"libraries of {facts.version}, as the kernel module"
        return failed(name, error.message, expected, f"{RELOAD}, then modprobe nvidia")
    names = {library.name for library in found if library.bits == 64}
    missing = [
        f"{library} ({capability})"
        for capability, libraries in sorted(REQUIRED_LIBRARIES.items())
        for library in libraries
        if library not in names
    ]
    if missing:
        return failed(
            name,
            f"no {' and no '.join(missing)} of version {facts.version} below {root}",
            "the driver's user-space libraries, in the loader cache or a usual directory",
            "install the driver's compute and utility packages of this version, then ldconfig; "
            "or set driver-root",
        )
    return ok(name, f"{len(found)} of version {facts.version} below {root}")


def loader_cache(facts: HostFacts) -> Check:
    """Tell whether the host's own programs find libcuda."""
    name = "loader-cache"
    root = facts.config.driver_root
    expected = "libcuda.so.1 in the loader cache: the host's own programs look for it there"
    fix = "ldconfig" if root == "/" else f"ldconfig -r {root}"
    opened = open_file(root, LD_SO_CACHE)
    if opened is None:
        return warning(name, f"{root.rstrip('/')}{LD_SO_CACHE} is absent", expected, fix)
    try:
        with open(opened[0], "rb") as file:
            cache = ldcache.parse(file.read(ldcache.MAX_BYTES))
    except (FormatError, OSError) as error:
        return warning(name, f"{root.rstrip('/')}{LD_SO_CACHE}: {error}", expected, fix)
    paths = [entry.path for entry in cache.entries if entry.name == "libcuda.so.1"]
    if not paths:
        return warning(name, "libcuda.so.1 is not listed", expected, fix)
    if gone := [path for path in paths if resolve(root, path) is None]:
        return warning(name, f"it lists {listed(gone)}, which does not exist", expected, fix)
    return ok(name, f"libcuda.so.1 is {listed(dict.fromkeys(paths))}")


def persistence_daemon(facts: HostFacts) -> Check:
    """Tell whether GPUs stay initialised between two programs."""
    name = "persistence-daemon"
    if not facts.version:
        return not_applicable(name, NO_DRIVER)
    places = next(group for group in SOCKETS["utility"] if "persistenced" in group[0])
    if any(resolve(facts.config.driver_root, path) for path in places):
        return ok(name, "nvidia-persistenced has its socket")
    return warning(
        name,
        f"no {places[0]}",
        "nvidia-persistenced running: without it each first use of an idle GPU takes seconds",
        "systemctl enable --now nvidia-persistenced",
    )
