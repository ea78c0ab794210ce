"""MIG: the driver's texts, and the plans of MIG devices and of containers that manage them."""

from pathlib import Path

import pytest

from nvhook.core.catalog import PROFILE_FILE
from nvhook.core.edits import CgroupRule, DeviceNode, Mount, Plan, TextFile
from nvhook.core.inventory import DrmNode, Gpu, HostNode, Inventory, MigDevice
from nvhook.core.layout import ContainerLayout
from nvhook.core.mig_plans import node_name
from nvhook.core.planner import device_plan, plan_request
from nvhook.core.selection import select
from nvhook.errors import HostError
from nvhook.formats import mig_capabilities
from nvhook.record import replace

DATA = Path(__file__).parents[1] / "data"
CAPS, CAPABILITIES = 235, "/proc/driver/nvidia/capabilities"
GPUS = (
    Gpu(0, "GPU-a", 1, "0000:07:00.0", "NVIDIA H100"),
    Gpu(1, "GPU-b", 0, "0000:0a:00.0", "NVIDIA H100"),
)
MIG = (
    MigDevice(GPUS[0], 0, "MIG-a", "1g.10gb", 7, 0, 201, 202),
    MigDevice(GPUS[0], 1, "MIG-b", "2g.20gb", 3, 0, 165, 166),
)
TABLE = {
    "config": 1,
    "monitor": 2,
    "gpu0/gi7/access": 66,
    "gpu1/gi7/access": 201,
    "gpu1/gi7/ci0/access": 202,
    "gpu10/gi7/access": 9000,
}


def node(name: str, major: int, minor: int) -> HostNode:
    return HostNode(name, f"/d/dev/{name}", major, minor, 0o666, 0, 0)


def host(*left_out: str, table: dict[str, int] | None = None) -> Inventory:
    nodes = [node(f"nvidia{minor}", 195, minor) for minor in (0, 1)]
    nodes += [node("nvidiactl", 195, 255), node("nvidia-uvm", 511, 0)]
    nodes += [node(node_name(minor), CAPS, minor) for minor in (1, 2, 165, 166, 201, 202)]
    return Inventory(
        "550.54.14",
        "",
        "/",
        "/d/proc",
        {"nvidia": 195, "nvidia-uvm": 511, "nvidia-caps": CAPS},
        GPUS,
        tuple([each for each in nodes if each.name not in left_out]),
        (),
        (),
        {"params": ""},
        MIG,
        table or {},
    )


def nodes_of(plan: Plan) -> list[str]:
    return [edit.container_path for edit in plan.edits if isinstance(edit, DeviceNode)]


def rules_of(plan: Plan) -> list[tuple[int, int]]:
    return [(edit.major, edit.minor) for edit in plan.edits if isinstance(edit, CgroupRule)]


def mounts_of(plan: Plan) -> list[tuple[str, str, bool]]:
    return [
        (edit.host_path, edit.container_path, edit.required)
        for edit in plan.edits
        if isinstance(edit, Mount) and edit.host_path
    ]


# ---- texts


def test_the_drivers_table() -> None:
    minors = mig_capabilities.parse_minors((DATA / "mig_minors/mig-minors-head.txt").read_text())
    assert len(minors) == 30
    assert minors["config"] == 1
    assert minors["monitor"] == 2
    for gi, ci, expected in ((0, None, 3), (0, 0, 4), (1, None, 12), (2, 7, 29), (3, None, 30)):
        name = (
            mig_capabilities.gpu_instance(0, gi)
            if ci is None
            else mig_capabilities.compute_instance(0, gi, ci)
        )
        assert minors[name] == expected


@pytest.mark.parametrize("line", ["", "config", "config x", "config -1", "config 1234567", " 3"])
def test_a_line_that_is_no_capability_is_ignored(line: str) -> None:
    assert mig_capabilities.parse_minors(f"{line}\n  a/access  7 \nb 1\nb 2\n") == {
        "a/access": 7,
        "b": 1,
    }


def test_an_access_file() -> None:
    text = (DATA / "proc_information/capabilities-mig-config.txt").read_text()
    assert mig_capabilities.parse_access(text) == 1
    assert mig_capabilities.parse_access("") is None
    assert mig_capabilities.parse_access("DeviceFileMinor: -1\n") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("config", "mig/config"),
        ("gpu0/gi1/access", "gpu0/mig/gi1/access"),
        ("gpu12/gi1/ci0/access", "gpu12/mig/gi1/ci0/access"),
    ],
)
def test_a_capability_and_its_file(name: str, expected: str) -> None:
    assert mig_capabilities.path_of(name) == expected


@pytest.mark.parametrize("sample", sorted((DATA / "mig_minors").glob("nvidia-smi-L-*.txt")))
def test_names_of_real_devices(sample: Path) -> None:
    lines = [line for line in sample.read_text().splitlines() if line.startswith("  MIG")]
    assert len(lines) == {"a100_40gb-450_460-old_uuid": 7, "a100_80gb-535-new_uuid": 7}.get(
        sample.stem.removeprefix("nvidia-smi-L-"), len(lines)
    )
    for line in lines:
        uuid = line.partition("UUID: ")[2].rstrip(")")
        is_old = "old_uuid" in sample.name
        parsed = mig_capabilities.parse_old_name(uuid)
        assert (parsed is not None) is is_old
        if parsed:
            gpu, gi, ci = parsed
            assert f"MIG-GPU-{gpu[4:]}/{gi}/{ci}" == uuid
        profile = line.split()[1]
        assert mig_capabilities.profile_of(f"NVIDIA A100-SXM4-40GB MIG {profile}") == profile


