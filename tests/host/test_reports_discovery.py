"""Public bug reports about discovery, replayed; each test id names the thread it comes from."""

import os
from pathlib import Path

import pytest

from nvhook.core.inventory import HostNode
from nvhook.host.discovery import discover
from nvhook.host.driver_texts import read_majors
from nvhook.host.gpus import find_gpus
from nvhook.host.libraries import find_libraries
from nvhook.host.nodes import find_nodes

DATA = Path(__file__).parents[1] / "data"
X86 = "/usr/lib/x86_64-linux-gnu"


def report(*threads: str):
    """Parametrise a test with the one value ``thread``, so that its id names the report."""
    return pytest.mark.parametrize("thread", threads)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nvidia", id="NVIDIA/nvidia-container-toolkit#324"),
        pytest.param("nvidia-frontend", id="NVIDIA/nvidia-container-toolkit#352"),
    ],
)
def test_major_by_either_name(host, name: str) -> None:
    host.proc_text("devices", f"Character devices:\n195 {name}\n195 nvidiactl\n511 nvidia-uvm\n")
    majors = read_majors(str(host.proc))
    assert (majors["nvidia"], majors["nvidia-uvm"]) == (195, 511)


@report("Frogging-Family/nvidia-all#197")
def test_three_names_of_one_major(host, thread: str) -> None:
    sample = DATA / "proc_devices/desktop-550+-nvidia_modeset_ctl-no_uvm.txt"
    host.proc_text("devices", sample.read_text())
    majors = read_majors(str(host.proc))
    assert majors["nvidia"] == majors["nvidiactl"] == 195
    assert "nvidia-uvm" not in majors


@report("lf-edge/eve#6387", "negativo17/nvidia-driver#29")
def test_uvm_major_is_the_kernels_never_a_constant(host, thread: str) -> None:
    for sample, major in (
        ("jetson_jp7-uvm487.txt", 487),
        ("negativo17_fedora26-uvm239.txt", 239),
        ("proxmox-580.76.05-order_not_sorted.txt", 511),
    ):
        host.proc_text("devices", (DATA / "proc_devices" / sample).read_text())
        assert read_majors(str(host.proc))["nvidia-uvm"] == major


@report("NVIDIA/nvidia-docker#957")
def test_blanks_in_a_model_name_are_only_a_name(host, thread: str) -> None:
    host.driver()
    host.gpu("0000:01:00.0", 0, model="/GeForce GTX 1080 Ti / nForce: 630a")
    inventory = discover(*host.roots)
    assert inventory.gpus[0].model == "/GeForce GTX 1080 Ti / nForce: 630a"
    paths = [file.path for file in inventory.files] + [node.name for node in inventory.nodes]
    assert not any("GeForce" in path for path in paths)


@report("NVIDIA/nvidia-container-toolkit#735", "NVIDIA/nvidia-container-toolkit#671")
@pytest.mark.parametrize("cached", [True, False], ids=["ld-cache", "search-path"])
def test_cos_driver_directory(host, thread: str, cached: bool) -> None:
    directory = "/opt/cos/nvidia" if cached else "/var/lib/nvidia/lib64"
    path = f"{directory}/libcuda.so.535.183.06"
    host.library(path, "libcuda.so.1")
    host.cache([("libcuda.so.1", "libc6,x86-64", path)] if cached else [])
    (library,) = find_libraries(str(host.root), "535.183.06", "x86_64")
    assert library.path == path


@report("NVIDIA/nvidia-container-toolkit#944")
def test_libcuda_behind_two_links_is_one_library_with_its_soname(host, thread: str) -> None:
    host.library(f"{X86}/libcuda.so.550.54.15", "libcuda.so.1")
    host.link(f"{X86}/libcuda.so.1", "libcuda.so.550.54.15")
    host.link(f"{X86}/libcuda.so", "libcuda.so.1")
    host.cache(
        [
            ("libcuda.so.1", "libc6,x86-64", f"{X86}/libcuda.so.1"),
            ("libcuda.so", "libc6,x86-64", f"{X86}/libcuda.so"),
        ]
    )
    (library,) = find_libraries(str(host.root), "550.54.15", "x86_64")
    # the planner makes libcuda.so and libcuda.so.1 of these two
    assert (library.name, library.soname) == ("libcuda.so", "libcuda.so.1")
    assert library.path == f"{X86}/libcuda.so.550.54.15"


