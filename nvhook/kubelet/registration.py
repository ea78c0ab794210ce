"""Keeps one resource registered with the kubelet.

What is there decides, not which event said so: a kubelet is new when its socket is another one than
that of the last registration, and it is lost when it has no stream open. No NVML call is made here.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine

import grpc

from nvhook.errors import HostError
from nvhook.kernel.inotify import DirectoryWatch
from nvhook.kubelet import wire
from nvhook.kubelet.json_log import LOG, fields
from nvhook.kubelet.metrics import Metrics
from nvhook.kubelet.server import ResourceServer
from nvhook.kubelet.sockets import SocketDirectory, identity
from nvhook.kubelet.waiting import wait_until

# All in seconds.
FIRST_RETRY = 0.01
LAST_RETRY = 5.0
SELF_DIAL = 5.0
# The kubelet dials us for up to 10 s before it answers.
REGISTER = 20.0
# From a registration to the kubelet's stream, and from a stream's end to another registration:
# doubled each time, because where two plugins serve one resource each may end the other's stream.
FIRST_PATIENCE = 1.0
LAST_PATIENCE = 60.0
STABLE = 60.0
LOOK = 5.0

# A channel of its own for each try: a shared one would wait a second after a refused connection.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


class Registration:
    """Registers a resource's server whenever it is due."""

    def __init__(
        self,
        server: ResourceServer,
        bound: str,
        directory: SocketDirectory,
        kubelet_socket: str,
        metrics: Metrics,
    ) -> None:
        self.name = directory.link_name(server.resource.name)
        self._server = server
        self._bound = bound
        self._directory = directory
        self._kubelet_socket = kubelet_socket
        self._metrics = metrics
        self._woken = asyncio.Event()
        self._with: tuple[int, int, int] | None = None
        self._patience = FIRST_PATIENCE
        self._changed = 0.0  # when a registration was made, or a stream came or went
        self._problem = ""
        server.on_streams = self._streams_changed

    @property
    def is_complete(self) -> bool:
        """Tell whether a kubelet listens."""
        return self._with is not None and self._server.streams > 0

    @property
    def problem(self) -> str:
        """Return why the last try failed, empty if it did not."""
        return self._problem

    def wake(self) -> None:
        """Look whether a registration is due: something changed in the kubelet's directory."""
        self._woken.set()

    async def run(self) -> None:
        """Keep the resource registered, for ever."""
        delay = FIRST_RETRY
        while True:
            self._woken.clear()
            try:
                due_in = await self._look()
            except (OSError, HostError, grpc.aio.AioRpcError) as error:
                self._failed(error)
                due_in = delay
                delay = min(2 * delay, LAST_RETRY)
            else:
                delay = FIRST_RETRY
            await wait_until(self._woken, due_in)

    def withdraw(self) -> None:
        """Take the socket's name away."""
        self._directory.withdraw(self.name)

    async def _look(self) -> float:
        """Do what is due; return in how many seconds to look again."""
        if self._directory.publish(self._bound, self.name) and self._with is not None:
            LOG.debug("linked the socket again", extra=fields(resource=self._resource))
        kubelet = identity(self._kubelet_socket)
        if kubelet is None:
            return LOOK
        if kubelet == self._with:
            if self._server.streams > 0:
                return LOOK
            left = self._changed + self._patience - time.monotonic()
            if left > 0:
                return left
            self._patience = min(2 * self._patience, LAST_PATIENCE)
        else:
            self._patience = FIRST_PATIENCE
        if not await self._while_there(kubelet, self._register()):
            return 0
        self._with = kubelet
        self._changed = time.monotonic()
        return self._patience

    async def _while_there(
        self, kubelet: tuple[int, int, int], work: Coroutine[None, None, None]
    ) -> bool:
        """Work, but no longer than the kubelet is there; return whether the work is done."""
        task = asyncio.ensure_future(work)
        try:
            while identity(self._kubelet_socket) == kubelet:
                self._woken.clear()
                woken = asyncio.ensure_future(self._woken.wait())
                await asyncio.wait({task, woken}, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                if task.done():
                    task.result()
                    return True
            return False
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _register(self) -> None:
        started = time.monotonic()
        with self._metrics.registration(self._resource):
            own = f"{self._directory.path}/{self.name}"
            await _call(own, f"/{wire.SERVICE}/GetDevicePluginOptions", b"", SELF_DIAL)
            request = wire.register_request(self.name, self._resource)
            await _call(self._kubelet_socket, wire.REGISTER, request, REGISTER)
        self._problem = ""
        took = round(1000 * (time.monotonic() - started), 1)
        LOG.info(
            "registered with the kubelet", extra=fields(resource=self._resource, milliseconds=took)
        )

    @property
    def _resource(self) -> str:
        return self._server.resource.name

    def _streams_changed(self) -> None:
        now = time.monotonic()
        if self._server.streams == 0 and now - self._changed > STABLE:
            self._patience = FIRST_PATIENCE
        self._changed = now
        self._woken.set()

    def _failed(self, error: Exception) -> None:
        reason = str(error)
        if isinstance(error, grpc.aio.AioRpcError):
            reason = f"{error.code().name}: {error.details()}"
        if reason != self._problem:
            LOG.warning(
                "can't register with the kubelet",
                extra=fields(resource=self._resource, reason=reason),
            )
        self._problem = reason


async def _call(path: str, method: str, request: bytes, seconds: float) -> bytes:
    async with grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        return await call(request, timeout=seconds)


async def watch(directory: str, changed: Callable[[], None]) -> None:
    """Call ``changed`` after changes in a directory, for ever; it may vanish and come again."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            inotify = DirectoryWatch(directory)
        except OSError:
            await asyncio.sleep(1)
            continue
        readable = asyncio.Event()
        loop.add_reader(inotify.fileno(), readable.set)
        try:
            there = True
            while there:
                changed()
                await readable.wait()
                readable.clear()
                there = inotify.drain()
        finally:
            loop.remove_reader(inotify.fileno())
            inotify.close()
