"""Run the MPS control daemon of a shared resource: start, limit, ask, restart.

Each resource has a daemon of its own. Its directories are below the MPS root, which has to be on a
tmpfs, is the same path on the host and for the plugin, and of which containers get two parts::

    <MPS root>/<resource>/pipe   the daemon's sockets     <MPS root>/shm   /dev/shm of all clients
    <MPS root>/<resource>/log    its logs

Source: NVIDIA's Multi-Process Service guide; kubernetes reference, section 2.6.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nvhook.core.inventory import Inventory
from nvhook.errors import HostError, RequestError, one_line
from nvhook.kubelet import children, compute_mode
from nvhook.kubelet.backoff import Backoff
from nvhook.kubelet.children import Child
from nvhook.kubelet.reports import GpuFacts
from nvhook.kubelet.resources import Resource

CONTROL = "nvidia-cuda-mps-control"
VOLTA = (7, 0)
MAX_CLIENTS = 48
MAX_CLIENTS_BEFORE_VOLTA = 16

# All in seconds.
EVERY = 5.0
ANSWER = 5.0
START = 10.0
STEADY = 60.0

# Without a limit it waits for clients to end.
QUIT = "quit -t 1"
_NOT_STARTED = "the MPS control daemon is not started yet"
_CHILD = (
    "import sys; control, shm, sys.path[:] = sys.argv[1], sys.argv[2], sys.argv[3:]; "
    "from nvhook.kubelet import mps_start; mps_start.start(control, shm)"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What each client may have: memory in MiB by the GPU's place in ``uuids``, threads in %."""

    uuids: tuple[str, ...]
    memory: tuple[int, ...]
    threads: int


