"""A kubelet of our own, with the kubelet's rules. Source: kubernetes reference, section 1.2."""

import re
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from nvhook.kubelet.wire import MESSAGES

DIAL = 10.0
_LOCAL = (("grpc.use_local_subchannel_pool", 1),)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")


@dataclass
class Endpoint:
    """A plugin that has registered."""

    resource: str
    path: str
    options: Any
    channel: grpc.Channel
    stream: Any = None
    listening: threading.Event = field(default_factory=threading.Event)
    # Thousands: not in messages.
    devices: dict[str, bool] = field(default_factory=dict, repr=False)
    numa: dict[str, list[int]] = field(default_factory=dict, repr=False)
    skip: threading.Event = field(default_factory=threading.Event)  # ends a slow kubelet's waiting
    messages: int = 0
    connected: bool = True
    problem: str = ""
    first_list: float = 0.0  # time.monotonic()

    def call(self, method: str, answer: str, **fields: Any) -> Any:
        request = {
            "Allocate": "AllocateRequest",
            "GetPreferredAllocation": "PreferredAllocationRequest",
            "PreStartContainer": "PreStartContainerRequest",
            "GetDevicePluginOptions": "Empty",
        }[method]
        return self.channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES[answer].FromString,
        )(MESSAGES[request](**fields), timeout=DIAL, wait_for_ready=True)


