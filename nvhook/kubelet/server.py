"""Serves one resource to the kubelet."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import grpc

from nvhook.errors import FormatError, NvhookError
from nvhook.kubelet import wire
from nvhook.kubelet.metrics import Metrics
from nvhook.kubelet.resources import Resource

Context = grpc.aio.ServicerContext[bytes, bytes]
Method = Callable[[bytes, Context], Awaitable[bytes]]

# Requests name every free device: 65,000 replicas are more than a list to the kubelet can have.
_OPTIONS = (("grpc.max_receive_message_length", 16 << 20), ("grpc.so_reuseport", 0))


@dataclass(frozen=True, slots=True)
class Answers:
    """How the kubelet's questions about a resource are answered."""

    allocate: Callable[[Resource, tuple[str, ...]], wire.Answer]
    prefer: Callable[[Resource, wire.Preference], tuple[str, ...]]


class ResourceServer:
    """A resource's gRPC server, and the list that its streams send.

    A stream that falls behind skips lists: it sends the newest one when the kubelet has taken the
    last. The bytes of a list are made once, for all streams.
    """

    def __init__(self, resource: Resource, answers: Answers, metrics: Metrics) -> None:
        self.resource = resource
        self.streams = 0
        self.on_streams: Callable[[], None] = lambda: None
        self._answers = answers
        self._metrics = metrics
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Event()
        self._listed = (resource, frozenset[str]())
        self._list = self._render()
        self._closing = False

    async def start(self, path: str) -> None:
        """Serve on a new socket.

        Raises: OSError.
        """
        server = grpc.aio.server(options=_OPTIONS)
        methods = {
            "GetDevicePluginOptions": self._measured("GetDevicePluginOptions", _options),
            "GetPreferredAllocation": self._measured("GetPreferredAllocation", self._prefer),
            "Allocate": self._measured("Allocate", self._allocate),
            "PreStartContainer": self._measured("PreStartContainer", _nothing),
        }
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self._list_and_watch)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(wire.SERVICE, handlers),)
        )
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise OSError(f"can't serve on {path}: {error}") from None
        await server.start()
        self._server = server

    async def stop(self, grace: float) -> None:
        """End the streams, let requests finish within ``grace`` seconds, stop."""
        self._closing = True
        self._wake()
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None

    def update(self, resource: Resource, unhealthy: Collection[str]) -> bool:
        """Take a new state of the resource; return whether the kubelet is told something new.

        ``unhealthy`` has UUIDs of GPUs and MIG devices.
        """
        self.resource = resource
        listed = (
            resource,
            frozenset(unhealthy).intersection(each.uuid for each in resource.devices),
        )
        if listed == self._listed:
            return False
        self._listed = listed
        self._list = self._render()
        self._wake()
        return True

    def _render(self) -> bytes:
        resource, unhealthy = self._listed
        devices = [
            wire.Listed(each, device.uuid not in unhealthy, resource.numa.get(device.uuid))
            for device in resource.devices
            for each in resource.ids_of(device)
        ]
        bad = sum(not each.healthy for each in devices)
        self._metrics.devices(resource.name, len(devices) - bad, bad)
        return wire.device_list(devices)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _count(self, change: int) -> None:
        self.streams += change
        self._metrics.streams(self.resource.name, self.streams)
        self.on_streams()

    async def _list_and_watch(self, _request: bytes, context: Context) -> None:
        self._count(1)
        try:
            sent: bytes | None = None
            while not self._closing or sent is not self._list:
                changed = self._changed
                if sent is not self._list:
                    sent = self._list
                    await context.write(sent)
                else:
                    await changed.wait()
        finally:
            self._count(-1)

    async def _allocate(self, data: bytes, _context: Context) -> bytes:
        wanted = wire.parse_allocate(data)
        return wire.allocations([self._answers.allocate(self.resource, ids) for ids in wanted])

    async def _prefer(self, data: bytes, _context: Context) -> bytes:
        wanted = wire.parse_preference(data)
        return wire.preferences([self._answers.prefer(self.resource, each) for each in wanted])

    def _measured(self, name: str, method: Method) -> Method:
        """Return a method with its time measured, and its error told to the kubelet."""

        async def measured(data: bytes, context: Context) -> bytes:
            try:
                with self._metrics.request(self.resource.name, name):
                    return await method(data, context)
            except NvhookError as error:
                bad = isinstance(error, FormatError)
                status = grpc.StatusCode.INVALID_ARGUMENT if bad else grpc.StatusCode.NOT_FOUND
                await context.abort(status, f"nvhook: {error}")
                raise  # abort has raised

        return measured


async def _options(_data: bytes, _context: Context) -> bytes:
    return wire.options()


async def _nothing(_data: bytes, _context: Context) -> bytes:
    return b""
