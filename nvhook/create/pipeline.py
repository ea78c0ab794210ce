"""container + host -> Plan: the page to read first.

State -> bundle/config.json -> ContainerConfig -> Request (None: not a GPU container)
Inventory (cached) + Request -> GPUs and MIG devices -> Plan
"""

from __future__ import annotations

import os

from nvhook.core.catalog import DRM_CAPABILITIES, LISTED
from nvhook.core.edits import Plan
from nvhook.core.inventory import gpus_of
from nvhook.core.layout import COMPAT_DIRECTORY, ContainerLayout, container_layout
from nvhook.core.planner import merge, plan_request
from nvhook.core.request import Request
from nvhook.core.selection import may_mean_mig, select
from nvhook.errors import FormatError
from nvhook.formats.oci import MAX_CONFIG, ContainerConfig, parse_config
from nvhook.host import inventory_cache
from nvhook.host.driver_texts import has_mig_gpus
from nvhook.kernel.descriptors import content
from nvhook.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.config import Config
    from nvhook.core.compat import CompatDirectory
    from nvhook.core.inventory import Device, Inventory
    from nvhook.kernel.root_view import RootView


@record
class Outcome:
    """A request, the devices it selects, and the plan that follows."""

    request: Request
    devices: tuple[Device, ...]
    plan: Plan


def read_container(bundle: str) -> ContainerConfig:
    """Read a bundle's config.json.

    Raises: FormatError if it is missing, too large or malformed.
    """
    return parse_config(read_config(f"{bundle}/config.json"), bundle)


def read_config(path: str) -> bytes:
    """Return the content of a config.json.

    Raises: FormatError if it is missing or too large.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            size = os.fstat(fd).st_size
            if size > MAX_CONFIG:
                raise FormatError(
                    f"{path} has {size} bytes, more than the limit of {MAX_CONFIG}",
                    "no engine writes one that large; is it the right bundle?",
                )
            return content(fd, MAX_CONFIG + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise FormatError(
            f"{path} can't be read: {error.strerror}", "the state's bundle must be an OCI bundle"
        ) from error


def inventory(
    config: Config,
    devices: tuple[str, ...] = ("all",),
    capabilities: Iterable[str] = (),
    manages_mig: tuple[str, ...] = (),
    every_csv: bool = False,
) -> Inventory:
    """Return what the configured host has, as far as these device ids and capabilities need it.

    MIG devices are looked for only where the ids can mean some, or where ``manages_mig``
    (Request's) has something, so that a container with whole GPUs pays nothing for MIG.
    ``every_csv`` (Request's) is for Jetsons.
    """
    roots = config.driver_root, config.dev_root, config.proc_root, config.sys_root
    host = inventory_cache.load(*roots, config.state_directory, every_csv)
    if host.platform:
        return host
    if not config.inject_unlisted_driver_libraries:
        listed = tuple([library for library in host.libraries if library.name in LISTED])
        host = replace(host, libraries=listed)
    if any(capability in DRM_CAPABILITIES for capability in capabilities):
        from nvhook.host.drm import find_drm  # not loaded for compute

        host = replace(host, drm=find_drm(host.gpus, config.dev_root, config.sys_root))
    if manages_mig or (may_mean_mig(devices) and has_mig_gpus(host.majors, config.proc_root)):
        from nvhook.host import mig_devices

        host = mig_devices.add_to(
            host, config.dev_root, config.state_directory, whole=bool(manages_mig)
        )
    return host


def machine() -> str:
    """Return the machine's architecture as uname has it (``x86_64``)."""
    return os.uname().machine


def layout_of(rootfs: RootView, cuda_compat: bool = True) -> ContainerLayout:
    """Look where a container keeps its libraries, and for CUDA's compatibility libraries in it."""
    layout = container_layout(
        machine(), debian=rootfs.has("/etc/debian_version"), has_lib32=rootfs.has("/usr/lib32")
    )
    return replace(layout, compat=compat_of(rootfs) if cuda_compat else None)


def compat_of(rootfs: RootView) -> CompatDirectory | None:
    """Return the compatibility libraries of a container; they are read, and nothing else."""
    if not rootfs.has(COMPAT_DIRECTORY):
        return None
    from nvhook.create import cuda_compat  # not loaded for the many images without

    return cuda_compat.find(rootfs)


def plan_for(request: Request, config: Config, layout: ContainerLayout) -> Outcome:
    """Plan a request on this host.

    Raises: RequestError for a device that does not exist, HostError for something missing or a
        requirement that is not satisfied.
    """
    if not request.needs_driver:
        return Outcome(request, (), Plan(()))
    host = inventory(
        config,
        request.devices,
        request.driver_capabilities,
        request.manages_mig,
        request.every_csv,
    )
    devices = select(request.devices, host)
    if request.requirements:
        from nvhook.core import requirements  # not loaded where an image requires nothing

        gpus = gpus_of(devices)
        requirements.check(request.requirements, host.driver_version, host.cuda_version, gpus)
    plan = plan_request(
        request.driver_capabilities,
        devices,
        host,
        layout,
        device_rules=config.device_rules,
        manages_mig=request.manages_mig,
    )
    if request.features or request.imex_channels:
        from nvhook.create.feature_plans import feature_plans

        plan = merge((plan, *feature_plans(request, config)))
    return Outcome(request, devices, plan)