class ScriptedKubelet:
    """A kubelet in a directory of its own.

    ``wait_before_reading``: seconds that a slow kubelet lets pass before it takes the next list.
    ``disconnects_the_newest``: as kubelets up to 1.35 do, end the newest registration of a resource
    when the stream of any ends. ``refuse``: what to answer registrations with; ``hang``: what to
    wait for before.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "kubelet.sock"
        self.endpoints: dict[str, Endpoint] = {}
        self.registrations: list[tuple[str, str]] = []
        self.refuse = ""
        self.wait_before_reading = 0.0
        self.disconnects_the_newest = False
        self.hang: threading.Event | None = None
        self.max_message = 4 << 20
        self.created = 0.0
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._all: list[Endpoint] = []  # those that others have replaced, too

    # ---- its life

    def start(self, wipe: bool = True) -> None:
        """Begin as a kubelet does: wipe the sockets, then listen."""
        self.directory.mkdir(mode=0o750, exist_ok=True)
        if wipe:
            self.wipe()
        self.socket.unlink(missing_ok=True)
        self._stopping = False
        self.endpoints = {}
        self.registrations = []
        server = grpc.server(ThreadPoolExecutor(8))
        handler = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=MESSAGES["RegisterRequest"].FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        server.add_insecure_port(f"unix:{self.socket}")
        self.created = time.monotonic()
        server.start()
        self._server = server

    def wipe(self) -> None:
        """Remove every socket, as a starting kubelet does; directories and files stay."""
        for entry in self.directory.iterdir():
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(entry.stat().st_mode):
                    entry.unlink()

    def stop(self) -> None:
        """End: every connection is closed."""
        with self._changed:
            self._stopping = True
        assert self._server is not None
        self._server.stop(0).wait()
        self._server = None
        for endpoint in self._all:
            assert endpoint.listening.wait(
                DIAL
            )  # a call that starts while its channel closes hangs
            if endpoint.stream is not None:
                endpoint.stream.cancel()
            endpoint.channel.close()
        for thread in self._threads:
            thread.join(DIAL)
            assert not thread.is_alive()
        self._threads, self._all = [], []

    def restart(self) -> None:
        self.stop()
        self.start()

    # ---- what plugins do with it

    def _register(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.hang is not None:
            self.hang.wait(DIAL)
        if self.refuse:
            context.abort(grpc.StatusCode.UNKNOWN, self.refuse)
        if request.version != "v1beta1":
            context.abort(grpc.StatusCode.UNKNOWN, f"unsupported version {request.version}")
        if not _NAME.fullmatch(request.resource_name) or "/" in request.endpoint:
            context.abort(grpc.StatusCode.UNKNOWN, f"invalid {request.resource_name}")
        path = f"{self.directory}/{request.endpoint}"
        channel = grpc.insecure_channel(
            f"unix:{path}", options=(*_LOCAL, ("grpc.max_receive_message_length", self.max_message))
        )
        endpoint = Endpoint(request.resource_name, path, None, channel)
        try:
            endpoint.options = endpoint.call("GetDevicePluginOptions", "DevicePluginOptions")
        except grpc.RpcError as error:
            channel.close()
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to get device plugin options: {error}")
        with self._changed:
            if self._stopping:
                channel.close()
                context.abort(grpc.StatusCode.UNAVAILABLE, "stopping")
            self.registrations.append((request.resource_name, request.endpoint))
            self.endpoints[request.resource_name] = endpoint
            self._all.append(endpoint)
            self._changed.notify_all()
            thread = threading.Thread(target=self._listen, args=(endpoint,), daemon=True)
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)
            thread.start()
        return MESSAGES["Empty"]()

    def _listen(self, endpoint: Endpoint) -> None:
        method = endpoint.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES["ListAndWatchResponse"].FromString,
        )
        try:
            try:
                endpoint.stream = method(MESSAGES["Empty"]())
            finally:
                endpoint.listening.set()
            for message in endpoint.stream:
                with self._changed:
                    endpoint.devices = {
                        each.ID: each.health == "Healthy" for each in message.devices
                    }
                    endpoint.numa = {
                        each.ID: [node.ID for node in each.topology.nodes]
                        for each in message.devices
                    }
                    endpoint.messages += 1
                    endpoint.first_list = endpoint.first_list or time.monotonic()
                    self._changed.notify_all()
                endpoint.skip.wait(self.wait_before_reading)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed
            endpoint.problem = str(error)
        with self._changed:
            endpoint.connected = False
            endpoint.devices = dict.fromkeys(endpoint.devices, False)
            newest = self.endpoints.get(endpoint.resource)
            self._changed.notify_all()
        if self.disconnects_the_newest and newest is not None and newest.connected:
            newest.stream.cancel()

    # ---- what tests ask

    def wait_for(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait until something is so.

        Raises: TimeoutError.
        """
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                raise TimeoutError(f"not so after {seconds} s: {self.endpoints}")

    def wait_for_list(self, resource: str = "nvidia.com/gpu", seconds: float = 30.0) -> Endpoint:
        """Return a resource's endpoint once it has a list."""
        self.wait_for(lambda: self._messages(resource) > 0, seconds)
        return self.endpoints[resource]

    def _messages(self, resource: str) -> int:
        return self.endpoints[resource].messages if resource in self.endpoints else 0

    def capacity(self, resource: str = "nvidia.com/gpu") -> int:
        return len(self.endpoints[resource].devices)

    def allocatable(self, resource: str = "nvidia.com/gpu") -> int:
        return sum(self.endpoints[resource].devices.values())

    def admit(
        self, count: int, resource: str = "nvidia.com/gpu", taken: tuple[str, ...] = ()
    ) -> Any:
        """Give a container devices as a kubelet does; return (ids, the plugin's answer)."""
        endpoint = self.endpoints[resource]
        free = sorted(each for each, good in endpoint.devices.items() if good and each not in taken)
        assert len(free) >= count, "requested number of devices unavailable"
        chosen: list[str] = []
        if endpoint.options.get_preferred_allocation_available:
            chosen = [each for each in self.prefer(count, resource, free) if each in free][:count]
        chosen += [each for each in free if each not in chosen][: count - len(chosen)]
        return chosen, self.allocate(chosen, resource)

    def prefer(
        self,
        size: int,
        resource: str,
        available: list[str],
        must_include: tuple[str, ...] = (),
    ) -> list[str]:
        request = MESSAGES["ContainerPreferredAllocationRequest"](
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        answer = self.endpoints[resource].call(
            "GetPreferredAllocation", "PreferredAllocationResponse", container_requests=[request]
        )
        return list(answer.container_responses[0].deviceIDs)

    def allocate(self, ids: list[str], resource: str = "nvidia.com/gpu") -> Any:
        """Return the answer to one container's request."""
        request = MESSAGES["ContainerAllocateRequest"](devices_ids=ids)
        answer = self.endpoints[resource].call(
            "Allocate", "AllocateResponse", container_requests=[request]
        )
        (response,) = answer.container_responses
        return response
