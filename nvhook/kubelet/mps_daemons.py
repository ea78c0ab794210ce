"""The MPS control daemons of all resources that are shared by MPS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from nvhook.core.inventory import Inventory
from nvhook.errors import NvhookError
from nvhook.kubelet.mps import Mps
from nvhook.kubelet.reports import GpuFacts
from nvhook.kubelet.resources import Resource

_NO_FACTS = "MPS waits until NVML has told the GPU's memory"


@dataclass(frozen=True, slots=True)
class _Running:
    """A resource's daemon: what it was made for, itself or why there is none, its task."""

    made_for: object
    resource: Resource
    daemon: Mps | str
    task: asyncio.Task[None]


class MpsDaemons:
    """Keeps a daemon for each resource that wants one.

    ``changed`` is called in the event loop whenever ``reasons`` has changed.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._running: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # those that are ending, too
        self._places: dict[str, asyncio.Lock] = {}

    def apply(
        self,
        mps_root: str,
        resources: Iterable[Resource],
        inventory: Inventory,
        facts: Mapping[str, GpuFacts],
    ) -> None:
        """Start what is new, replace what has changed, stop what is gone; the rest goes on.

        ``facts`` are NVML's, by the GPUs' UUIDs: a new resource waits for all of its own. GPUs that
        a resource has beside its shared ones are none of a daemon's business.
        """
        wanted = {each.name: each for each in resources if each.sharing == "mps"}
        for name in [name for name in self._running if name not in wanted]:
            self._running.pop(name).task.cancel()
        for name, resource in wanted.items():
            told = all(device.uuid in facts for device in resource.shared)
            # Not the facts: while NVML starts anew there are none, and clients have their GPU.
            shared = (mps_root, resource.shared, resource.replicas)
            made_for = (*shared, inventory.driver_root, inventory.driver_version)
            before = self._running.get(name)
            if before is not None:
                waits = before.daemon == _NO_FACTS and told
                if before.made_for == made_for and not waits:
                    continue
                before.task.cancel()
            daemon: Mps | str = _NO_FACTS
            if told:
                try:
                    daemon = Mps(mps_root, resource, inventory, facts, self._changed)
                except NvhookError as error:
                    daemon = str(error)
            self._running[name] = _Running(made_for, resource, daemon, self._start(name, daemon))

    def reasons(self) -> dict[str, str]:
        """Return why not, by the UUID of each device whose clients can't be served."""
        found: dict[str, str] = {}
        for each in self._running.values():
            if each.task.done():
                each.task.result()  # it never ends: this raises
            reason = each.daemon if isinstance(each.daemon, str) else each.daemon.reason
            if reason:
                found |= {device.uuid: reason for device in each.resource.shared}
        return found

    async def stop(self) -> None:
        """End every daemon."""
        self._running = {}
        tasks = {*self._tasks}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self, name: str, daemon: Mps | str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(_run(daemon, self._places.setdefault(name, asyncio.Lock())))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _run(daemon: Mps | str, place: asyncio.Lock) -> None:
    """Run a daemon, once the one before has left its directories."""
    async with place:
        await (asyncio.Event().wait() if isinstance(daemon, str) else daemon.run())
