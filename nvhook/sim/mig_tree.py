"""Partition simulated GPUs: profiles -> MIG devices with the ids and minors a driver would choose.

Source: NVIDIA's MIG user guide (profiles, placements); tests/data/mig_minors.
"""

import re
import uuid
from collections.abc import Sequence

from nvhook.core.inventory import Gpu, MigDevice
from nvhook.errors import HostError
from nvhook.formats import mig_capabilities

MAX_DEVICES = 7
# The ids of GPU instances by their number of slices: an id stands for a size and a place.
GPU_INSTANCES = {7: (0,), 4: (1, 2), 3: (1, 2), 2: (3, 4, 5, 6), 1: (7, 8, 9, 10, 11, 12, 13)}
_SLICES = 7
# In the driver's table: config, monitor, then each GPU's 15 GPU instances with 8 compute instances.
CONFIG_MINOR, MONITOR_MINOR, _FIRST_MINOR = 1, 2, 3
_GPU_INSTANCES, _COMPUTE_INSTANCES = 15, 8
_PROFILE = re.compile(r"(?:([1-7])c\.)?([12347])g\.[1-9][0-9]{0,2}gb([+-][a-z.]{1,8})?", re.ASCII)
# MIG came with driver 450, UUIDs of its devices with 470.
_FIRST_BRANCH, _UUID_BRANCH = 450, 470
_UUIDS = uuid.UUID("5d2a7c1e-60b4-4f3c-9a58-3e7f0c9d1b27")


def partition(
    gpus: tuple[Gpu, ...], profiles: Sequence[str], indices: Sequence[int] | None, branch: int
) -> tuple[MigDevice, ...]:
    """Return the MIG devices of GPUs that are all partitioned alike, those of indices or all.

    Their indices follow the order of profiles, their GPU instances' ids the sizes: as on a real
    GPU, one does not tell the other. ``branch`` is the driver's: 550.

    Raises: HostError for a profile that does not exist or has no room, or a GPU that does not.
    """
    if not profiles:
        if indices is not None:
            raise HostError("mig gpus are chosen, but no profiles", "name profiles: --mig 1g.10gb")
        return ()
    if branch < _FIRST_BRANCH:
        raise HostError(f"driver {branch} knows no MIG", f"use {_FIRST_BRANCH} or newer")
    chosen = [gpu.index for gpu in gpus] if indices is None else indices
    for index in chosen:
        if not 0 <= index < len(gpus):
            raise HostError(f"there is no gpu {index} to partition", f"use 0 to {len(gpus) - 1}")
    instances = _instances(profiles)
    return tuple(
        _device(gpu, index, profile, gi, branch)
        for gpu in gpus
        if gpu.index in chosen
        for index, (profile, gi) in enumerate(zip(profiles, instances, strict=True))
    )


def _instances(profiles: Sequence[str]) -> list[int]:
    """Return the GPU instance's id for each profile."""
    used: set[int] = set()
    slices = 0
    found = []
    for profile in profiles:
        match = _PROFILE.fullmatch(profile)
        if match is None or int(match[1] or 1) > int(match[2]):
            raise HostError(
                f"there is no MIG profile {profile[:40]!r}",
                "use 1g.10gb, 2g.20gb, 3g.40gb, 4g.40gb or 7g.80gb, or 1c.3g.40gb",
            )
        size = int(match[2])
        slices += size
        free = [gi for gi in GPU_INSTANCES[size] if gi not in used]
        if slices > _SLICES or not free:
            raise HostError(
                f"a gpu has no room for {','.join(profiles)[:60]}", f"it has {_SLICES} slices"
            )
        used.add(free[0])
        found.append(free[0])
    return found


def _device(gpu: Gpu, index: int, profile: str, gi: int, branch: int) -> MigDevice:
    table = minors(gpu.minor)
    name = f"MIG-{gpu.uuid}/{gi}/0"
    if branch >= _UUID_BRANCH:
        name = f"MIG-{uuid.uuid5(_UUIDS, name)}"
    gi_minor, ci_minor = (
        table[mig_capabilities.gpu_instance(gpu.minor, gi)],
        table[mig_capabilities.compute_instance(gpu.minor, gi, 0)],
    )
    return MigDevice(gpu, index, name, profile, gi, 0, gi_minor, ci_minor)


def minors(gpu_minor: int) -> dict[str, int]:
    """Return the minors of all capabilities that this GPU could have, by name."""
    number = _FIRST_MINOR + gpu_minor * _GPU_INSTANCES * (1 + _COMPUTE_INSTANCES)
    table = {}
    for gi in range(_GPU_INSTANCES):
        table[mig_capabilities.gpu_instance(gpu_minor, gi)] = number
        for ci in range(_COMPUTE_INSTANCES):
            table[mig_capabilities.compute_instance(gpu_minor, gi, ci)] = number + 1 + ci
        number += 1 + _COMPUTE_INSTANCES
    return table


def capability_files(gpus: tuple[Gpu, ...], devices: tuple[MigDevice, ...]) -> dict[str, str]:
    """Return the files of /proc/driver: the capabilities that are there, the table of all."""
    table = {mig_capabilities.CONFIG: CONFIG_MINOR, mig_capabilities.MONITOR: MONITOR_MINOR}
    for gpu in gpus:
        table |= minors(gpu.minor)
    files = {
        mig_capabilities.MINORS_FILE: "".join(f"{name} {minor}\n" for name, minor in table.items())
    }
    for name, minor, mode in present(devices):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
        files[f"nvidia/capabilities/{mig_capabilities.path_of(name)}"] = text
    return files


def present(devices: tuple[MigDevice, ...]) -> list[tuple[str, int, int]]:
    """Return (name, minor, mode) of the capabilities that a driver with these devices shows."""
    found = [
        (mig_capabilities.CONFIG, CONFIG_MINOR, 0o400),
        (mig_capabilities.MONITOR, MONITOR_MINOR, 0o444),
    ]
    for each in devices:
        gpu, gi, ci = each.gpu.minor, each.gpu_instance, each.compute_instance
        found.append((mig_capabilities.gpu_instance(gpu, gi), each.gpu_instance_minor, 0o444))
        found.append(
            (mig_capabilities.compute_instance(gpu, gi, ci), each.compute_instance_minor, 0o444)
        )
    return found
