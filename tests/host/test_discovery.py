"""A whole host: GPUs, nodes, programs, firmware, sockets, and NVML for what /proc lacks."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nvhook.core.inventory import Gpu, HostFile
from nvhook.errors import FormatError, HostError
from nvhook.formats.proc_driver import UNKNOWN_UUID
from nvhook.host import nvml
from nvhook.host.discovery import discover
from nvhook.host.driver_texts import read_driver_version, read_text
from nvhook.host.files import find_binaries, find_firmware
from nvhook.host.gpus import find_gpus
from nvhook.host.nodes import find_nodes, find_sockets

SAMPLES = Path(__file__).parents[1] / "data"
X86 = "/usr/lib/x86_64-linux-gnu"


def no_nvml() -> dict[str, str]:
    raise AssertionError("NVML must not be asked for what /proc tells")


def test_no_driver(host) -> None:
    with pytest.raises(HostError) as caught:
        discover(*host.roots)
    assert caught.value.message.startswith("no NVIDIA driver is loaded")
    assert "modprobe nvidia" in caught.value.hint


def test_driver_version_from_sys_where_proc_has_none(host) -> None:
    (host.sys / "module/nvidia").mkdir(parents=True)
    (host.sys / "module/nvidia/version").write_text("550.54.15\n")
    assert read_driver_version(str(host.proc), str(host.sys)) == "550.54.15"


def test_driver_without_a_gpu(host) -> None:
    host.driver()
    inventory = discover(*host.roots)
    assert (inventory.driver_version, inventory.gpus, inventory.libraries) == ("550.54.15", (), ())


def test_whole_host(host) -> None:
    host.driver("535.054.03")
    host.gpu("0000:65:00.0", minor=0, model="NVIDIA L4")
    host.library(f"{X86}/libcuda.so.535.054.03", "libcuda.so.1")
    host.put("/usr/bin/nvidia-smi", mode=0o755)
    inventory = discover(*host.roots)
    assert inventory.driver_version == "535.054.03"
    assert inventory.majors == {"nvidia": 195, "nvidia-uvm": 511}
    assert (inventory.driver_root, inventory.proc_root) == (str(host.root), str(host.proc))
    uuid = "GPU-00000000-0000-4000-8000-000000000000"
    assert inventory.gpus == (Gpu(0, uuid, 0, "0000:65:00.0", "NVIDIA L4"),)
    assert [library.name for library in inventory.libraries] == ["libcuda.so"]
    assert [file.name for file in inventory.files] == ["nvidia-smi"]
    assert inventory.proc_files == {
        "params": "ModifyDeviceFiles: 1\n",
        "version": (host.proc / "driver/nvidia/version").read_text(),
    }


def test_gpus_are_in_pci_order_and_index_is_not_minor(host) -> None:
    # as text, 10000: would come before 2000:
    for bus_id, minor in (
        ("10000:01:00.0", 0),
        ("0000:81:00.0", 1),
        ("0000:0a:00.0", 3),
        ("2000:01:00.0", 2),
    ):
        host.gpu(bus_id, minor)
    gpus = find_gpus(str(host.proc), no_nvml)
    assert [(gpu.index, gpu.pci_bus_id, gpu.minor) for gpu in gpus] == [
        (0, "0000:0a:00.0", 3),
        (1, "0000:81:00.0", 1),
        (2, "2000:01:00.0", 2),
        (3, "10000:01:00.0", 0),
    ]


@pytest.mark.parametrize("label", ["GPU Excluded:", "Blacklisted:"])
def test_excluded_gpus_have_no_index(host, label: str) -> None:
    host.gpu("0000:01:00.0", 0, tail=f"{label}\t No\n")
    host.gpu("0000:02:00.0", 1, tail=f"{label}\t Yes\n")
    host.gpu("0000:03:00.0", 2, tail=f"{label}\t No\n")
    gpus = find_gpus(str(host.proc), no_nvml)
    assert [(gpu.index, gpu.minor) for gpu in gpus] == [(0, 0), (1, 2)]


def test_excluded_gpu_may_lack_everything_else(host) -> None:
    text = "Model: \t\t Unknown\nGPU Excluded:\t Yes\n"
    host.proc_text("driver/nvidia/gpus/0000:01:00.0/information", text)
    assert find_gpus(str(host.proc), no_nvml) == ()


def test_bus_id_comes_from_the_directory(host) -> None:
    text = (SAMPLES / "proc_information/l4_minor_only_two_lines.txt").read_text()
    host.proc_text("driver/nvidia/gpus/0000:3B:00.0/information", text)
    (gpu,) = find_gpus(str(host.proc), no_nvml)
    assert (gpu.pci_bus_id, gpu.minor) == ("0000:3b:00.0", 1)


def test_gpu_without_a_minor_is_an_error_that_names_it(host) -> None:
    text = "Model: X\nGPU UUID: GPU-1\nBus Location: 0000:01:00.0\n"
    host.proc_text("driver/nvidia/gpus/0000:01:00.0/information", text)
    with pytest.raises(HostError, match=r"GPU 0000:01:00\.0 no device minor"):
        find_gpus(str(host.proc), no_nvml)


def test_gpu_in_an_unknown_layout_is_an_error(host) -> None:
    text = (SAMPLES / "proc_information/old-cards0-geforce210-260.txt").read_text()
    host.proc_text("driver/nvidia/gpus/0000:01:00.0/information", text)
    with pytest.raises(FormatError, match="cards layout"):
        find_gpus(str(host.proc), no_nvml)


def test_unknown_uuid_is_asked_for_once_and_by_bus_id(host) -> None:
    host.gpu("0000:01:00.0", 0, uuid=UNKNOWN_UUID)
    host.gpu("0000:02:00.0", 1)
    host.gpu("0000:03:00.0", 2, uuid=UNKNOWN_UUID)
    calls = []

    def ask() -> dict[str, str]:
        calls.append(1)
        return {"0000:03:00.0": "GPU-3", "0000:02:00.0": "GPU-other"}

    uuids = [gpu.uuid for gpu in find_gpus(str(host.proc), ask)]
    assert uuids == [UNKNOWN_UUID, "GPU-00000000-0000-4000-8000-000000000001", "GPU-3"]
    assert calls == [1]


def test_read_text_is_bounded_and_never_blocks(host) -> None:
    host.proc_text("text", "x" * 100)
    assert read_text(str(host.proc / "text"), limit=10) == "x" * 10
    assert read_text(str(host.proc / "absent")) is None
    assert read_text(str(host.proc)) is None
    os.mkfifo(host.proc / "fifo")
    assert read_text(str(host.proc / "fifo")) == ""


@pytest.mark.root
def test_nodes(host, require) -> None:
    require(os.geteuid() == 0, "mknod needs root")
    for name, major, minor in (
        ("nvidia10", 195, 10),
        ("nvidia2", 195, 2),
        ("nvidia-uvm", 511, 0),
        ("nvidiactl", 195, 255),
        ("nvidia-nvswitchctl", 234, 255),
        ("null", 1, 3),
    ):
        host.node(name, major, minor)
    (host.dev / "nvidia3").write_text("not a node")
    (host.dev / "nvidia4").symlink_to("nvidia2")
    (host.dev / "nvidia-modeset").mkdir()
    nodes = find_nodes(str(host.dev))
    assert [(node.name, node.major, node.minor) for node in nodes] == [
        ("nvidiactl", 195, 255),
        ("nvidia-uvm", 511, 0),
        ("nvidia2", 195, 2),
        ("nvidia10", 195, 10),
    ]
    assert nodes[0].host_path == f"{host.dev}/nvidiactl"
    assert os.stat(nodes[0].host_path).st_rdev == os.makedev(195, 255)


@pytest.mark.root
def test_stale_node_keeps_its_own_numbers(host, require) -> None:
    # nvidia-uvm's major changes with every boot: the planner tells the node from the driver
    require(os.geteuid() == 0, "mknod needs root")
    host.driver()
    host.node("nvidia-uvm", 510, 0)
    inventory = discover(*host.roots)
    assert (inventory.nodes[0].major, inventory.majors["nvidia-uvm"]) == (510, 511)


def test_driver_updated_without_a_reboot_is_said(host) -> None:
    host.driver("550.54.15")
    host.library(f"{X86}/libnvidia-ml.so.550.90.07", "libnvidia-ml.so.1")
    with pytest.raises(HostError, match=r"version mismatch.*550\.54\.15.*550\.90\.07"):
        discover(*host.roots)


def test_dev_root_that_is_absent_has_no_nodes(host) -> None:
    assert find_nodes(str(host.dev / "absent")) == ()


def test_binaries_first_directory_wins_and_alternatives_are_resolved(host) -> None:
    host.put("/usr/lib/nvidia/current/nvidia-smi", mode=0o755)
    host.link("/etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    host.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")
    host.put("/usr/local/bin/nvidia-debugdump", mode=0o644)
    host.put("/usr/bin/nvidia-debugdump", mode=0o755)
    host.put("/bin/nvidia-debugdump", mode=0o755)
    host.link("/usr/bin/nv-fabricmanager", "/nowhere")
    host.put("/usr/bin/bash", mode=0o755)
    assert find_binaries(str(host.root)) == tuple(
        HostFile("binary", name, path, f"{host.root}{path}")
        for name, path in (
            ("nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi"),
            ("nvidia-debugdump", "/usr/bin/nvidia-debugdump"),
        )
    )


def firmware(host, release: str = "6.1.0") -> list[str]:
    found = find_firmware(str(host.root), "550.54.15", str(host.sys), release)
    assert all(file.group == "firmware" for file in found)
    assert all(file.host_path == f"{host.root}{file.path}" for file in found)
    return [file.path for file in found]


def test_firmware_first_directory_with_images_wins(host) -> None:
    for path in (
        "/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin",
        "/lib/firmware/nvidia/550.54.15/gsp_tu10x.bin",
        "/lib/firmware/nvidia/550.54.15/other.bin",
        "/lib/firmware/nvidia/535.1/gsp_ga10x.bin",
        "/lib/firmware/6.1.0/nvidia/550.54.15/readme",
    ):
        host.put(path)
    assert firmware(host) == [
        "/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin",
        "/lib/firmware/nvidia/550.54.15/gsp_tu10x.bin",
    ]
    host.put("/lib/firmware/updates/6.1.0/nvidia/550.54.15/gsp_ad10x.bin")
    assert firmware(host) == ["/lib/firmware/updates/6.1.0/nvidia/550.54.15/gsp_ad10x.bin"]
    assert firmware(host, release="6.2.0") != firmware(host)


def test_firmware_path_of_the_running_kernel_comes_first(host) -> None:
    host.put("/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin")
    host.put("/opt/firmware/nvidia/550.54.15/gsp_ga10x.bin")
    parameters = host.sys / "module/firmware_class/parameters"
    parameters.mkdir(parents=True)
    # a driver container sets it to the path as the host sees it
    for value in ("/opt/firmware\n", f"{host.root}/opt/firmware\n"):
        (parameters / "path").write_text(value)
        assert firmware(host) == ["/opt/firmware/nvidia/550.54.15/gsp_ga10x.bin"]
    (parameters / "path").write_text("\n")
    assert firmware(host) == ["/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin"]


def bind(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def test_sockets_first_alternative_wins(host) -> None:
    bind(host.root / "run/nvidia-persistenced/socket")
    host.link("/var/run", "/run")
    host.put("/run/nvidia-fabricmanager/socket", b"a plain file")
    (host.root / "tmp/nvidia-mps").mkdir(parents=True)
    assert find_sockets(str(host.root)) == tuple(
        HostFile("socket", path, path, f"{host.root}{path}")
        for path in ("/run/nvidia-persistenced/socket", "/tmp/nvidia-mps")
    )


def test_socket_below_var_run_only(host) -> None:
    bind(host.root / "var/run/nvidia-persistenced/socket")
    (file,) = find_sockets(str(host.root))
    assert file.name == "/var/run/nvidia-persistenced/socket"


def test_mps_directory_behind_a_link_is_not_taken(host) -> None:
    (host.root / "tmp").mkdir()
    host.link("/tmp/nvidia-mps", "/etc")
    assert find_sockets(str(host.root)) == ()


@pytest.mark.root
def test_mps_directory_of_another_user_is_not_taken(host, require) -> None:
    require(os.geteuid() == 0, "chown needs root")
    directory = host.root / "tmp/nvidia-mps"
    directory.mkdir(parents=True)
    os.chown(directory, 1000, 1000)
    assert find_sockets(str(host.root)) == ()


NVML = """
#include <stdio.h>
#include <string.h>
#include <unistd.h>
struct pci { char legacy[16]; unsigned domain, bus, device, pci, subsystem; char id[32]; };
int nvmlInitWithFlags(unsigned flags) { (void)flags; if (HANG) pause(); return INIT; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
  *h = (void *)(long)(i + 1); return i == 1 ? 15 : 0; }
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *p) { memset(p, 0, sizeof *p);
  sprintf(p->id, "00000000:0%ld:00.0", (long)h); return 0; }