@report("NVIDIA/nvidia-docker#1399")
def test_debian_alternatives_chain_is_followed_inside_the_root(host, thread: str) -> None:
    real = f"{X86}/nvidia/current/libnvidia-ml.so.455.10"
    host.library(real, "libnvidia-ml.so.1")
    host.link(f"{X86}/nvidia/current/libnvidia-ml.so.1", "libnvidia-ml.so.455.10")
    host.link("/etc/alternatives/glx--libnvidia-ml.so.1", f"{X86}/nvidia/current/libnvidia-ml.so.1")
    host.link(f"{X86}/libnvidia-ml.so.1", "/etc/alternatives/glx--libnvidia-ml.so.1")
    host.cache([("libnvidia-ml.so.1", "libc6,x86-64", f"{X86}/libnvidia-ml.so.1")])
    (library,) = find_libraries(str(host.root), "455.10", "x86_64")
    assert library.path == real


@report("NVIDIA/nvidia-container-toolkit#71")
def test_host_without_a_loader_cache(host, thread: str) -> None:
    host.library("/usr/lib64/libcuda.so.550.54.15", "libcuda.so.1")
    assert not (host.root / "etc/ld.so.cache").exists()
    (library,) = find_libraries(str(host.root), "550.54.15", "x86_64")
    assert library.name == "libcuda.so"


@report("kata-containers/runtime#2546")
def test_gpu_of_unknown_model_and_uuid_is_still_a_gpu(host, thread: str) -> None:
    text = (DATA / "proc_information/gt1030-kata-model_unknown.txt").read_text()
    host.proc_text("driver/nvidia/gpus/0000:00:08.0/information", text)
    (gpu,) = find_gpus(str(host.proc), dict)
    assert (gpu.index, gpu.minor, gpu.pci_bus_id, gpu.model) == (0, 0, "0000:00:08.0", "Unknown")
    assert "?" in gpu.uuid


@pytest.mark.root
@report(
    "opencontainers/runc#3671",
    "NVIDIA/nvidia-container-toolkit#48",
    "NVIDIA/nvidia-container-toolkit#251",
)
def test_every_node_has_the_numbers_its_device_rule_needs(host, thread: str, require) -> None:
    require(os.geteuid() == 0, "mknod needs root")
    wanted = {"nvidiactl": (195, 255), "nvidia-uvm": (511, 0), "nvidia7": (195, 7)}
    for name, (major, minor) in wanted.items():
        host.node(name, major, minor)
    found = {node.name: (node.major, node.minor) for node in find_nodes(str(host.dev))}
    assert found == wanted


@pytest.mark.root
@report("NVIDIA/nvidia-container-toolkit#210", "NVIDIA/nvidia-container-toolkit#268")
def test_mode_and_group_of_a_node_are_kept(host, thread: str, require) -> None:
    require(os.geteuid() == 0, "mknod needs root")
    host.node("nvidia0", 195, 0, mode=0o660, gid=27)
    path = f"{host.dev}/nvidia0"
    assert find_nodes(str(host.dev)) == (HostNode("nvidia0", path, 195, 0, 0o660, 0, 27),)


@report("NVIDIA/libnvidia-container#55", "NixOS/nixpkgs#529876")
def test_what_vulkan_and_egl_need_is_found_wherever_the_driver_root_has_it(
    host, thread: str
) -> None:
    store = "/nix/store/0a1b-nvidia-x11-550.54.15"
    directory = "/usr" if "libnvidia" in thread else "/run/opengl-driver"
    if directory != "/usr":
        host.link(directory, store)
    root = "/usr/lib/x86_64-linux-gnu" if directory == "/usr" else f"{store}/lib"
    for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-glvkspirv.so"):
        host.library(f"{root}/{name}.550.54.15", f"{name}.1")
    share = "/usr/share" if directory == "/usr" else f"{store}/share"
    for name in ("vulkan/icd.d/nvidia_icd.json", "glvnd/egl_vendor.d/10_nvidia.json"):
        host.put(f"{share}/{name}", b"{}")
    host.driver()
    found = discover(*host.roots)
    groups = {file.group: file.name.rpartition("/")[2] for file in found.files}
    assert (groups["vulkan"], groups["egl"]) == ("nvidia_icd.json", "10_nvidia.json")
    assert found.library("libnvidia-glvkspirv.so") is not None
