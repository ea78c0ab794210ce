"""Driver capabilities: which of the host's libraries, files and nodes each of them brings."""

import json

import pytest

from nvhook.core import catalog, explain
from nvhook.core.edits import (
    AdditionalGid,
    CgroupRule,
    DeviceNode,
    LdCacheUpdate,
    Mount,
    Plan,
    Symlink,
    TextFile,
)
from nvhook.core.inventory import DrmNode, Gpu, HostFile, HostNode, Inventory, Library
from nvhook.core.layout import ContainerLayout, container_layout
from nvhook.core.planner import plan_request
from nvhook.errors import HostError
from nvhook.record import replace

VERSION = "550.54.14"
DEBIAN = container_layout("x86_64", debian=True, has_lib32=False)
DIRECTORY = "/usr/lib/x86_64-linux-gnu"
BASE = ("libcuda.so", "libnvidia-ml.so")
GPUS = tuple([Gpu(i, f"GPU-{i}", minor, f"0000:0{i}:00.0", "L4") for i, minor in enumerate((2, 0))])


def library(name: str, bits: int = 64) -> Library:
    path = f"/usr/lib{bits}/{name}.{VERSION}"
    return Library(name, f"{name}.1", path, f"/d{path}", 0x0303 if bits == 64 else 3, bits)


def node(name: str, major: int, minor: int, mode: int = 0o666, gid: int = 0) -> HostNode:
    return HostNode(name, f"/dev/{name}", major, minor, mode, 0, gid)


def inventory(
    *libraries: Library, files: tuple[HostFile, ...] = (), drm: tuple[DrmNode, ...] = ()
) -> Inventory:
    nodes = (
        node("nvidiactl", 195, 255),
        node("nvidia-uvm", 511, 0),
        node("nvidia-modeset", 195, 254),
        *[node(f"nvidia{gpu.minor}", 195, gpu.minor) for gpu in GPUS],
    )
    return Inventory(
        driver_version=VERSION,
        cuda_version="12.4",
        driver_root="/d",
        proc_root="/proc",
        majors={"nvidia": 195, "nvidia-uvm": 511},
        gpus=GPUS,
        nodes=nodes,
        libraries=(*[library(name) for name in BASE], *libraries),
        files=files,
        proc_files={},
        drm=drm,
    )


def plan(host: Inventory, *capabilities: str, gpus: tuple[Gpu, ...] = GPUS[:1]) -> Plan:
    return plan_request(capabilities, gpus, host, DEBIAN)


def mounted(made: Plan) -> set[str]:
    return {edit.container_path for edit in made.edits if isinstance(edit, Mount)}


def libraries_of(made: Plan) -> set[str]:
    names = {path.rpartition("/")[2] for path in mounted(made)}
    return {name.removesuffix(f".{VERSION}") for name in names if ".so." in name}


@pytest.mark.parametrize("capability", catalog.LIBRARIES)
def test_a_capability_brings_its_libraries_and_no_others(capability: str) -> None:
    names = catalog.LISTED.difference(catalog.WITHOUT_GLVND, BASE)
    host = inventory(*[library(name) for name in sorted(names)])
    expected = {*catalog.LIBRARIES[capability]}
    if capability == "video":
        expected |= {*catalog.LIBRARIES["compute"]}
    assert libraries_of(plan(host, capability)) == expected.difference(catalog.WITHOUT_GLVND)


def test_video_is_nothing_without_cuda_and_uvm() -> None:
    host = inventory(library("libnvcuvid.so"))
    made = plan(host, "video")
    assert libraries_of(made) == {"libnvcuvid.so", "libcuda.so"}
    assert "/dev/nvidia-uvm" in {e.container_path for e in made.edits if isinstance(e, DeviceNode)}
    with pytest.raises(HostError, match=r"libcuda\.so"):
        plan(replace(host, libraries=(library("libnvcuvid.so"),)), "video")


def test_32_bit_libraries_come_with_compat32_only() -> None:
    host = inventory(library("libcuda.so", 32), library("libnvcuvid.so", 32))
    wide = f"{DIRECTORY}/libcuda.so.{VERSION}"
    narrow = f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}"
    assert wide in mounted(plan(host, "compute"))
    assert narrow not in mounted(plan(host, "compute"))
    both = mounted(plan(host, "compat32", "compute"))
    assert {wide, narrow} <= both
    assert not any("libnvcuvid" in path for path in both)


def test_libraries_from_before_glvnd_give_way_to_glvnds() -> None:
    old = [library(name) for name in catalog.WITHOUT_GLVND]
    assert libraries_of(plan(inventory(*old), "graphics")) == {*catalog.WITHOUT_GLVND}
    both = inventory(*old, library(catalog.GLVND))
    assert libraries_of(plan(both, "graphics")) == {catalog.GLVND}
    narrow = inventory(*old, library(catalog.GLVND, 32))
    assert libraries_of(plan(narrow, "graphics")) == {*catalog.WITHOUT_GLVND}


@pytest.mark.parametrize(
    ("capability", "is_there"), [("compute", True), ("utility", True), ("graphics", False)]
)
def test_an_unlisted_library_goes_to_compute_and_utility(capability: str, is_there: bool) -> None:
    made = plan(inventory(library("libnvidia-new.so")), capability)
    assert ("libnvidia-new.so" in libraries_of(made)) is is_there
    for edit in made.edits:
        if isinstance(edit, Mount) and "libnvidia-new" in edit.container_path:
            assert explain.why(edit, GPUS, (capability,)).startswith("unlisted: ")