int nvmlDeviceGetUUID(void *h, char *uuid, unsigned size) {
  snprintf(uuid, size, "GPU-0000000%ld-AAAA-0000-0000-000000000000", (long)h); return 0; }
"""


@pytest.fixture(scope="module")
def compile_nvml(tmp_path_factory, require):
    """Return a function that builds a libnvidia-ml of three GPUs, the second of them lost."""

    def build(hang: int = 0, init: int = 0) -> str:
        directory = tmp_path_factory.mktemp("nvml")
        source, library = directory / "nvml.c", directory / "libnvidia-ml.so.550.54.15"
        source.write_text(NVML)
        options = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", f"-DHANG={hang}"]
        command = ["cc", *options, f"-DINIT={init}", "-o", str(library), str(source)]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            require(False, "no C compiler")
        return str(library)

    return build


def test_nvml_gives_uuids_by_bus_id(compile_nvml, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    assert nvml.uuids_by_bus_id(compile_nvml()) == {
        "0000:01:00.0": "GPU-00000001-aaaa-0000-0000-000000000000",
        "0000:03:00.0": "GPU-00000003-aaaa-0000-0000-000000000000",
    }
    assert "pynvml" not in sys.modules


def test_nvml_that_hangs_is_left_after_the_timeout(compile_nvml) -> None:
    assert nvml.uuids_by_bus_id(compile_nvml(hang=1), timeout=1.0) == {}


def test_nvml_that_fails(compile_nvml, tmp_path) -> None:
    assert nvml.uuids_by_bus_id(compile_nvml(init=9)) == {}
    assert nvml.uuids_by_bus_id(str(tmp_path / "absent.so")) == {}


def test_nvml_output_is_not_trusted() -> None:
    lines = ["", "x", "0000:01:00.0 GPU-A", "../0 GPU-B", "0000:02:00.0", "0000:03:00.0 GPU-??"]
    assert nvml.parse_uuids(lines) == {"0000:01:00.0": "GPU-a"}


def test_unknown_uuid_comes_from_the_driver_roots_own_nvml(host, compile_nvml) -> None:
    host.driver()
    host.gpu("0000:03:00.0", 0, uuid=UNKNOWN_UUID)
    host.put(f"{X86}/libnvidia-ml.so.550.54.15", Path(compile_nvml()).read_bytes())
    (gpu,) = discover(*host.roots).gpus
    assert gpu.uuid == "GPU-00000003-aaaa-0000-0000-000000000000"


def test_unknown_uuid_stays_where_nvml_is_absent_or_broken(host) -> None:
    host.driver()
    host.gpu("0000:03:00.0", 0, uuid=UNKNOWN_UUID)
    assert discover(*host.roots).gpus[0].uuid == UNKNOWN_UUID
    host.library(f"{X86}/libnvidia-ml.so.550.54.15", "libnvidia-ml.so.1")
    assert discover(*host.roots).gpus[0].uuid == UNKNOWN_UUID
