"""Which running containers have which GPUs: asked of the kernel, not of anyone's records.

A GPU is had when its node is in the container's /dev and the device cgroup lets it be opened. One
without the other is shown, too: that is what goes wrong.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from nvhook.core.inventory import Gpu, Inventory
from nvhook.core.platforms import NAMES
from nvhook.errors import NvhookError, UnsupportedError
from nvhook.kernel import cgroup, mountinfo
from nvhook.kernel.device_access import DeviceAccess
from nvhook.kernel.live_process import PinnedProcess, namespace, processes, start_time_of
from nvhook.kernel.root_view import RootView


@dataclass(frozen=True, slots=True)
class Held:
    """A GPU of a container: has it the node, and may it be opened."""

    gpu: Gpu
    node: bool
    access: bool


@dataclass(frozen=True, slots=True)
class Running:
    """A container: its first process, its cgroup, what it has; ``problem``: why that is unknown."""

    pid: int
    cgroup: str
    held: tuple[Held, ...]
    problem: str = ""


def with_gpus(inventory: Inventory) -> tuple[Running, ...]:
    """Return the running containers that have a GPU's node or may open one, by process number.

    Raises: FormatError; ContainerError where the caller's own mounts can't be read;
    UnsupportedError on a machine of core.platforms.
    """
    if inventory.platform:
        name = NAMES[inventory.platform]
        raise UnsupportedError(
            f"on {name} no node is one GPU's, so containers can't be told",
            "nvhook doctor --pid says what one container has",
        )
    table = mountinfo.table()
    found = []
    for pid in sorted(_first_processes()):
        try:
            process = PinnedProcess(pid)
        except NvhookError:
            continue  # it has ended meanwhile
        try:
            seen = _look(process, inventory, table)
        except (NvhookError, OSError) as error:
            seen = Running(pid, "", (), str(error))
        finally:
            process.close()
        if seen.held or seen.problem:
            found.append(seen)
    return tuple(found)


def _first_processes() -> list[int]:
    """Return the oldest process of each mount namespace but the caller's."""
    own = namespace("self", "mnt")
    oldest: dict[str, tuple[int, int]] = {}
    for pid in processes():
        name = namespace(pid, "mnt")
        if name in {"", own}:
            continue
        started = start_time_of(pid)
        if started is not None:
            oldest[name] = min(oldest.get(name, (started, pid)), (started, pid))
    return [pid for _, pid in oldest.values()]


def _look(process: PinnedProcess, inventory: Inventory, table: bytes) -> Running:
    fd = process.open_directory("/")
    root, host = os.fstat(fd), os.stat("/")
    if (root.st_dev, root.st_ino) == (host.st_dev, host.st_ino):
        os.close(fd)  # a service with mounts of its own
        return Running(process.pid, "", ())
    major = inventory.majors.get("nvidia", 0)
    rootfs = RootView(fd)  # it is only looked at: a sandbox without a root of its own is no problem
    try:
        access = DeviceAccess(process, process, table)
        try:
            openable = access.openable([("c", major, gpu.minor) for gpu in inventory.gpus])
            held = [
                Held(
                    gpu,
                    node=_has_node(rootfs, major, gpu.minor),
                    access=("c", major, gpu.minor) in openable,
                )
                for gpu in inventory.gpus
            ]
        finally:
            access.close()
    finally:
        rootfs.close()
    v1, v2 = cgroup.memberships("/proc/self/fd", process.proc_fd)
    return Running(
        process.pid, v2 if v2 not in {"", "/"} else v1, tuple(h for h in held if h.node or h.access)
    )


def _has_node(rootfs: RootView, major: int, minor: int) -> bool:
    fd = rootfs.existing(f"/dev/nvidia{minor}")
    if fd is None:
        return False
    try:
        return os.fstat(fd).st_rdev == os.makedev(major, minor)
    finally:
        os.close(fd)
