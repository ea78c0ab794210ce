"""What only NVML knows of GPUs and MIG devices: memory, compute capability, slices, engines."""

from __future__ import annotations

from nvhook.host.nvml import facts, text
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import TypeVar

    T = TypeVar("T")

# As pynvml calls the attributes of a MIG device, in the order of MigFacts.
_ATTRIBUTES = (
    "memorySizeMB",
    "multiprocessorCount",
    "gpuInstanceSliceCount",
    "computeInstanceSliceCount",
    "sharedCopyEngineCount",
    "sharedDecoderCount",
    "sharedEncoderCount",
    "sharedJpegCount",
    "sharedOfaCount",
)


@record
class GpuFacts:
    """A GPU's memory in MiB and compute capability, 0 where they are unknown.

    ``can_mig``: it can be partitioned, ``in_mig_mode``: it is, or would be if it had MIG devices.
    """

    memory: int
    major: int
    minor: int
    can_mig: bool
    in_mig_mode: bool = False


@record
class MigFacts:
    """A MIG device's memory in MiB, and how many of everything it has."""

    memory: int
    multiprocessors: int
    gpu_slices: int
    compute_slices: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@record
class Facts:
    """What NVML said: its CUDA version (``12.4``, or empty), GPUs and MIG devices by UUID."""

    cuda_version: str
    gpus: dict[str, GpuFacts]
    mig_devices: dict[str, MigFacts]


def ask(library: str) -> Facts:
    """Return what NVML says; nothing where it fails or takes too long.

    ``library`` is the host path of the driver root's own libnvidia-ml.
    """
    return parse(facts(library))


def parse(lines: Iterable[str]) -> Facts:
    """Return the facts in lines of ``tell``; others are ignored."""
    from nvhook.formats.gpu_information import normalize_uuid
    from nvhook.formats.proc_driver import is_decimal

    found = Facts("", {}, {})
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        name, *words = rest.split(" ")
        if not all(is_decimal(word) and len(word) < 16 for word in words):
            continue
        numbers = [int(word) for word in words]
        if kind == "cuda" and len(numbers) == 2:
            found = Facts(f"{numbers[0]}.{numbers[1]}", found.gpus, found.mig_devices)
        elif kind == "gpu" and len(numbers) == 5:
            memory, major, minor, can_mig, mode = numbers
            found.gpus[normalize_uuid(name)] = GpuFacts(
                memory, major, minor, bool(can_mig), bool(mode)
            )
        elif kind == "mig" and len(numbers) == len(_ATTRIBUTES):
            found.mig_devices[name] = MigFacts(*numbers)
    return found


def tell(nvml: ModuleType, handles: Iterable[tuple[object, str]]) -> None:
    """Print ``cuda``, ``gpu`` and ``mig`` lines: what the child runs."""
    version = _answer(nvml, nvml.nvmlSystemGetCudaDriverVersion, 0)
    if version:
        print("cuda -", version // 1000, version % 1000 // 10, flush=True)
    for gpu, _ in handles:
        uuid = text(_answer(nvml, nvml.nvmlDeviceGetUUID, "", gpu))
        if not uuid:
            continue  # one lost GPU does not hide the others
        memory = getattr(_answer(nvml, nvml.nvmlDeviceGetMemoryInfo, None, gpu), "total", 0) >> 20
        compute = _answer(nvml, nvml.nvmlDeviceGetCudaComputeCapability, (0, 0), gpu)
        parts = _answer(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, 0, gpu)
        mode = _answer(nvml, nvml.nvmlDeviceGetMigMode, (0, 0), gpu)[0]
        print("gpu", uuid, memory, *compute, int(parts > 0), mode, flush=True)
        for index in range(parts):
            _tell_part(nvml, gpu, index)


def _tell_part(nvml: ModuleType, gpu: object, index: int) -> None:
    try:
        part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        attributes = nvml.nvmlDeviceGetAttributes(part)
        uuid = text(nvml.nvmlDeviceGetUUID(part))
    except nvml.NVMLError:
        return  # no device has this index
    print("mig", uuid, *[getattr(attributes, name) for name in _ATTRIBUTES], flush=True)


def _answer(nvml: ModuleType, function: Callable[..., T], otherwise: T, *of: object) -> T:
    """Return what NVML answers, or something else where it has no answer."""
    try:
        return function(*of)
    except nvml.NVMLError:
        return otherwise
