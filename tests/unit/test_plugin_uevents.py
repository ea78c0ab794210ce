"""Which of the kernel's events are about a GPU or the driver."""

import pytest

from nvhook.kubelet.uevents import change

GPU = {
    "ACTION": "add",
    "DEVPATH": "/devices/pci0000:00/0000:00:01.0/0000:04:00.0",
    "SUBSYSTEM": "pci",
    "PCI_CLASS": "30200",
    "PCI_ID": "10DE:2330",
    "PCI_SLOT_NAME": "0000:04:00.0",
}
MODULE = {"ACTION": "add", "DEVPATH": "/module/nvidia", "SUBSYSTEM": "module"}
DRM = {"ACTION": "add", "SUBSYSTEM": "drm", "DEVNAME": "dri/renderD128"}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (GPU, "add GPU 0000:04:00.0"),
        ({**GPU, "ACTION": "remove"}, "remove GPU 0000:04:00.0"),
        ({**GPU, "ACTION": "bind", "DRIVER": "nvidia"}, "bind GPU 0000:04:00.0"),
        ({**GPU, "PCI_CLASS": "30000"}, "add GPU 0000:04:00.0"),
        ({**GPU, "ACTION": "change"}, None),
        ({**GPU, "PCI_ID": "8086:1234"}, None),
        ({**GPU, "PCI_CLASS": "40300"}, None),  # its sound device
        ({**GPU, "PCI_CLASS": "?"}, None),
        (MODULE, "add driver"),
        ({**MODULE, "ACTION": "remove"}, "remove driver"),
        ({**MODULE, "DEVPATH": "/module/nvidia_uvm"}, None),
        (DRM, "add dri/renderD128"),
        ({**DRM, "ACTION": "change"}, None),
        ({**DRM, "DEVNAME": "dri/card0"}, None),
        ({"ACTION": "add", "SUBSYSTEM": "net"}, None),
        ({}, None),
    ],
)
def test_what_an_event_tells(event: dict[str, str], text: str | None) -> None:
    assert change(event) == text
