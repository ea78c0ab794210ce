"""WSL 2 and Jetsons, beyond what the golden files of their layouts show."""

import pytest

from nvhook.core import requirements
from nvhook.core.edits import DeviceNode, EnvVar, Mount
from nvhook.core.layout import ContainerLayout
from nvhook.core.planner import plan_request
from nvhook.core.platforms import l4t_cuda, l4t_release, refuse_running
from nvhook.core.selection import having, select
from nvhook.errors import HostError, RequestError, UnsupportedError
from nvhook.host import inventory_cache, nvml, platforms
from tests.host.layouts import LAYOUTS, STORE

PLATFORMS = ("wsl", "jetson")
CSV = "/etc/nvidia-container-runtime/host-files-for-container.d"
NVML = (
    "driver 551.86",
    "cuda 12040",
    "gpu 00000000:01:00.0 GPU-aaaaaaaa-0000-4000-8000-000000000001 NVIDIA GeForce RTX 4090",
    "gpu 00000000:02:00.0 GPU-aaaaaaaa-0000-4000-8000-000000000002 NVIDIA L4",
    "gpu nonsense GPU-aaaaaaaa-0000-4000-8000-000000000003 NVIDIA L4",
)


@pytest.fixture
def machine(host, monkeypatch, fake_nodes):
    """Lay out a machine of a name; NVML answers these lines."""

    def run(name: str, *answer: str):
        system, lay_out = LAYOUTS[name]
        monkeypatch.setattr(platforms.os, "uname", lambda: _Uname(system))
        monkeypatch.setattr(nvml, "_ask", lambda *question: [*answer])
        lay_out(host)
        return host

    return run


class _Uname:
    release = "6.6.0"

    def __init__(self, machine: str) -> None:
        self.machine = machine


def load(host, every_csv: bool = False):
    return inventory_cache.load(*host.roots, str(host.state), every_csv)


def plan(found, *devices: str, capabilities=("compute", "utility")):
    return plan_request(capabilities, select(devices, found), found, ContainerLayout())


def names(made, kind=Mount) -> set[str]:
    return {e.container_path.rpartition("/")[2] for e in made.edits if isinstance(e, kind)}


@pytest.mark.parametrize("name", PLATFORMS)
def test_no_gpu_means_no_node_but_the_drivers_files(machine, name: str) -> None:
    found = load(machine(name))
    made = plan(found)
    assert names(made, DeviceNode) == set()
    assert "libcuda.so.1.1" in names(made)
    assert not any(isinstance(edit, EnvVar) for edit in made.edits)


@pytest.mark.parametrize("name", PLATFORMS)
@pytest.mark.parametrize("device", ["all", "0"])
def test_the_one_gpu_has_index_0_and_is_all(machine, name: str, device: str) -> None:
    found = load(machine(name))
    assert names(plan(found, device), DeviceNode) == {
        node.name.rpartition("/")[2] for node in found.nodes
    }
    with pytest.raises(RequestError, match=r"unknown device id 1 .*this host has only 0"):
        select(("1",), found)


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_container_with_a_node_has_the_gpus_and_a_running_one_gets_none(machine, name) -> None:
    found = load(machine(name))
    node = found.nodes[0]
    assert having(frozenset({(node.major, node.minor)}), found) == found.gpus
    assert having(frozenset({(1, 3)}), found) == ()
    with pytest.raises(UnsupportedError, match="can't be given to a running container yet"):
        refuse_running(found)


def test_wsl_gives_all_gpus_or_none(machine) -> None:
    found = load(machine("wsl", *NVML))
    assert (found.driver_version, found.cuda_version) == ("551.86", "12.4")
    assert [gpu.model for gpu in found.gpus] == ["NVIDIA GeForce RTX 4090", "NVIDIA L4"]
    for devices in (("all",), ("0", "1"), (found.gpus[1].uuid, "0000:01:00.0")):
        assert names(plan(found, *devices), DeviceNode) == {"dxg"}
    with pytest.raises(RequestError, match="WSL 2 gives a container all its 2 GPUs or none"):
        plan(found, "1")


def test_nvml_of_wsl_is_asked_once_for_a_driver(machine, monkeypatch) -> None:
    host = machine("wsl")
    asked: list[str] = []

    def ask(question: str, library: str, timeout: float) -> list[str]:
        asked.append(library)
        return [*NVML]

    monkeypatch.setattr(nvml, "_ask", ask)
    first = load(host)
    assert load(host) == first
    # The host's own, as its programs have it, not the one for containers.
    assert asked == [f"{host.root}/usr/lib/wsl/lib/libnvidia-ml.so.1"]
    (host.state / "wsl.json").write_text('{"key": []')
    assert load(host) == first
    assert len(asked) == 2