def test_links_of_graphics() -> None:
    host = inventory(
        library("libnvidia-allocator.so"),
        library("libnvidia-vulkan-producer.so"),
        library(catalog.GLVND),
    )
    made = plan(host, "graphics")
    links = {edit.container_path: edit.target for edit in made.edits if isinstance(edit, Symlink)}
    assert links[f"{DIRECTORY}/gbm/nvidia-drm_gbm.so"] == "../libnvidia-allocator.so.1"
    assert links[f"{DIRECTORY}/libGLX_indirect.so.0"] == f"libGLX_nvidia.so.{VERSION}"
    producer = f"libnvidia-vulkan-producer.so.{VERSION}"
    assert links[f"{DIRECTORY}/libnvidia-vulkan-producer.so"] == producer
    (update,) = [edit for edit in made.edits if isinstance(edit, LdCacheUpdate)]
    assert "libnvidia-vulkan-producer.so" in {each.name for each in update.libraries}
    assert not any("gbm" in each.name for each in update.libraries)
    compute = plan(host, "compute")
    assert not any(isinstance(e, Symlink) and "gbm" in e.container_path for e in compute.edits)


@pytest.mark.parametrize(
    ("group", "capabilities"),
    [
        ("opencl", {"compute", "video"}),
        *[(name, {"graphics", "display"}) for name in ("vulkan", "egl", "optix", "xorg")],
    ],
)
def test_a_file_stands_at_its_name_for_who_needs_it(group: str, capabilities: set[str]) -> None:
    host = inventory(files=(HostFile(group, "/etc/x/y.json", "/opt/y.json", "/d/opt/y.json"),))
    for capability in catalog.CAPABILITIES:
        edit = Mount("/d/opt/y.json", "/etc/x/y.json")
        assert (edit in plan(host, capability).edits) is (capability in capabilities), capability


def test_a_library_is_where_a_manifest_names_it_unless_it_is_there_anyway() -> None:
    path = f"/d/usr/lib64/libGLX_nvidia.so.{VERSION}"
    file = HostFile("named", "/usr/lib64/libGLX_nvidia.so.0", path[2:], path)
    host = inventory(library(catalog.GLVND), files=(file,))
    mount = Mount(path, "/usr/lib64/libGLX_nvidia.so.0")
    assert mount in plan(host, "graphics").edits
    assert mount not in plan(host, "compute").edits
    for layout in (container_layout("x86_64", False, False), ContainerLayout()):
        assert mount not in plan_request(("graphics",), GPUS[:1], host, layout).edits


def test_ctk1563_each_link_by_path_is_made_once() -> None:
    names = {"card1": "card", "renderD128": "render"}
    drm = tuple(
        DrmNode(gpu.pci_bus_id, node(f"dri/{name}", 226, 1), f"pci-{gpu.pci_bus_id}-{kind}")
        for gpu in GPUS
        for name, kind in names.items()
    )
    made = plan(inventory(drm=drm), "display", "graphics", gpus=GPUS)
    links = [e for e in made.edits if isinstance(e, Symlink) and "by-path" in e.container_path]
    assert len(links) == len({link.container_path for link in links}) == 4


def test_xorgs_glx_module_has_its_link() -> None:
    path = f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}"
    made = plan(inventory(files=(HostFile("xorg", path, path, f"/d{path}"),)), "display")
    link = Symlink(path.removesuffix(f".{VERSION}"), f"libglxserver_nvidia.so.{VERSION}")
    assert link in made.edits


def test_drm_nodes_are_those_of_the_selected_gpu() -> None:
    drm = (
        DrmNode(GPUS[0].pci_bus_id, node("dri/card2", 226, 2), "pci-0000:00:00.0-card"),
        DrmNode(GPUS[0].pci_bus_id, node("dri/renderD128", 226, 128, 0o660, 44), ""),
        DrmNode(GPUS[1].pci_bus_id, node("dri/card1", 226, 1), "pci-0000:01:00.0-card"),
    )
    made = plan(inventory(drm=drm), "graphics").edits
    assert DeviceNode("/dev/dri/card2", "/dev/dri/card2", 226, 2) in made
    assert CgroupRule("c", 226, 128) in made
    assert AdditionalGid(44) in made
    assert Symlink("/dev/dri/by-path/pci-0000:00:00.0-card", "../card2") in made
    assert not any("card1" in str(edit) for edit in made)


def test_egl_is_told_which_gpus_it_may_use() -> None:
    def profile(*gpus: Gpu) -> object:
        made = plan(inventory(), "graphics", gpus=gpus)
        texts = [e for e in made.edits if isinstance(e, TextFile)]
        if not texts:
            return None
        (text,) = texts
        assert text.container_path == catalog.PROFILE_FILE
        # Like JSON, but a number may be hexadecimal.
        content = json.loads(text.content.replace("0x", ""))
        assert content["rules"] == [{"pattern": [], "profile": content["profiles"][0]["name"]}]
        name, mask = content["profiles"][0]["settings"]
        assert name == "EGLVisibleDGPUDevices"
        return mask

    assert profile(GPUS[0]) == 4  # bit 2: the minor, not the index
    assert profile(*GPUS) == 5
    assert profile() is None
    assert not any(isinstance(e, TextFile) for e in plan(inventory(), "compute").edits)
