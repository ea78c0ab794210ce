"""Wait for an event, though not for ever."""

import asyncio


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
