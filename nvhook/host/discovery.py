"""Discover a host's NVIDIA driver: cold, runs about once per boot (see inventory_cache)."""

from __future__ import annotations

import os

from nvhook.core.cuda_versions import cuda_version, is_beyond_table
from nvhook.core.inventory import Inventory
from nvhook.host.driver_texts import read_driver_version, read_majors, read_proc_files
from nvhook.host.files import (
    find_binaries,
    find_data_files,
    find_firmware,
    find_named_libraries,
    find_xorg_modules,
)
from nvhook.host.gpus import find_gpus
from nvhook.host.libraries import find_libraries
from nvhook.host.nodes import find_nodes, find_sockets
from nvhook.host.nvml import uuids_by_bus_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.inventory import Library


def discover(driver_root: str, dev_root: str, proc_root: str, sys_root: str) -> Inventory:
    """Return what this machine has.

    ``dev_root``, ``proc_root`` and ``sys_root`` are the directories themselves: ``/dev``,
    ``/proc``, ``/sys``.
    Raises: HostError where no driver is loaded or its libraries are of another version,
    FormatError, UnsupportedError.
    """
    version = read_driver_version(proc_root, sys_root)
    system = os.uname()
    libraries = find_libraries(driver_root, version, system.machine)
    data_files = find_data_files(driver_root, system.machine)
    return Inventory(
        driver_version=version,
        cuda_version="" if is_beyond_table(version) else cuda_version(version),
        driver_root=driver_root,
        proc_root=proc_root,
        majors=read_majors(proc_root),
        gpus=find_gpus(proc_root, lambda: _ask_nvml(libraries)),
        nodes=find_nodes(dev_root),
        libraries=libraries,
        files=(
            *find_binaries(driver_root),
            *find_firmware(driver_root, version, sys_root, system.release),
            *data_files,
            *find_named_libraries(driver_root, data_files),
            *find_xorg_modules(driver_root, version, system.machine),
            *find_sockets(driver_root),
        ),
        proc_files=read_proc_files(proc_root),
    )


def _ask_nvml(libraries: tuple[Library, ...]) -> dict[str, str]:
    for library in libraries:
        if library.name == "libnvidia-ml.so" and library.bits == 64:
            return uuids_by_bus_id(library.host_path)
    return {}
