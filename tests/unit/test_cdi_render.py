"""Plans as CDI specs: every kind of edit is rendered, left to the hook, or refused."""

import pytest

from nvhook.core import edits
from nvhook.core.cdi_render import VOID, build_spec, device_names, hook_entry, render
from nvhook.core.edits import (
    FILE_OPTIONS,
    PROC_OPTIONS,
    SOCKET_OPTIONS,
    AdditionalGid,
    CachedLibrary,
    CgroupRule,
    EnvVar,
    LdCacheUpdate,
    Plan,
    Symlink,
    TextFile,
)
from nvhook.core.inventory import Gpu, HostNode, MigDevice
from nvhook.errors import HostError, UnsupportedError
from nvhook.formats import cdi_spec
from nvhook.formats.cdi_rules import violations
from nvhook.formats.cdi_spec import CdiDeviceNode, CdiMount, ContainerEdits

HOOK = hook_entry("/usr/local/bin/nvhook", ("compute", "utility"), None)
LIBRARY = edits.Mount("/d/lib/libcuda.so.550", "/lib/libcuda.so.550", required=True)
NODE = edits.DeviceNode("/dev/nvidia0", "/dev/nvidia0", 195, 0)
RULE = CgroupRule("c", 195, 0)


def gpu_node(minor: int, mode: int = 0o666, gid: int = 0) -> HostNode:
    name = f"nvidia{minor}"
    return HostNode(name, f"/dev/{name}", 195, minor, mode, 0, gid)


RENDERED: list[tuple[list[edits.Edit], dict[str, object]]] = [
    ([NODE, RULE], {"device_nodes": (CdiDeviceNode("/dev/nvidia0", "", "c", 195, 0, None, "rw"),)}),
    (
        [edits.DeviceNode("/dev/a", "/driver/dev/a", 195, 1), CgroupRule("c", 195, 1, "rwm")],
        {"device_nodes": (CdiDeviceNode("/dev/a", "/driver/dev/a", "c", 195, 1, None, "rwm"),)},
    ),
    ([NODE], {"device_nodes": (CdiDeviceNode("/dev/nvidia0", "", "c", 195, 0, None, "none"),)}),
    (
        [LIBRARY],
        {
            "mounts": (
                CdiMount(
                    "/d/lib/libcuda.so.550",
                    "/lib/libcuda.so.550",
                    ("ro", "nosuid", "nodev", "rbind", "rprivate"),
                ),
            )
        },
    ),
    (
        [edits.Mount("/run/s", "/run/s", SOCKET_OPTIONS)],
        {
            "mounts": (
                CdiMount("/run/s", "/run/s", ("nosuid", "nodev", "noexec", "rbind", "rprivate")),
            )
        },
    ),
    ([EnvVar("A", "b=c")], {"env": ("A=b=c",)}),
    ([AdditionalGid(44), AdditionalGid(44)], {"additional_gids": (44,)}),
]
DELEGATED: list[edits.Edit] = [
    Symlink("/lib/libcuda.so.1", "libcuda.so.550"),
    TextFile("/proc/driver/nvidia/params", "x"),
    LdCacheUpdate((CachedLibrary("libcuda.so.1", "/lib/libcuda.so.1", 0x303),)),
    edits.Mount("", "/proc/driver/nvidia", FILE_OPTIONS),
    edits.Mount("", "/elsewhere", FILE_OPTIONS),
    edits.Mount("/proc/driver/nvidia/gpus/a", "/proc/driver/nvidia/gpus/a", PROC_OPTIONS),
]


@pytest.mark.parametrize(("plan", "expected"), RENDERED)
def test_an_edit_that_a_spec_can_say(plan: list[edits.Edit], expected: dict[str, object]) -> None:
    rendered = render(Plan(tuple(plan)), {})
    assert rendered.edits == ContainerEdits(**expected)  # type: ignore[arg-type]
    assert rendered.delegated == ()


@pytest.mark.parametrize("edit", DELEGATED)
def test_an_edit_that_is_left_to_the_hook(edit: edits.Edit) -> None:
    rendered = render(Plan((edit,)), {})
    assert rendered.edits == cdi_spec.NO_EDITS
    assert rendered.delegated == (edit,)


def test_there_is_a_case_for_every_kind_of_edit() -> None:
    kinds = {
        each.kind for each in vars(edits).values() if isinstance(getattr(each, "kind", 0), str)
    }
    covered = {edit.kind for plan, _ in RENDERED for edit in plan}
    assert covered | {edit.kind for edit in DELEGATED} == kinds


def test_a_rule_without_its_node_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="can't allow device c 10:200 without its node"):
        render(Plan((NODE, RULE, CgroupRule("c", 10, 200))), {})


def test_a_node_for_a_group_keeps_its_mode_and_gives_the_group() -> None:
    rendered = render(Plan((NODE, RULE)), {"/dev/nvidia0": gpu_node(0, 0o660, 44)})
    node = CdiDeviceNode("/dev/nvidia0", "", "c", 195, 0, 0o660, "rw", 0, 44)
    assert rendered.edits == ContainerEdits(device_nodes=(node,), additional_gids=(44,))
    open_to_all = render(Plan((NODE, RULE)), {"/dev/nvidia0": gpu_node(0, 0o666, 44)})
    assert open_to_all == render(Plan((NODE, RULE)), {})