@pytest.mark.parametrize(
    "name", ["MIG-GPU-a/1", "MIG-GPU-a/1/2/3", "MIG-GPU-a/x/0", "GPU-a/1/0", "MIG-GPU-a/1/-0"]
)
def test_what_is_no_old_name(name: str) -> None:
    assert mig_capabilities.parse_old_name(name) is None


def test_a_name_without_a_profile() -> None:
    assert mig_capabilities.profile_of("NVIDIA A100-SXM4-40GB") == ""


# ---- plans


def test_a_mig_device_is_its_gpu_and_two_capabilities() -> None:
    plan = device_plan(MIG[1], host())
    assert nodes_of(plan) == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap165",
        "/dev/nvidia-caps/nvidia-cap166",
    ]
    assert rules_of(plan) == [(195, 1), (CAPS, 165), (CAPS, 166)]
    gi3 = f"{CAPABILITIES}/gpu1/mig/gi3"
    bus = "/proc/driver/nvidia/gpus/0000:07:00.0"
    assert mounts_of(plan) == [
        (f"/d{bus}", bus, False),
        (f"/d{gi3}/access", f"{gi3}/access", True),
        (f"/d{gi3}/ci0/access", f"{gi3}/ci0/access", True),
    ]


def test_a_whole_gpu_with_mig_devices_is_its_node() -> None:
    plan = device_plan(GPUS[0], host())
    assert nodes_of(plan) == ["/dev/nvidia1"]
    assert rules_of(plan) == [(195, 1)]


@pytest.mark.parametrize(("profile", "renders"), [("1g.10gb", False), ("1g.24gb+gfx", True)])
def test_only_a_mig_device_for_graphics_has_its_gpus_render_node(profile, renders) -> None:
    drm = tuple(
        DrmNode(gpu.pci_bus_id, node(f"dri/renderD{128 + gpu.index}", 226, 128 + gpu.index), "")
        for gpu in GPUS
    )
    device = replace(MIG[1], profile=profile)
    plan = device_plan(device, replace(host(), drm=drm))
    assert ("/dev/dri/renderD128" in nodes_of(plan)) is renders
    assert ((226, 128) in rules_of(plan)) is renders
    assert (226, 129) not in rules_of(plan)
    assert "/dev/dri/renderD128" in nodes_of(device_plan(GPUS[0], replace(host(), drm=drm)))


def test_egl_is_told_of_a_gpu_once_however_many_of_its_mig_devices_are_given() -> None:
    plan = plan_request(("graphics",), (GPUS[0], *MIG), host(), ContainerLayout())
    (profile,) = [
        edit.content
        for edit in plan.edits
        if isinstance(edit, TextFile) and edit.container_path == PROFILE_FILE
    ]
    assert '["EGLVisibleDGPUDevices", 0x2]' in profile


def test_all_is_every_gpu_and_mig_device_once() -> None:
    inventory = host()
    plan = plan_request((), select(("all",), inventory), inventory, ContainerLayout())
    caps = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (201, 202, 165, 166)]
    gpus = ["/dev/nvidia1", *caps, "/dev/nvidia0"]
    assert nodes_of(plan) == ["/dev/nvidiactl", *gpus]
    assert len(set(plan.edits)) == len(plan.edits)


def test_a_capability_without_its_node_is_an_error_with_the_command_that_makes_it() -> None:
    with pytest.raises(HostError) as caught:
        device_plan(MIG[1], host("nvidia-caps/nvidia-cap166"))
    assert str(caught.value) == (
        "device node nvidia-caps/nvidia-cap166 is missing on the host (hint: nvidia-modprobe "
        f"-f /d{CAPABILITIES}/gpu1/mig/gi3/ci0/access)"
    )


def test_who_configures_mig_gets_the_directories_and_all_rules_of_its_gpus() -> None:
    plan = plan_request(
        (), (GPUS[0], MIG[0]), host(table=TABLE), ContainerLayout(), manages_mig=("config",)
    )
    assert nodes_of(plan) == ["/dev/nvidiactl", "/dev/nvidia1"]
    assert ("/d/dev/nvidia-caps", "/dev/nvidia-caps", True) in mounts_of(plan)
    assert (f"/d{CAPABILITIES}", CAPABILITIES, True) in mounts_of(plan)
    assert not any(path.startswith(f"{CAPABILITIES}/") for _, path, _ in mounts_of(plan))
    rules = rules_of(plan)
    assert sorted(rules) == [(195, 1), (195, 255), (CAPS, 1), (CAPS, 201), (CAPS, 202)]


def test_who_monitors_mig_without_a_gpu_gets_that_capability_alone() -> None:
    plan = plan_request((), (), host(table=TABLE), ContainerLayout(), manages_mig=("monitor",))
    assert rules_of(plan) == [(195, 255), (CAPS, 2)]


def test_managing_mig_needs_a_driver_that_can() -> None:
    with pytest.raises(HostError, match="no capability to config MIG devices"):
        plan_request((), (), host(), ContainerLayout(), manages_mig=("config",))
    with pytest.raises(HostError, match=f"nvidia-modprobe -f /d{CAPABILITIES}/mig/config"):
        plan_request(
            (),
            (),
            host("nvidia-caps/nvidia-cap1", table=TABLE),
            ContainerLayout(),
            manages_mig=("config",),
        )
