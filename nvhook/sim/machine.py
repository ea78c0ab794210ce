"""The simulated machine: its GPUs, and what /proc, /sys and the state file say of it.

The state file, ``DIR/state``, is text of ``key=value`` lines; ``#`` starts a comment line::

    gpus=2                      how many GPUs the machine has, at most 64
    driver_version=550.54.14
    cuda_version=12040          1000 * major + 10 * minor
    uvm_major=511               the major of nvidia-uvm; nvidia's is 195
    caps_major=510              the major of nvidia-caps
    gpu0.uuid=GPU-...           gpuN: N is the index, in PCI order
    gpu0.minor=0                the N of /dev/nvidiaN
    gpu0.bus=0000:04:00.0
    gpu0.model=NVIDIA L4
    gpu0.device=0x27b8          the PCI device id
    gpu0.memory_mib=23034
    gpu0.compute=8.9
    gpu0.mig_capable=0
    gpu0.mig0=MIG-... 7 0 66 67 1g.10gb
                                migM: M is the MIG device's index; its UUID, the ids of its GPU and
                                compute instance, the minors of their capabilities, its profile
    gpu0.status=ok              or lost: the programs answer "GPU is lost" from then on;
                                or failed: "unknown error"
    gpu0.xid=79                 an Xid has happened, of one MIG instance: 31 7 0 (GI, CI); each
                                such line is one event, told to who waits for events then
    gpu0.recovery=0             NVML's recovery action, 1: a reset; without the line the driver
                                knows of none
    gpu0.rows=pending           a row of its memory waits to be remapped; or failed: it can't be
    gpu0.place=0/1/0            on the PCI tree: CPU/host bridge/switch/switch/board
    gpu0.nvlinks=1 1 s          the other end of each NVLink: a GPU's index, or s for a switch
    nvml=ok                     or storm: every call into NVML answers "unknown error"; or hang:
                                none returns

nvidia-smi, libnvidia-ml and libcuda carry the same text behind their ELF image (see
``src/machine.c``), because a container does not see DIR. Where the file can be read, its lines win
over the carried ones: edit it, and a program that runs on the host sees the change. Lines may be
left out.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from nvhook.core import cuda_versions
from nvhook.core.inventory import Gpu, MigDevice
from nvhook.errors import HostError
from nvhook.sim.mig_tree import partition

MAX_GPUS = 64
MAX_MODEL = 64
NVIDIA_MAJOR = 195
CTL_MINOR = 255
MODESET_MINOR = 254
# A fixed namespace: GPU N has the same UUID in every simulated machine.
_UUIDS = uuid.UUID("5d2a7c1e-60b4-4f3c-9a58-3e7f0c9d1b26")
BOOT_ID = "0b6f3d52-8c1e-4a97-b2d4-71e5a90c6f38"


@dataclass(frozen=True, slots=True)
class Model:
    """What a model's name stands for: PCI device id, memory in MiB, compute capability, MIG."""

    device: int
    memory_mib: int
    compute: str
    mig_capable: bool


MODELS = {
    "NVIDIA H100 80GB HBM3": Model(0x2330, 81559, "9.0", mig_capable=True),
    "NVIDIA H200": Model(0x2335, 143771, "9.0", mig_capable=True),
    "NVIDIA A100-SXM4-40GB": Model(0x20B0, 40960, "8.0", mig_capable=True),
    "NVIDIA A100-SXM4-80GB": Model(0x20B2, 81920, "8.0", mig_capable=True),
    "NVIDIA A10G": Model(0x2237, 23028, "8.6", mig_capable=False),
    "NVIDIA L4": Model(0x27B8, 23034, "8.9", mig_capable=False),
    "NVIDIA GeForce RTX 4090": Model(0x2684, 24564, "8.9", mig_capable=False),
    "Tesla T4": Model(0x1EB8, 15360, "7.5", mig_capable=False),
    "Tesla V100-SXM2-16GB": Model(0x1DB1, 16384, "7.0", mig_capable=False),
}
OTHER_MODEL = Model(0x2330, 81559, "9.0", mig_capable=False)


@dataclass(frozen=True, slots=True)
class Machine:
    """A simulated machine.

    ``uvm_major`` and ``caps_major`` are the driver's dynamic majors, ``drm_major`` that of /dev/dri
    (on real machines always 226), ``feature_majors`` those of its features by name
    (nvhook.core.features).
    """

    driver_version: str
    gpus: tuple[Gpu, ...]
    uvm_major: int
    caps_major: int
    drm_major: int
    feature_majors: dict[str, int]
    mig_devices: tuple[MigDevice, ...] = ()

    @property
    def branch(self) -> int:
        """The driver's branch: 550 of 550.54.14."""
        return int(self.driver_version.split(".")[0])

    @property
    def open_modules(self) -> bool:
        """Whether the kernel modules are the open ones, NVIDIA's default since 560."""
        return self.branch >= 560


