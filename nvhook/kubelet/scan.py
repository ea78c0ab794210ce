"""Reads what the host has, for the device plugin: anew each time, it comes and goes."""

from collections.abc import Mapping
from dataclasses import dataclass

from nvhook.config import Config
from nvhook.core.inventory import HostNode, Inventory
from nvhook.errors import HostError
from nvhook.host import mig_devices
from nvhook.host.discovery import discover
from nvhook.host.driver_texts import list_gpu_directories, read_driver_version, read_text
from nvhook.host.nodes import find_nodes, read_node
from nvhook.kubelet.answers import HostFacts
from nvhook.kubelet.settings import Settings


@dataclass(frozen=True, slots=True)
class Host:
    """What the host has; ``numa`` has NUMA nodes by PCI bus id, of GPUs where it is known."""

    inventory: Inventory
    numa: Mapping[str, int]
    facts: HostFacts


def scan(settings: Settings, config: Config) -> Host:
    """Return what the host has.

    Raises: HostError where no driver is loaded, FormatError, UnsupportedError.
    """
    root = settings.driver_root_here or config.driver_root
    dev_root = own_dev_root(settings, config)
    inventory = discover(root, dev_root, config.proc_root, config.sys_root)
    inventory = mig_devices.add_to(inventory, dev_root, config.state_directory)
    nodes = {gpu.pci_bus_id: _numa(config.sys_root, gpu.pci_bus_id) for gpu in inventory.gpus}
    numa = {bus_id: node for bus_id, node in nodes.items() if node is not None}
    names = {node.name for node in inventory.nodes}
    names |= {node.name for node in _channels(settings, dev_root)}
    return Host(inventory, numa, HostFacts(host_dev_root(settings, config), frozenset(names)))


def own_dev_root(settings: Settings, config: Config) -> str:
    """Return where the plugin itself sees the device nodes: a driver container has its own."""
    below = f"{settings.driver_root_here.rstrip('/')}/dev"
    return below if settings.driver_root_here and find_nodes(below) else config.dev_root


def host_dev_root(settings: Settings, config: Config) -> str:
    """Return where the host has the device nodes."""
    root = (settings.dev_root or settings.driver_root).rstrip("/")
    return f"{root}/dev" if root else config.dev_root


def fingerprint(config: Config) -> tuple[str, ...]:
    """Return what is another after a driver or a GPU came or went: cheap enough for each second."""
    try:
        version = read_driver_version(config.proc_root, config.sys_root)
    except HostError:
        return ()
    return (version, *list_gpu_directories(config.proc_root))


def _channels(settings: Settings, dev_root: str) -> list[HostNode]:
    names = [f"nvidia-caps-imex-channels/channel{each}" for each in settings.imex_channels]
    nodes = [read_node(dev_root.rstrip("/"), name) for name in names]
    return [node for node in nodes if node is not None]


def _numa(sys_root: str, bus_id: str) -> int | None:
    text = read_text(f"{sys_root.rstrip('/')}/bus/pci/devices/{bus_id}/numa_node", 64)
    try:
        node = int(text or "")
    except ValueError:
        return None
    return node if node >= 0 else None  # -1: the firmware does not say
