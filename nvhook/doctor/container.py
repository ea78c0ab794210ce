"""A container as it runs: what its process asked for, and what it has got."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

from nvhook.config import Config
from nvhook.core.layout import ContainerLayout
from nvhook.core.request import DRIVER_CAPABILITIES as CAPABILITIES_VARIABLE
from nvhook.core.request import Request, from_container, parse_capabilities
from nvhook.create import pipeline
from nvhook.create.pipeline import Outcome
from nvhook.errors import ContainerError, NvhookError
from nvhook.formats.oci import ContainerConfig
from nvhook.host.driver_texts import read_text
from nvhook.host.gpus import find_gpus
from nvhook.kernel import cgroup, mountinfo
from nvhook.kernel.cgroup import DeviceCgroup
from nvhook.kernel.mountinfo import MountInfo
from nvhook.kernel.process import Process
from nvhook.kernel.root_view import RootView

_CAP_SYS_ADMIN = 21
# Where engines write the process number beside or into a bundle.
PID_FILES = ("init.pid", "pidfile")
_CLOCK_SLACK = 2.0  # seconds
_BY_ITS_NODES = "the nodes it has"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a container asks for and what follows on this host.

    ``refusal`` is why that is impossible; ``outcome`` is None then, and where nothing is asked for.
    ``notes`` are what an operator should know.
    """

    outcome: Outcome | None = None
    refusal: NvhookError | None = None
    notes: tuple[str, ...] = ()


class Running:
    """A running container, held by descriptors; to be closed.

    ``declared`` is its request as config.json would have it; ``mounts`` are those of its namespace;
    ``cgroup`` is None where it can't be reached, ``cgroup_trouble`` says why.
    """

    def __init__(self, pid: int, declared: ContainerConfig | None = None) -> None:
        """Open a container by its process; declared is read from the process if not given.

        Raises: ContainerError if there is no such process, or it is not in a container.
        """
        self.process = Process(pid)
        if self.process.shares_namespace("mnt"):
            raise ContainerError(
                f"process {pid} is in the host's mount namespace: not a container",
                "docker inspect -f '{{.State.Pid}}' NAME, or crictl inspect, tell its pid",
            )
        self.mounts: tuple[MountInfo, ...] = mountinfo.parse(
            self.process.read("mountinfo", mountinfo.MAX_BYTES)
        )
        self.declared = declared or self._declared()
        self.rootfs = RootView(self.process.open_directory("/"))
        self.cgroup: DeviceCgroup | None = None
        self.cgroup_trouble = ""
        try:
            self.cgroup = cgroup.find(pid)
        except NvhookError as error:
            self.cgroup_trouble = error.message

    def _declared(self) -> ContainerConfig:
        """Return what the process itself tells: its environment, mounts and capabilities."""
        env: dict[str, str] = {}
        for entry in self.process.read("environ").decode("utf-8", "replace").split("\0"):
            name, equals, value = entry.partition("=")
            if equals:
                env[name] = value
        bounding = 0
        for line in self.process.read("status").decode("ascii", "replace").splitlines():
            if line.startswith("CapBnd:"):
                bounding = int(line.split()[1], 16)
        # A list of devices by mounts has /dev/null as its source, on a devtmpfs or a tmpfs.
        pairs = [
            ("/dev/null" if mount.root in ("/null", "/dev/null") else mount.root, mount.mount_point)
            for mount in self.mounts
        ]
        privileged = bool(bounding >> _CAP_SYS_ADMIN & 1)
        return ContainerConfig(env, "/", privileged=privileged, mounts=tuple(pairs))

    def close(self) -> None:
        """Close all descriptors."""
        self.rootfs.close()
        os.close(self.process.proc_fd)
        if self.cgroup is not None:
            self.cgroup.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def asked(container: ContainerConfig, config: Config, layout: ContainerLayout) -> Asked:
    """Return what a container asks for, and what it would get on this host."""
    notes: list[str] = []
    try:
        request = from_container(container, config, notes)
        outcome = None if request is None else pipeline.plan_for(request, config, layout)
    except NvhookError as error:
        return Asked(None, error, tuple(notes))
    return Asked(outcome, None, tuple(notes))


def layout_of(running: Running, config: Config) -> ContainerLayout:
    """Look where a running container keeps its libraries."""
    return pipeline.layout_of(running.rootfs, config.cuda_forward_compatibility)


def asked_by_nodes(running: Running, config: Config) -> Asked:
    """Return what belongs to the GPUs whose nodes a container has: CDI and --device ask so."""
    try:
        text = running.declared.env.get(CAPABILITIES_VARIABLE, "")
        capabilities = parse_capabilities(text, config.supported_driver_capabilities)
        gpus = find_gpus(config.proc_root, dict) if _has_driver(config) else ()
        there = [gpu for gpu in gpus if running.rootfs.has(f"/dev/nvidia{gpu.minor}")]
        if not there:
            return Asked()
        devices = tuple([str(gpu.index) for gpu in there])
        request = Request(devices, capabilities, _BY_ITS_NODES)
        return Asked(pipeline.plan_for(request, config, layout_of(running, config)))
    except NvhookError as error:
        return Asked(None, error)


def _has_driver(config: Config) -> bool:
    return os.path.isdir(f"{config.proc_root.rstrip('/')}/driver/nvidia/gpus")


def pid_of_bundle(bundle: str) -> int | None:
    """Return the process that an engine noted in a bundle, None if there is none any more."""
    for name in PID_FILES:
        try:
            with open(f"{bundle}/{name}", "rb") as file:
                text = file.read(32).strip()
                noted = os.fstat(file.fileno()).st_mtime
        except OSError:
            continue
        if text.isdigit() and _age(int(text)) >= time.time() - noted - _CLOCK_SLACK:
            return int(text)
    return None


def _age(pid: int) -> float:
    """Return for how many seconds a process has been running, less than none if it has ended.

    One that is younger than the note of its number is another: numbers come again.
    """
    stat = read_text(f"/proc/{pid}/stat", 4096)
    if stat is None:
        return -math.inf
    ticks = int(stat.rpartition(")")[2].split()[19])  # field 22, proc_pid_stat(5)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