def limits(resource: Resource, facts: Mapping[str, GpuFacts]) -> Limits:
    """Return the limits of a resource's shared GPUs: an equal part for each replica.

    Where GPUs are shared by different numbers, the largest one divides the threads: MPS has one
    percentage for all. A GPU without facts, or that shares the machine's memory, has no limit (0).
    Raises: RequestError where there are more replicas than MPS has clients.
    """
    for device in resource.shared:
        compute = facts[device.uuid].compute if device.uuid in facts else VOLTA
        most = MAX_CLIENTS if compute >= VOLTA else MAX_CLIENTS_BEFORE_VOLTA
        replicas = resource.replicas[device.uuid]
        if replicas > most:
            raise RequestError(
                f"{resource.name}: MPS serves {most} clients of this GPU, not {replicas}",
                f"set replicas to at most {most}",
            )
    uuids = tuple(device.uuid for device in resource.shared)
    memory = [facts[uuid].memory if uuid in facts else 0 for uuid in uuids]
    replicas_of = [resource.replicas[uuid] for uuid in uuids]
    parts = tuple(total // count for total, count in zip(memory, replicas_of, strict=True))
    return Limits(uuids, parts, max(1, 100 // max(replicas_of, default=1)))


class Mps:
    """The MPS control daemon of one resource.

    ``reason`` says why clients can't be served, empty where they can; ``changed`` is called in the
    event loop whenever it is another.
    """

    def __init__(
        self,
        mps_root: str,
        resource: Resource,
        inventory: Inventory,
        facts: Mapping[str, GpuFacts],
        changed: Callable[[], None],
    ) -> None:
        """Find what is needed; ``run`` does the rest.

        Raises: HostError where the driver lacks something, RequestError (see limits).
        """
        self.reason = _NOT_STARTED
        self._changed = changed
        self._limits = limits(resource, facts)
        self._control = _host_path(inventory)
        library = inventory.library("libnvidia-ml.so")
        if library is None:
            raise HostError("the driver root has no libnvidia-ml.so", "MPS needs the whole driver")
        self._nvml = library.host_path
        root = mps_root.rstrip("/")
        self.pipe_directory = f"{root}/{resource.name}/pipe"
        self.log_directory = f"{root}/{resource.name}/log"
        self.shm_directory = f"{root}/shm"
        self._environment = self._environ(inventory)

    @property
    def healthy(self) -> bool:
        """Whether clients can be served."""
        return not self.reason

    async def run(self) -> None:
        """Keep the daemon running until cancelled; then it is gone and the GPUs are as before."""
        backoff = Backoff()
        try:
            while True:
                started = time.monotonic()
                try:
                    await self._serve()
                except (HostError, OSError) as error:
                    self._say(str(error))
                if time.monotonic() - started > STEADY:
                    backoff.reset()
                await asyncio.sleep(backoff.pause())
        finally:
            # Where the driver is gone, so is the mode.
            with contextlib.suppress(HostError):
                await self._set_mode(compute_mode.DEFAULT)

    async def _serve(self) -> None:
        """Start the daemon and stay until it fails.

        Raises: HostError, OSError.
        """
        self._make_directories()
        # One that a killed plugin left behind has the directory, and limits of its own.
        await self._run(QUIT)
        await self._set_mode(compute_mode.EXCLUSIVE_PROCESS)
        child = self._start()
        try:
            await self._answering(child)
            await self._limit()
            self._say("")
            await self._supervise(child)
        except HostError as error:
            self._say(str(error))  # at once: to stop it may take a while
            raise
        finally:
            await self._stop(child)

    async def _set_mode(self, mode: int) -> None:
        await compute_mode.set_mode(self._nvml, self._limits.uuids, mode)

    # ---- the daemon's life

    def _make_directories(self) -> None:
        for path in (self.pipe_directory, self.log_directory):
            os.makedirs(path, 0o755, exist_ok=True)
        os.makedirs(self.shm_directory, 0o1777, exist_ok=True)
        os.chmod(self.shm_directory, 0o1777)  # noqa: S103 - as every /dev/shm is

    def _start(self) -> Child:
        path = [entry for entry in sys.path if entry.startswith("/")]
        arguments = [self._control, self.shm_directory, *path]
        with open(self._start_log, "wb") as output:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CHILD, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=self._environment,
                start_new_session=True,
            )

    async def _answering(self, child: Child) -> None:
        deadline = time.monotonic() + START
        while True:
            if child.poll() is not None:
                raise self._ended(child)
            status, _ = await self._run("get_default_active_thread_percentage")
            if status == 0:
                return
            if time.monotonic() > deadline:
                raise HostError(
                    "the MPS control daemon does not answer",
                    f"see {self.log_directory}/control.log",
                )
            await asyncio.sleep(0.1)

    async def _limit(self) -> None:
        for place, memory in enumerate(self._limits.memory):
            if memory:
                await self._ask(f"set_default_device_pinned_mem_limit {place} {memory}M")
        await self._ask(f"set_default_active_thread_percentage {self._limits.threads}")

    async def _supervise(self, child: Child) -> None:
        while not await children.ended(child, EVERY):
            answer = await self._ask("get_default_active_thread_percentage")
            if answer != f"{self._limits.threads:.1f}":
                raise HostError(f"the MPS control daemon has other limits: {answer} % threads")
        raise self._ended(child)

    async def _stop(self, child: Child) -> None:
        """End the daemon; its servers, which hold GPUs, don't survive it."""
        try:
            if child.poll() is None:
                await self._run(QUIT)
            await children.ended(child, ANSWER)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await children.kill(child)

    # ---- what is said to it

    async def _ask(self, command: str) -> str:
        """Return the daemon's answer to a command.

        Raises: HostError where there is none.
        """
        status, output = await self._run(command)
        if status is None:
            raise HostError(f"the MPS control daemon does not answer for {ANSWER:.0f} s")
        if status != 0:
            name = command.split(maxsplit=1)[0]
            raise HostError(f"the MPS control daemon refuses {name}: {one_line(output, 150)}")
        return output

    async def _run(self, command: str) -> tuple[int | None, str]:
        return await children.run([self._control], self._environment, ANSWER, f"{command}\n")

    def _environ(self, inventory: Inventory) -> dict[str, str]:
        """Return the environment; GPUs are numbered in it as in the limits."""
        environment = {
            "PATH": f"{os.path.dirname(self._control)}:/usr/sbin:/usr/bin:/sbin:/bin",
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe_directory,
            "CUDA_MPS_LOG_DIRECTORY": self.log_directory,
            "CUDA_VISIBLE_DEVICES": ",".join(self._limits.uuids),
        }
        cuda = inventory.library("libcuda.so")
        if cuda is not None and inventory.driver_root.rstrip("/"):
            environment["LD_LIBRARY_PATH"] = os.path.dirname(cuda.host_path)
        return environment

    # ---- why not

    @property
    def _start_log(self) -> str:
        return f"{self.log_directory}/start.log"

    def _ended(self, child: Child) -> HostError:
        with open(self._start_log, encoding="utf-8", errors="replace") as file:
            lines = file.read(4096).strip().splitlines()
        why = f": {one_line(lines[-1], 120)}" if lines else ""
        hint = f"see {self.log_directory}/control.log"
        return HostError(f"the MPS control daemon ended with status {child.wait()}{why}", hint)

    def _say(self, reason: str) -> None:
        if reason != self.reason:
            self.reason = reason
            self._changed()


def _host_path(inventory: Inventory) -> str:
    for file in inventory.files:
        if file.name == CONTROL:
            return file.host_path
    raise HostError(f"the driver root has no {CONTROL}", "MPS needs the whole driver")