def build_machine(
    gpus: int,
    model: str,
    driver_version: str,
    minors: Sequence[int] | None = None,
    used_majors: frozenset[int] = frozenset(),
    features: Sequence[str] = (),
    mig: Sequence[str] = (),
    mig_gpus: Sequence[int] | None = None,
) -> Machine:
    """Return the machine that these settings describe.

    ``minors`` gives /dev/nvidiaN by index (default: the same numbers); ``used_majors`` are taken by
    this machine's real drivers: a simulated node must not open one of them. ``mig`` are profiles of
    the MIG devices that each GPU is partitioned into, or each of ``mig_gpus`` (indices).

    Raises: HostError where a setting is out of range.
    """
    _check(gpus, model, driver_version)
    chosen = tuple(range(gpus)) if minors is None else tuple(minors)
    if len(chosen) != gpus or len(set(chosen)) != gpus:
        raise HostError(
            f"{gpus} gpus can't have the minors {','.join(map(str, chosen)) or 'none'}",
            "give one number for each gpu, all different",
        )
    if any(not 0 <= minor < MODESET_MINOR for minor in chosen):
        raise HostError("a gpu's minor is out of range", f"use 0 to {MODESET_MINOR - 1}")
    table = tuple(
        Gpu(index, gpu_uuid(index), minor, f"0000:{4 + 3 * index:02x}:00.0", model)
        for index, minor in enumerate(chosen)
    )
    free = [major for major in range(511, 383, -1) if major not in used_majors]
    if len(free) < 3 + len(features):
        raise HostError("no dynamic device numbers are free", "384 to 511 are all in /proc/devices")
    majors = dict(zip(features, free[3:], strict=False))
    if mig and not MODELS.get(model, OTHER_MODEL).mig_capable:
        capable = ", ".join(name for name, each in MODELS.items() if each.mig_capable)
        raise HostError(f"a {model} can't be partitioned", f"models with MIG are {capable}")
    branch = int(driver_version.split(".", maxsplit=1)[0])
    partitioned = partition(table, mig, mig_gpus, branch)
    return Machine(driver_version, table, free[0], free[1], free[2], majors, partitioned)


def drm_nodes(gpu: Gpu) -> tuple[tuple[str, int], ...]:
    """Return the (name in /dev/dri, minor) of a GPU's card and render node.

    card0 is the board's own screen: a card's number is not its GPU's index.
    """
    return (f"card{gpu.index + 1}", gpu.index + 1), (f"renderD{128 + gpu.index}", 128 + gpu.index)


def gpu_uuid(index: int) -> str:
    """Return the UUID of the GPU with this index."""
    return f"GPU-{uuid.uuid5(_UUIDS, str(index))}"


def _check(gpus: int, model: str, driver_version: str) -> None:
    if not 0 <= gpus <= MAX_GPUS:
        raise HostError(f"a simulated machine can't have {gpus} gpus", f"use 0 to {MAX_GPUS}")
    if not model or not model.isprintable() or model.strip() != model or len(model) > MAX_MODEL:
        raise HostError(
            f"the model name {model!r} can't be used",
            f"use 1 to {MAX_MODEL} printable characters without blanks around them",
        )
    if not model.isascii():
        raise HostError(f"the model name {model!r} can't be used", "use ascii characters")
    parts = driver_version.split(".")
    digits = all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts)
    if len(parts) not in {2, 3} or not digits:
        raise HostError(
            f"{driver_version!r} is not a driver version",
            "use two or three groups of digits, such as 550.54.14 or 535.171",
        )


def cuda_version(machine: Machine) -> int:
    """Return the CUDA version the driver has, as cuDriverGetVersion gives it: 12040 is 12.4."""
    text = cuda_versions.cuda_version(machine.driver_version) or "5.0"
    major, minor = text.split(".")
    return 1000 * int(major) + 10 * int(minor)


def state_text(machine: Machine) -> str:
    """Return the state file's text."""
    lines = [
        f"gpus={len(machine.gpus)}",
        f"driver_version={machine.driver_version}",
        f"cuda_version={cuda_version(machine)}",
        f"uvm_major={machine.uvm_major}",
        f"caps_major={machine.caps_major}",
    ]
    for gpu in machine.gpus:
        model = MODELS.get(gpu.model, OTHER_MODEL)
        fields = {
            "uuid": gpu.uuid,
            "minor": gpu.minor,
            "bus": gpu.pci_bus_id,
            "model": gpu.model,
            "device": f"0x{model.device:04x}",
            "memory_mib": model.memory_mib,
            "compute": model.compute,
            "mig_capable": int(model.mig_capable),
            "status": "ok",
        }
        lines += [f"gpu{gpu.index}.{key}={value}" for key, value in fields.items()]
    for each in machine.mig_devices:
        values = (
            each.uuid,
            each.gpu_instance,
            each.compute_instance,
            each.gpu_instance_minor,
            each.compute_instance_minor,
            each.profile,
        )
        text = " ".join(str(value) for value in values)
        lines.append(f"gpu{each.gpu_index}.mig{each.index}={text}")
    return "".join(f"{line}\n" for line in lines)
