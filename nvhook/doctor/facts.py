"""What the driver's /proc, /dev and /sys say, read once for all checks of the host."""

import os
from dataclasses import dataclass

from nvhook.config import Config
from nvhook.core.inventory import HostNode
from nvhook.errors import HostError, NvhookError
from nvhook.formats.gpu_information import GpuInformation, parse_bus_id
from nvhook.host.driver_texts import (
    driver_directory,
    list_gpu_directories,
    read_driver_version,
    read_majors,
    read_text,
)
from nvhook.host.gpus import read_information
from nvhook.host.nodes import find_nodes

_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"  # of PCI: NVIDIA, display controllers


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The driver as its kernel side shows it.

    ``version`` is empty where none is loaded, and ``trouble`` says so; ``version_text`` is
    /proc/driver/nvidia/version; ``majors`` are by name; ``gpus`` are in PCI order, excluded ones
    too; ``gpu_trouble`` says why they can't be read; ``pci_gpus`` are the PCI bus ids of NVIDIA's
    display controllers; ``nodes`` are by name. ``root`` is where the files are that no setting
    names (/etc/docker, /dev/char): always / but in tests.
    """

    config: Config
    root: str
    version: str
    version_text: str
    trouble: str
    majors: dict[str, int]
    gpus: tuple[GpuInformation, ...]
    gpu_trouble: str
    pci_gpus: tuple[str, ...]
    nodes: dict[str, HostNode]

    def path(self, absolute: str) -> str:
        """Return where a file of the machine is that no setting names."""
        return self.root.rstrip("/") + absolute


def read(config: Config, root: str = "/") -> HostFacts:
    """Read the driver's texts and nodes; what can't be read is told in the facts."""
    version = trouble = gpu_trouble = ""
    majors: dict[str, int] = {}
    gpus: list[GpuInformation] = []
    try:
        version = read_driver_version(config.proc_root, config.sys_root)
    except HostError as error:
        trouble = error.message
    try:
        majors = read_majors(config.proc_root)
        gpus = [
            read_information(config.proc_root, name)
            for name in list_gpu_directories(config.proc_root)
        ]
        gpus.sort(key=lambda gpu: parse_bus_id(gpu.pci_bus_id))
    except NvhookError as error:
        gpu_trouble = str(error)
    return HostFacts(
        config=config,
        root=root,
        version=version,
        version_text=read_text(driver_directory(config.proc_root) + "/version") or "",
        trouble=trouble,
        majors=majors,
        gpus=tuple(gpus),
        gpu_trouble=gpu_trouble,
        pci_gpus=_pci_gpus(config.sys_root),
        nodes={node.name: node for node in find_nodes(config.dev_root)},
    )


def _pci_gpus(sys_root: str) -> tuple[str, ...]:
    directory = f"{sys_root.rstrip('/')}/bus/pci/devices"
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ()
    return tuple(
        [
            name
            for name in names
            if (read_text(f"{directory}/{name}/vendor", 64) or "").strip() == _VENDOR
            and (read_text(f"{directory}/{name}/class", 64) or "").startswith(_DISPLAY_CLASS)
        ]
    )
