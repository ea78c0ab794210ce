"""The kernel's own events reach who listens."""

import asyncio
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from nvhook.kubelet import uevents
from tests.descriptors import open_here


def test_events_come_as_they_happen_and_nothing_is_left(require) -> None:
    devices = sorted(Path("/sys/bus/pci/devices").glob("*/uevent"))
    require(os.geteuid() == 0 and bool(devices), "needs root and a PCI device")
    slot = devices[0].parent.name
    heard: list[str] = []

    def told(event: Mapping[str, str]) -> str | None:
        return f"{event['ACTION']} {event.get('PCI_SLOT_NAME')}"

    async def run() -> None:
        before = open_here()
        listening = asyncio.create_task(uevents.listen(heard.append, told))
        await asyncio.sleep(0.2)
        for _ in range(2):
            devices[0].write_text("change")
        await asyncio.sleep(0.2)
        assert heard.count(f"change {slot}") == 2
        assert threading.active_count() == 1
        listening.cancel()
        await asyncio.wait({listening})
        assert listening.cancelled()
        assert open_here() - before == set()

    asyncio.run(run())
