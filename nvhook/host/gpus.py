"""Read the GPUs from /proc/driver/nvidia: no NVML, which takes seconds where no GPU is in use."""

from __future__ import annotations

from nvhook.core.inventory import Gpu
from nvhook.errors import FormatError, HostError
from nvhook.formats.gpu_information import (
    GpuInformation,
    normalize_bus_id,
    parse_bus_id,
    parse_information,
)
from nvhook.formats.proc_driver import is_known_uuid
from nvhook.host.driver_texts import driver_directory, list_gpu_directories, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def find_gpus(proc_root: str, uuids_by_bus_id: Callable[[], dict[str, str]]) -> tuple[Gpu, ...]:
    """Return the GPUs in PCI order; those excluded by the operator don't count, as in NVML.

    ``uuids_by_bus_id`` is called only if the driver does not know a UUID. Where it does not help
    either, the UUID keeps its question marks.
    Raises: HostError for a GPU without a minor, FormatError for a text of an unknown layout.
    """
    gpus = [
        information
        for name in list_gpu_directories(proc_root)
        if not (information := read_information(proc_root, name)).excluded
    ]
    gpus.sort(key=lambda information: parse_bus_id(information.pci_bus_id))
    uuids = {} if all(is_known_uuid(gpu.uuid) for gpu in gpus) else uuids_by_bus_id()
    found = []
    for index, gpu in enumerate(gpus):
        if gpu.minor is None:
            raise HostError(
                f"the driver gives GPU {gpu.pci_bus_id} no device minor",
                "look for Xid and NVRM lines in dmesg",
            )
        uuid = gpu.uuid if is_known_uuid(gpu.uuid) else uuids.get(gpu.pci_bus_id, gpu.uuid)
        found.append(Gpu(index, uuid, gpu.minor, gpu.pci_bus_id, gpu.model))
    return tuple(found)


def read_information(proc_root: str, directory: str) -> GpuInformation:
    """Return what the driver says of the GPU in this directory, whose name is its PCI bus id.

    Raises: HostError, FormatError.
    """
    path = f"{driver_directory(proc_root)}/gpus/{directory}/information"
    text = read_text(path)
    if text is None:
        raise HostError(f"can't read {path}", "is the GPU being removed? try again")
    information = parse_information(text)[0]
    try:
        bus_id = normalize_bus_id(directory)
    except FormatError:
        bus_id = information.pci_bus_id
    if not bus_id:
        raise HostError(f"{path} tells no PCI bus id, nor does its directory")
    return GpuInformation(
        information.model, information.uuid, bus_id, information.minor, information.excluded
    )
