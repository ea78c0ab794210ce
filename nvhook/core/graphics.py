"""What graphics and display need beside files and control nodes: loaded for those alone."""

from __future__ import annotations

from nvhook.core import catalog
from nvhook.core.device_edits import device_edits
from nvhook.core.edits import Symlink, TextFile
from nvhook.core.inventory import gpus_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Device, Gpu, Inventory


def drm_edits(gpu: Gpu, inventory: Inventory) -> Iterable[Edit]:
    """Return a GPU's nodes for rendering and screens, with the host's links to them."""
    for drm in inventory.drm:
        if drm.pci_bus_id == gpu.pci_bus_id:
            yield from device_edits(drm.node)
            if drm.by_path:
                target = "../" + drm.node.name.rpartition("/")[2]
                yield Symlink(f"/dev/dri/by-path/{drm.by_path}", target)


def profile(devices: tuple[Device, ...]) -> TextFile:
    """Tell EGL which GPUs it may use; without this it tries those whose nodes are not there.

    Source: the driver's README, application profiles; nvidia-container-stack reference, 1.7.
    """
    mask = sum(1 << gpu.minor for gpu in gpus_of(devices) if gpu.minor < 64)
    setting = f'"settings": ["EGLVisibleDGPUDevices", {mask:#x}]'
    return TextFile(
        catalog.PROFILE_FILE,
        f'{{"profiles": [{{"name": "nvhook", {setting}}}],\n'
        ' "rules": [{"pattern": [], "profile": "nvhook"}]}\n',
    )
