"""Driver layouts of distributions: what a container gets of each, compared with a golden file.

tests/data/layouts/NAME.txt has a line for each mount, "path in the container = path on the host",
for a container with all driver capabilities, first in an image like Debian, then in a CDI spec.
Write them anew with NVHOOK_UPDATE_GOLDEN=1, and read what has changed.
"""

import os
from pathlib import Path

import pytest

from nvhook.core.catalog import CAPABILITIES
from nvhook.core.edits import DeviceNode, Mount
from nvhook.core.inventory import HostNode, Inventory
from nvhook.core.layout import ContainerLayout, container_layout
from nvhook.core.planner import plan_request
from nvhook.host import discovery
from tests.host.layouts import LAYOUTS, VERSION

GOLDEN = Path(__file__).parents[1] / "data" / "layouts"


def inventory(host, machine: str, monkeypatch) -> Inventory:
    """Discover as this machine, with the nodes that only root could make."""
    system = os.uname_result(("Linux", "host", "6.1.0", "#1", machine))
    monkeypatch.setattr(discovery.os, "uname", lambda: system)
    host.driver(VERSION)
    found = discovery.discover(*host.roots)
    numbers = {"nvidiactl": (195, 255), "nvidia-uvm": (511, 0)}
    nodes = tuple(
        HostNode(name, f"{host.dev}/{name}", major, minor, 0o666, 0, 0)
        for name, (major, minor) in numbers.items()
    )
    return found.replace(nodes=nodes)


def mounts(found: Inventory, layout: ContainerLayout, root: str) -> list[str]:
    plan = plan_request(CAPABILITIES, (), found, layout)
    lines = []
    for edit in plan.edits:
        if isinstance(edit, Mount) and edit.host_path:
            assert edit.host_path.startswith(root + "/"), "a path without the driver root"
            assert Path(edit.host_path).resolve() == Path(edit.host_path)
            lines.append(f"{edit.container_path} = {edit.host_path.removeprefix(root)}")
    return lines


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_container_gets(host, name: str, monkeypatch) -> None:
    machine, lay_out = LAYOUTS[name]
    lay_out(host)
    found = inventory(host, machine, monkeypatch)
    debian = container_layout(machine, debian=True, has_lib32=False)
    parts = [mounts(found, layout, str(host.root)) for layout in (debian, ContainerLayout())]
    text = "\n\n".join("\n".join(part) for part in parts) + "\n"
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("NVHOOK_UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_golden_file_has_a_layout() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(LAYOUTS)


def test_a_driver_container_has_the_libraries_and_the_host_the_nodes(host, monkeypatch) -> None:
    """driver-root = /run/nvidia/driver, dev-root = /dev: absolute links stay in the driver root."""
    _, ubuntu = LAYOUTS["ubuntu"]
    ubuntu(host)
    link = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    (host.root / link[1:]).unlink()
    host.link(link, f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}")
    found = inventory(host, "x86_64", monkeypatch)
    plan = plan_request(("compute",), (), found, container_layout("x86_64", True, False))
    nodes = [edit for edit in plan.edits if isinstance(edit, DeviceNode)]
    assert nodes[0].host_path == f"{host.dev}/nvidiactl"
    assert nodes[0].container_path == "/dev/nvidiactl"
    libraries = [edit for edit in plan.edits if isinstance(edit, Mount) and ".so" in edit.host_path]
    assert f"{host.root}/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}" in {
        library.host_path for library in libraries
    }
    assert all(library.host_path.startswith(str(host.root)) for library in libraries)