def test_without_nvml_wsl_works_but_requirements_can_not_be_told(machine) -> None:
    found = load(machine("wsl"))
    assert (found.driver_version, len(found.gpus)) == ("", 1)
    with pytest.raises(HostError, match=r"can't tell whether cuda>=12.0 holds"):
        requirements.check([("NVIDIA_REQUIRE_CUDA", "cuda>=12.0")], "", "", found.gpus)


@pytest.mark.parametrize(
    ("capabilities", "there", "not_there"),
    [
        (("utility",), {"nvidia-smi", "libnvidia-ml.so.1"}, {"libcuda.so.1.1"}),
        (("compute",), {"libcuda.so.1.1", "nvcubins.bin"}, {"nvidia-smi", "libnvidia-ml.so.1"}),
        (("video",), {"libnvidia-encode.so.1", "libcuda.so.1.1"}, {"nvidia-smi"}),
    ],
)
def test_wsl_honours_capabilities(machine, capabilities, there, not_there) -> None:
    found = load(machine("wsl"))
    mounted = names(plan(found, "all", capabilities=capabilities))
    assert there | {"libdxcore.so"} <= mounted
    assert not not_there & mounted


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("wsl", f"{STORE}/libnvidia-ml.so.1", "has no libnvidia-ml.so .*wsl --update"),
        ("jetson", "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1", "names libcuda.so, or it"),
    ],
)
def test_what_can_not_be_done_without_is_missed(machine, name, missing, message) -> None:
    host = machine(name)
    (host.root / missing[1:]).unlink()
    with pytest.raises(HostError, match=message):
        plan(load(host), "all")


def test_wsl_without_nvidias_driver_is_explained(machine) -> None:
    host = machine("wsl")
    for path in host.root.glob("usr/lib/wsl/drivers/*/libcuda.so.1.1"):
        path.unlink()
    with pytest.raises(HostError, match=r"this is WSL 2, but no driver package below .*Windows"):
        load(host)


def test_a_jetson_without_lists_is_explained(machine) -> None:
    host = machine("jetson")
    for name in ("devices", "drivers", "l4t"):
        (host.root / f"{CSV}/{name}.csv"[1:]).unlink()
    with pytest.raises(HostError, match=r"this is a Jetson, but .* has none of devices.csv"):
        load(host)
    assert "libcudnn.so.9.1" in {e.path.rpartition("/")[2] for e in load(host, True).libraries}


def test_all_lists_of_a_jetson_are_for_who_asks_for_them(machine) -> None:
    host = machine("jetson")
    assert "libcudnn.so.9.1" not in names(plan(load(host), "all"))
    every = names(plan(load(host, every_csv=True), "all"))
    assert {"libcudnn.so.9.1", "libcuda.so.1.1"} <= every


def test_a_jetson_is_known_by_its_chip_too(machine) -> None:
    host = machine("jetson")
    (host.root / "etc/nv_tegra_release").unlink()
    (host.sys / "devices/soc0").mkdir(parents=True)
    (host.sys / "devices/soc0/family").write_text("Tegra\n")
    assert (load(host).platform, load(host).cuda_version) == ("tegra", "")


def test_with_a_gpu_in_proc_neither_counts(machine) -> None:
    """A plug-in board in a Jetson is an ordinary one, and dxg means nothing beside a driver."""
    host = machine("jetson")
    host.driver()
    host.gpu("0000:04:00.0", 0)
    host.library("/usr/lib/aarch64-linux-gnu/libcuda.so.550.54.15", "libcuda.so.1", "libc6,aarch64")
    assert load(host).platform == ""


@pytest.mark.parametrize(
    ("text", "release", "cuda"),
    [
        ("# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n", (36, 4), "12.6"),
        ("# R36 (release), REVISION: 2.0, GCID: 1", (36, 2), "12.2"),
        ("# R35 (release), REVISION: 4.1", (35, 4), "11.4"),
        ("# R32 (release), REVISION: 7.1", (32, 7), "10.2"),
        ("# R32 (release), REVISION: 3.1", (32, 3), "10.0"),
        ("# R28 (release), REVISION: 2.1", (28, 2), ""),
        ("", (0, 0), ""),
        ("# REVISION: x", (0, 0), ""),
    ],
)
def test_a_release_of_jetson_linux_has_its_cuda(text, release, cuda) -> None:
    assert l4t_release(text) == release
    assert l4t_cuda(release) == cuda
