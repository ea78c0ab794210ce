"""Notice at once when a GPU or the driver comes or goes: the kernel's uevents.

They may get lost, and a container may not get them at all: whoever listens looks now and then, too.
"""

from collections.abc import Callable, Mapping

from pyroute2.netlink.uevent import MONITOR_GROUP_KERNEL, AsyncUeventSocket

_NVIDIA = "10DE:"
_DISPLAY = 0x03  # the PCI base class of GPUs, those without a screen, too
_COMES_OR_GOES = frozenset({"add", "remove", "bind", "unbind"})


def change(event: Mapping[str, str]) -> str | None:
    """Return what an event tells of a GPU or the driver, None for any other."""
    action = event.get("ACTION", "")
    if action not in _COMES_OR_GOES:
        return None
    match event.get("SUBSYSTEM"):
        case "pci" if event.get("PCI_ID", "").upper().startswith(_NVIDIA):
            if _base_class(event.get("PCI_CLASS", "")) == _DISPLAY:
                return f"{action} GPU {event.get('PCI_SLOT_NAME', '')}"
        case "module" if event.get("DEVPATH") == "/module/nvidia":
            return f"{action} driver"
        case "drm" if event.get("DEVNAME", "").startswith("dri/render"):
            return f"{action} {event['DEVNAME']}"
    return None


def _base_class(text: str) -> int:
    """Return the base class of a PCI class as the kernel writes it: 3 of 30200."""
    try:
        return int(text, 16) >> 16
    except ValueError:
        return -1


async def listen(
    changed: Callable[[str], None],
    told: Callable[[Mapping[str, str]], str | None] = change,
) -> None:
    """Call ``changed`` with every change there is, until cancelled; they come in bursts.

    Raises: OSError where the kernel gives no such socket.
    """
    async with AsyncUeventSocket() as socket:
        try:
            # Only the kernel's own: udev, which sends the others, says nothing that is news.
            await socket.bind(groups=MONITOR_GROUP_KERNEL)
            while True:
                async for event in socket.get():
                    text = told({key: value for key, value in event.items() if type(value) is str})
                    if text is not None:
                        changed(text)
        finally:
            socket.close()
