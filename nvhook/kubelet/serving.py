"""The resources that are served now, each with its server and its registration."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nvhook.kubelet.json_log import LOG, fields
from nvhook.kubelet.metrics import Metrics
from nvhook.kubelet.registration import Registration, watch
from nvhook.kubelet.resources import Resource
from nvhook.kubelet.server import Answers, ResourceServer
from nvhook.kubelet.sockets import SocketDirectory

DEFAULT_DIRECTORY = "/var/lib/kubelet/device-plugins"
# In seconds: how long a request in flight, or a kubelet that reads slowly, is waited for.
GRACE = 5.0
DROP_GRACE = 1.0


@dataclass(frozen=True, slots=True)
class _Served:
    server: ResourceServer
    registration: Registration
    task: asyncio.Task[None] | None  # None where no kubelet is to be registered with


class Serving:
    """Serves resources in the kubelet's directory until it is stopped.

    ``kubelet_socket``: the path of kubelet.sock; empty: register nowhere. ``lost`` is called when
    the kubelet's directory has been made anew, and everything has to be served there again.
    """

    def __init__(
        self,
        kubelet_socket: str,
        answers: Answers,
        metrics: Metrics,
        lost: Callable[[], None],
    ) -> None:
        self._kubelet_socket = kubelet_socket
        path = str(Path(kubelet_socket).parent) if kubelet_socket else DEFAULT_DIRECTORY
        self._directory = SocketDirectory(path)
        self._answers = answers
        self._metrics = metrics
        self._lost = lost
        self._served: dict[str, _Served] = {}
        self._unhealthy: Mapping[str, str] = {}
        self._watch: asyncio.Task[None] | None = None

    @property
    def problems(self) -> dict[str, str]:
        """Why the kubelet does not listen, by resource; empty where it listens to all."""
        if not self._kubelet_socket:
            return {}
        return {
            name: each.registration.problem or "the kubelet does not listen yet"
            for name, each in self._served.items()
            if not each.registration.is_complete
        }

    async def apply(self, resources: Iterable[Resource]) -> None:
        """Serve these resources from now on; what is served already stays as it is.

        Raises: HostError, OSError where a socket can't be made.
        """
        if self._served and not self._directory.is_there():
            LOG.warning("the kubelet's directory was made anew: serving there")
            await self._stop_all(0)
        wanted = {resource.name: resource for resource in resources}
        for name in [name for name in self._served if name not in wanted]:
            await self._drop(name)
        for name, resource in wanted.items():
            if name in self._served:
                self._served[name].server.update(resource, self._unhealthy)
            else:
                await self._start(resource)

    def mark(self, unhealthy: Mapping[str, str]) -> None:
        """Tell the kubelet which devices it can't give now; the UUIDs of GPUs and MIG devices."""
        self._unhealthy = unhealthy
        for each in self._served.values():
            each.server.update(each.server.resource, unhealthy)

    async def stop(self) -> None:
        """Let requests finish, end the streams, remove the sockets."""
        if self._watch is not None:
            self._watch.cancel()
        await self._stop_all(GRACE)
        self._directory.remove()

    async def _start(self, resource: Resource) -> None:
        if not self._served:
            self._directory.create()
        server = ResourceServer(resource, self._answers, self._metrics)
        server.update(resource, self._unhealthy)
        bound = self._directory.new_socket()
        await server.start(bound)
        registration = Registration(
            server, bound, self._directory, self._kubelet_socket, self._metrics
        )
        task = None
        if self._kubelet_socket:
            task = asyncio.create_task(registration.run(), name=f"registration {resource.name}")
            if self._watch is None:
                self._watch = asyncio.create_task(watch(self._directory.path, self._wake))
        else:
            self._directory.publish(bound, registration.name)
        self._served[resource.name] = _Served(server, registration, task)
        LOG.info("serving", extra=fields(resource=resource.name, devices=len(resource.ids)))

    async def _drop(self, name: str) -> None:
        """Stop serving a resource; its last list is empty, so that the kubelet forgets it now."""
        served = self._served.pop(name)
        served.server.update(replace(served.server.resource, devices=()), ())
        await self._stop(served, DROP_GRACE)
        self._metrics.forget(name)
        LOG.info("no longer serving", extra=fields(resource=name))

    async def _stop_all(self, grace: float) -> None:
        served = [*self._served.values()]
        self._served.clear()
        await asyncio.gather(*(self._stop(each, grace) for each in served))

    async def _stop(self, served: _Served, grace: float) -> None:
        if served.task is not None:
            served.task.cancel()
            await asyncio.wait([served.task])
        try:
            served.registration.withdraw()
        except OSError as error:  # a name that is left behind leads nowhere
            LOG.warning("a socket's name can't be removed", extra=fields(reason=str(error)))
        await served.server.stop(grace)

    def _wake(self) -> None:
        if self._served and not self._directory.is_there():
            self._lost()
            return
        for each in self._served.values():
            each.registration.wake()