def test_a_node_for_root_only_gives_no_group() -> None:
    rendered = render(Plan((NODE, RULE)), {"/dev/nvidia0": gpu_node(0, 0o600, 0)})
    assert rendered.edits.device_nodes[0].file_mode == 0o600
    assert rendered.edits.additional_gids == ()


def gpu(minor: int) -> tuple[tuple[str, ...], Plan]:
    node = edits.DeviceNode(f"/dev/nvidia{minor}", f"/dev/nvidia{minor}", 195, minor)
    proc = edits.Mount(f"/proc/g{minor}", f"/proc/g{minor}", PROC_OPTIONS)
    return (f"{minor}", f"GPU-{minor}"), Plan((node, CgroupRule("c", 195, minor), proc))


def test_the_whole_spec() -> None:
    common = Plan((VOID, LIBRARY, Symlink("/lib/libcuda.so.1", "libcuda.so.550")))
    spec = build_spec("nvidia.com/gpu", common, [gpu(0), gpu(1)], (), HOOK)
    zero = CdiDeviceNode("/dev/nvidia0", "", "c", 195, 0, None, "rw")
    one = CdiDeviceNode("/dev/nvidia1", "", "c", 195, 1, None, "rw")
    assert spec.version == "0.5.0"
    assert spec.kind == "nvidia.com/gpu"
    assert [(device.name, device.edits.device_nodes) for device in spec.devices] == [
        ("0", (zero,)),
        ("GPU-0", (zero,)),
        ("1", (one,)),
        ("GPU-1", (one,)),
        ("all", (zero, one)),
    ]
    assert spec.edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert spec.edits.hooks == (HOOK,)
    assert [mount.container_path for mount in spec.edits.mounts] == ["/lib/libcuda.so.550"]
    assert list(violations(spec)) == []


def test_without_the_device_of_all() -> None:
    spec = build_spec("nvidia.com/gpu", Plan(()), [gpu(0)], (), HOOK, all_device=False)
    assert [device.name for device in spec.devices] == ["0", "GPU-0"]


def test_the_version_is_the_lowest_that_can() -> None:
    plain = (("gpu0",), Plan((NODE, RULE)))
    assert build_spec("nvidia.com/gpu", Plan(()), [plain], (), None).version == "0.3.0"
    closed = [gpu_node(0, 0o660, 44)]
    assert build_spec("nvidia.com/gpu", Plan(()), [plain], closed, None).version == "0.7.0"


def test_nothing_is_left_to_a_hook_that_is_not_there() -> None:
    plain = (("0",), Plan((NODE, RULE)))
    assert build_spec("nvidia.com/gds", Plan(()), [plain], (), HOOK).edits.hooks == ()
    with pytest.raises(UnsupportedError, match="can't express the edit symlink"):
        build_spec("nvidia.com/gpu", Plan((Symlink("/a", "b"),)), [plain], (), None)
    with pytest.raises(UnsupportedError, match="can't express the edit mount"):
        build_spec("nvidia.com/gpu", Plan(()), [gpu(0)], (), None)


def test_the_hook_is_one_that_gets_no_environment_of_the_image() -> None:
    assert cdi_spec.Hook(
        "createRuntime",
        "/opt/nvhook",
        ("nvhook", "hook", "createRuntime", "--cdi", "utility", "--config", "/etc/c.toml"),
        ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",),
    ) == hook_entry("/opt/nvhook", ("utility",), "/etc/c.toml")


UUID = "GPU-0f0a6e3c-7d21-4f5c-8a43-1b2c3d4e5f60"
UNKNOWN = "GPU-????????-????-????-????-????????????"


@pytest.mark.parametrize(
    ("strategies", "uuid", "expected"),
    [
        (("index", "uuid"), UUID, ("3", UUID)),
        (("uuid",), UUID, (UUID,)),
        (("type-index",), UUID, ("gpu3",)),
        (("index", "uuid"), UNKNOWN, ("3",)),
    ],
)
def test_names_of_a_gpu(strategies: tuple[str, ...], uuid: str, expected: tuple[str, ...]) -> None:
    assert device_names(Gpu(3, uuid, 0, "0000:0a:00.0", "T4"), strategies) == expected


def test_a_gpu_without_a_name_is_refused() -> None:
    with pytest.raises(HostError, match="does not know the UUID of GPU 3 yet"):
        device_names(Gpu(3, UNKNOWN, 0, "0000:0a:00.0", "T4"), ("uuid",))


def mig_device(index: int, uuid: str) -> MigDevice:
    return MigDevice(Gpu(3, UUID, 0, "0000:0a:00.0", "A"), index, uuid, "1g.5gb", 7, 0, 66, 67)


@pytest.mark.parametrize(
    ("strategies", "uuid", "expected"),
    [
        (("index", "uuid"), "MIG-a", ("3:1", "MIG-a")),
        (("type-index",), "MIG-a", ("mig3:1",)),
        # The names of drivers before 470 have slashes, which CDI's have not.
        (("index", "uuid"), f"MIG-{UUID}/7/0", ("3:1",)),
    ],
)
def test_names_of_a_mig_device(
    strategies: tuple[str, ...], uuid: str, expected: tuple[str, ...]
) -> None:
    assert device_names(mig_device(1, uuid), strategies) == expected


def test_a_mig_device_that_nvml_does_not_name_is_refused() -> None:
    with pytest.raises(HostError, match=r"does not know the UUID of MIG 3:\? yet"):
        device_names(mig_device(-1, ""), ("index", "uuid", "type-index"))
