"""How well GPUs are linked, from the PCI tree and from what NVML tells."""

from pathlib import Path

import pytest

from nvhook.core.inventory import Gpu
from nvhook.kubelet.reports import Driver, Link, Ready, Round
from nvhook.kubelet.topology import Topology, pci_links

# Root ports, and below each a switch: its upstream port, downstream ports, the GPUs.
TREE = {
    "0000:04:00.0": ("pci0000:00/0000:00:01.0/0000:02:00.0/0000:03:00.0", 0),
    "0000:05:00.0": ("pci0000:00/0000:00:01.0/0000:02:00.0/0000:03:01.0", 0),
    # A second switch behind the first one.
    "0000:0a:00.0": (
        "pci0000:00/0000:00:01.0/0000:02:00.0/0000:03:02.0/0000:08:00.0/0000:09:00.0",
        0,
    ),
    "0000:14:00.0": ("pci0000:00/0000:00:02.0", 0),
    "0000:44:00.0": ("pci0000:40/0000:40:01.0", 0),
    "0000:84:00.0": ("pci0000:80/0000:80:01.0", 1),
}


@pytest.fixture
def gpus(tmp_path: Path) -> list[Gpu]:
    """Six GPUs, whose UUIDs end with their index, and /sys in tmp_path."""
    found = []
    for index, (bus_id, (bridges, node)) in enumerate(TREE.items()):
        device = tmp_path / "devices" / bridges / bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        link = tmp_path / "bus/pci/devices" / bus_id
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
        found.append(Gpu(index, f"GPU-{index}", index, bus_id, "NVIDIA L4"))
    return found


def test_the_pci_tree_tells_how_near_gpus_are(tmp_path: Path, gpus: list[Gpu]) -> None:
    links = pci_links(str(tmp_path), gpus)
    near = {other: links["GPU-0", f"GPU-{other}"] for other in range(1, 6)}
    assert near == {1: 50, 2: 40, 3: 30, 4: 20, 5: 10}
    assert links["GPU-4", "GPU-5"] == 10
    assert len(links) == 15


def test_a_gpu_whose_place_nobody_tells_has_no_links(tmp_path: Path, gpus: list[Gpu]) -> None:
    stranger = Gpu(6, "GPU-6", 6, "0000:ff:00.0", "NVIDIA L4")
    links = pci_links(str(tmp_path), [*gpus, stranger])
    assert not any("GPU-6" in pair for pair in links)
    assert pci_links(str(tmp_path / "nothing"), gpus) == {}


def test_nvml_knows_better_once_it_has_told_everything(tmp_path: Path, gpus: list[Gpu]) -> None:
    topology = Topology(str(tmp_path), gpus)
    assert topology.links["GPU-0", "GPU-1"] == 50
    topology.take(Driver("550.54.14"))
    topology.take(Link("GPU-1", "GPU-0", 0, 12))
    topology.take(Link("GPU-0", "GPU-2", 99, 1))
    assert topology.links["GPU-0", "GPU-1"] == 50
    topology.take(Round())
    topology.take(Ready())
    assert topology.links["GPU-0", "GPU-1"] == 60 + 1200
    assert topology.links["GPU-0", "GPU-2"] == 100
    assert topology.links["GPU-0", "GPU-3"] == 30
    topology.take(Driver("560.35.03"))
    topology.take(Ready())
    assert topology.links["GPU-0", "GPU-1"] == 50
