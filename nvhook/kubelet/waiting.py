"""Wait for an event: though not for ever, or at work."""

import asyncio
from collections.abc import Coroutine, Iterable


async def wait_until(event: asyncio.Event, seconds: float) -> bool:
    """Return whether the event came within so many seconds.

    Unlike asyncio.wait_for before Python 3.12 it is cancelled when it is cancelled, also where the
    event comes at the same moment.
    """
    task = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task}, timeout=seconds)
        return event.is_set()
    finally:
        task.cancel()


async def work_until(stop: asyncio.Event, work: Iterable[Coroutine[None, None, None]]) -> None:
    """Work until the event; work that ends ends all.

    Raises: what the work raises.
    """
    tasks = [asyncio.create_task(each) for each in work]
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        stopped.cancel()
        await asyncio.wait([*tasks, stopped])
