"""Driver layouts of distributions: the plans of each, compared with a golden file.

tests/data/layouts/NAME.txt has a line for each edit: for an image like Debian with compute and
utility, then with all driver capabilities, then for a CDI spec with all. The container has the
first GPU, of the partitioned host a MIG device. Write them anew with NVHOOK_UPDATE_GOLDEN=1, and
read what has changed.
"""

import os
from pathlib import Path

import pytest

from nvhook.core.catalog import CAPABILITIES, DEFAULT_CAPABILITIES
from nvhook.core.edits import (
    AdditionalGid,
    CgroupRule,
    DeviceNode,
    EnvVar,
    LdCacheUpdate,
    Mount,
    Symlink,
    TextFile,
)
from nvhook.core.inventory import Inventory
from nvhook.core.layout import ContainerLayout, container_layout
from nvhook.core.planner import plan_request
from nvhook.core.selection import select
from nvhook.errors import assert_never
from nvhook.host import discovery, inventory_cache, mig_devices, nvml
from tests.host.conftest import take_fake_nodes
from tests.host.layouts import LAYOUTS, VERSION, WITHOUT_DRIVER

GOLDEN = Path(__file__).parents[1] / "data" / "layouts"
GPU = "0000:04:00.0"
NVML = {
    "print_mig_devices": [
        f"{GPU} {gi} {ci} {index} MIG-00000000-0000-4000-8000-00000000000{index} NVIDIA MIG 1g.10gb"
        for index, (gi, ci) in enumerate([(5, 0), (1, 0), (1, 1)])
    ]
}
NODES = {"nvidiactl": (195, 255), "nvidia0": (195, 0), "nvidia-uvm": (511, 0)}


def discover(host, name: str, monkeypatch) -> Inventory:
    """Discover as this machine does, with a driver, nodes and a GPU where the layout has none."""
    machine, lay_out = LAYOUTS[name]
    system = os.uname_result(("Linux", "host", "6.1.0", "#1", machine))
    monkeypatch.setattr(discovery.os, "uname", lambda: system)
    monkeypatch.setattr(nvml, "_ask", lambda question, *_: NVML.get(question, []))
    take_fake_nodes(monkeypatch)
    if name not in WITHOUT_DRIVER:
        host.driver(VERSION)
        host.gpu(GPU, 0)
        for node, numbers in NODES.items():
            host.fake_node(node, *numbers)
    lay_out(host)
    found = inventory_cache.load(*host.roots, str(host.state))
    return mig_devices.add_to(found, str(host.dev), str(host.state)) if name == "mig" else found


def lines(found: Inventory, capabilities, layout: ContainerLayout, host) -> list[str]:
    """Return a line for each edit, without the fake host's directory."""
    asked = ("0:2",) if found.mig_devices else ("all",)
    plan = plan_request(capabilities, select(asked, found), found, layout)
    text = []
    for edit in plan.edits:
        match edit:
            case DeviceNode():
                assert edit.host_path == f"{host.dev}/{edit.container_path.removeprefix('/dev/')}"
                text.append(f"node {edit.container_path} {edit.major}:{edit.minor}")
            case CgroupRule():
                text.append(f"rule {edit.type} {edit.major}:{edit.minor} {edit.access}")
            case Mount() if edit.host_path.startswith(f"{host.proc}/"):
                text.append(f"proc {edit.container_path}")
            case Mount() if edit.host_path:
                assert edit.host_path.startswith(f"{host.root}/"), "a path without the driver root"
                assert Path(edit.host_path).resolve() == Path(edit.host_path)
                source = edit.host_path.removeprefix(str(host.root))
                text.append(f"mount {edit.container_path} = {source}")
            case Mount():
                text.append(f"tmpfs {edit.container_path}")
            case Symlink():
                text.append(f"link {edit.container_path} -> {edit.target}")
            case TextFile():
                text.append(f"text {edit.container_path}")
            case LdCacheUpdate():
                text += [f"cache {each.name} = {each.container_path}" for each in edit.libraries]
            case EnvVar() | AdditionalGid():
                raise AssertionError("no layout needs that")
            case _:
                assert_never(edit)
    return text


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_container_gets(host, name: str, monkeypatch) -> None:
    found = discover(host, name, monkeypatch)
    debian = container_layout(LAYOUTS[name][0], debian=True, has_lib32=False)
    parts = {
        "compute,utility": lines(found, DEFAULT_CAPABILITIES, debian, host),
        "all": lines(found, CAPABILITIES, debian, host),
        "all, in a CDI spec": lines(found, CAPABILITIES, ContainerLayout(), host),
    }
    text = "\n".join(f"# {title}\n" + "".join(f"{e}\n" for e in p) for title, p in parts.items())
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("NVHOOK_UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_golden_file_has_a_layout() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(LAYOUTS)


@pytest.mark.parametrize("name", ["driver-container", "open-modules"])
def test_only_where_links_are_absolute_or_modules_open_nothing_changes(name: str) -> None:
    assert (GOLDEN / f"{name}.txt").read_text() == (GOLDEN / "ubuntu.txt").read_text()
