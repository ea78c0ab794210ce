"""What a container asks for, by NVIDIA's rules."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.config import Config
from nvhook.core.catalog import CAPABILITIES
from nvhook.core.request import Request, from_container, parse_capabilities, parse_devices
from nvhook.errors import NvhookError, RequestError
from nvhook.formats.oci import ContainerConfig, parse_config

DATA = Path(__file__).parent.parent / "data"
SAMPLES = sorted(path.name for path in (DATA / "requests").glob("*.txt"))
MOUNTS = "/var/run/nvidia-container-devices"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
DEFAULT = ("compute", "utility")
ALL_CHANNELS = ("all",)
ALL = tuple(sorted(CAPABILITIES))


def container(
    env: dict[str, str],
    privileged: bool = False,
    mounts: tuple[tuple[str, str], ...] = (),
    annotations: dict[str, str] | None = None,
) -> ContainerConfig:
    return ContainerConfig(
        env, "/root", privileged=privileged, mounts=mounts, annotations=annotations
    )


def ask(env: dict[str, str], **settings: object) -> Request | None:
    return from_container(container(env), Config(**settings))


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("", None),
        (" ", None),
        (",, ,", None),
        ("void", None),
        ("all,void", None),
        ("0, void ,1", None),
        ("none", ()),
        ("all", ("all",)),
        ("none,all", ()),
        ("all,none", ("all",)),
        ("0,none", ()),
        ("0,all,1", ("all",)),
        ("0", ("0",)),
        ("3,1", ("3", "1")),
        (" 0 ,\t1,,1,0", ("0", "1")),
        ("GPU-1234,0", ("GPU-1234", "0")),
        ("00000000:3B:00.0", ("00000000:3B:00.0",)),
        ("ALL", ("ALL",)),  # NVIDIA's words are case-sensitive: this one is an unknown id
        ("0:1,MIG-x", ("0:1", "MIG-x")),
    ],
)
def test_device_list(value: str, devices: tuple[str, ...] | None) -> None:
    assert parse_devices(value) == devices
    asked = ask({VISIBLE: value})
    assert (None if asked is None else asked.devices) == devices


def test_unset_is_no_gpu_container() -> None:
    assert ask({}) is None
    assert ask({"PATH": "/bin", "NVIDIA_DRIVER_CAPABILITIES": "all"}) is None


@pytest.mark.parametrize(
    ("value", "capabilities"),
    [
        (None, DEFAULT),
        ("", DEFAULT),
        (" , ", DEFAULT),
        ("utility", ("utility",)),
        ("video,compute,video", ("compute", "video")),
        (" utility , compute ", DEFAULT),
        ("all", ALL),
        ("all,utility", ALL),
    ],
)
def test_capabilities(value: str | None, capabilities: tuple[str, ...]) -> None:
    env = {VISIBLE: "all"} | ({} if value is None else {"NVIDIA_DRIVER_CAPABILITIES": value})
    assert ask(env) == Request(("all",), capabilities, VISIBLE)


def test_unknown_capability_lists_the_known_ones() -> None:
    with pytest.raises(RequestError) as caught:
        ask({VISIBLE: "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,nvenc"})
    text = str(caught.value)
    assert "unknown driver capability nvenc" in text
    assert all(name in text for name in CAPABILITIES)


def test_capabilities_are_cut_to_the_supported_ones() -> None:
    supported = ("utility", "video")
    assert parse_capabilities("all", supported) == supported
    assert parse_capabilities("", supported) == ("utility",)
    with pytest.raises(RequestError, match="driver capability compute is not allowed on this host"):
        parse_capabilities("compute", supported)


def test_bad_capabilities_do_not_matter_without_a_gpu() -> None:
    assert ask({VISIBLE: "void", "NVIDIA_DRIVER_CAPABILITIES": "nonsense"}) is None


def test_legacy_image_means_all() -> None:
    required = (("CUDA_VERSION", "cuda>=8.0"),)
    asked = ask({"CUDA_VERSION": "8.0.61"})
    assert asked == Request(("all",), ALL, "CUDA_VERSION", requirements=required)
    unchecked = ask({"CUDA_VERSION": "nonsense", "NVIDIA_DISABLE_REQUIRE": "true"})
    assert unchecked == Request(("all",), ALL, "CUDA_VERSION")
    with pytest.raises(RequestError, match="CUDA_VERSION=nonsense is no version"):
        ask({"CUDA_VERSION": "nonsense"})
    assert ask({"CUDA_VERSION": "8.0", VISIBLE: ""}) is None
    assert ask({"CUDA_VERSION": ""}) is None
    assert ask({"CUDA_VERSION": "8.0", "NVIDIA_REQUIRE_CUDA": "cuda>=8.0"}) is None
    only = ask({"CUDA_VERSION": "8.0", VISIBLE: "0", "NVIDIA_DRIVER_CAPABILITIES": "utility"})
    assert only == Request(("0",), ("utility",), VISIBLE, requirements=required)


def test_environment_of_unprivileged_containers_can_be_refused() -> None:
    config = Config(accept_envvar_when_unprivileged=False)
    warnings: list[str] = []
    assert from_container(container({VISIBLE: "all"}), config, warnings) is None
    assert len(warnings) == 1
    assert f"{VISIBLE} is not accepted from an unprivileged container" in warnings[0]
    privileged = from_container(container({VISIBLE: "all"}, privileged=True), config, warnings)
    assert privileged == Request(("all",), DEFAULT, VISIBLE)
    quiet: list[str] = []
    for env in ({}, {VISIBLE: "void"}, {VISIBLE: ""}):
        assert from_container(container(env), config, quiet) is None
    assert quiet == []


def device_mount(name: str, source: str = "/dev/null") -> tuple[str, str]:
    return source, f"{MOUNTS}/{name}"


@pytest.mark.parametrize(
    ("mounts", "devices"),
    [
        ([device_mount("0")], ("0",)),
        ([device_mount("GPU-a"), device_mount("1"), device_mount("GPU-a")], ("GPU-a", "1")),
        ([device_mount("1/")], ("1",)),
        ([device_mount("all")], ("all",)),
        ([device_mount("cdi/nvidia.com/gpu/0")], ("0",)),
        ([device_mount("cdi/nvidia.com/gpu=0")], ("0",)),
        # None of these is a device list: the variable counts.
        ([device_mount("0", "/dev/zero")], ("2",)),
        ([("/dev/null", MOUNTS)], ("2",)),
        ([("/dev/null", f"/x{MOUNTS}/0")], ("2",)),
        ([], ("2",)),
    ],
)
def test_volume_mounts(mounts: list[tuple[str, str]], devices: tuple[str, ...]) -> None:
    asked = from_container(
        container({VISIBLE: "2"}, mounts=tuple(mounts)), Config(accept_volume_mounts=True)
    )
    assert asked is not None
    assert asked.devices == devices


@pytest.mark.parametrize(
    ("value", "devices", "others", "needs_driver"),
    [
        ("nvidia.com/gpu=0", ("0",), (), True),
        ("nvidia.com/gpu=all,runtime.nvidia.com/gpu=1", ("all",), (), True),
        ("k8s.device-plugin.nvidia.com/gpu=GPU-1, 2", ("GPU-1", "2"), (), True),
        ("nvidia.com/gpu=none", (), (), True),
        ("nvidia.com/gpu=void", None, (), False),
        ("nvidia.com/gpu=void,a.b/c=d", None, (), False),
        ("a.b/c=d", (), ("a.b/c=d",), False),
        ("a.b/c=d,0,a.b/c=e,a.b/c=d", ("0",), ("a.b/c=d", "a.b/c=e"), True),
        ("nvidia.com/gds=all", (), ("nvidia.com/gds=all",), False),
    ],
)
def test_cdi_names_in_the_environment(
    value: str, devices: tuple[str, ...] | None, others: tuple[str, ...], needs_driver: bool
) -> None:
    asked = ask({VISIBLE: value})
    if devices is None:
        assert asked is None
    else:
        assert asked == Request(devices, DEFAULT, VISIBLE, others, needs_driver)


def test_cdi_annotations_count_before_the_environment() -> None:
    """A CUDA image says all: what the device plugin chose must win."""
    annotations = {
        "cdi.k8s.io/nvidia-device-plugin_1": "nvidia.com/gpu=1, nvidia.com/gpu=3",
        "cdi.k8s.io/other": "a.b/c=d",
        "org.other": "nvidia.com/gpu=2",
    }
    asked = container({VISIBLE: "all"}, annotations=annotations)
    assert from_container(asked, Config()) == Request(
        ("1", "3"), DEFAULT, "cdi.k8s.io/", ("a.b/c=d",)
    )
    believed = from_container(asked, Config(accept_cdi_annotations=False))
    assert believed is not None
    assert believed.devices == ("all",)
    closed = Config(accept_envvar_when_unprivileged=False)
    assert from_container(asked, closed) is not None  # an engine's, not the image's


@pytest.mark.parametrize("value", ["0", "nvidia.com=0", "a.b/c"])
def test_an_annotation_must_hold_qualified_names(value: str) -> None:
    asked = container({}, annotations={"cdi.k8s.io/x": value})
    with pytest.raises(RequestError, match=f"{value} in annotation cdi.k8s.io/x is no CDI device"):
        from_container(asked, Config())


def test_volume_mounts_need_the_setting_and_no_privilege() -> None:
    mounted = container({}, mounts=(device_mount("0"),))
    warnings: list[str] = []
    assert from_container(mounted, Config(), warnings) is None
    assert len(warnings) == 1
    assert "accept-volume-mounts is false" in warnings[0]
    strict = Config(accept_volume_mounts=True, accept_envvar_when_unprivileged=False)
    assert from_container(mounted, strict) == Request(("0",), DEFAULT, MOUNTS)


IMEX = "NVIDIA_IMEX_CHANNELS"


@pytest.mark.parametrize(
    ("value", "channels"),
    [("0", ("0",)), (" 1 ,0,1", ("1", "0")), ("all", ALL_CHANNELS), ("1,all", ALL_CHANNELS)],
)
def test_imex_channels_in_the_environment(value: str, channels: tuple[str, ...]) -> None:
    asked = ask({VISIBLE: "0", IMEX: value})
    assert asked == Request(("0",), DEFAULT, VISIBLE, imex_channels=channels)


def test_imex_channels_by_mounts_win_over_the_variable() -> None:
    mounted = container(
        {VISIBLE: "0", IMEX: "7"},
        mounts=(device_mount("2"), device_mount("imex/3"), device_mount("imex/5/")),
    )
    asked = from_container(mounted, Config(accept_volume_mounts=True))
    assert asked == Request(("2",), DEFAULT, MOUNTS, imex_channels=("3", "5"))
    closed = from_container(mounted, Config())
    assert closed == Request(("0",), DEFAULT, VISIBLE, imex_channels=("7",))


def test_imex_variable_of_an_unprivileged_container_can_be_refused() -> None:
    config = Config(accept_volume_mounts=True, accept_envvar_when_unprivileged=False)
    warnings: list[str] = []
    asked = container({IMEX: "0"}, mounts=(device_mount("2"),))
    assert from_container(asked, config, warnings) == Request(("2",), DEFAULT, MOUNTS)
    assert len(warnings) == 1
    assert f"{IMEX} is not accepted from an unprivileged container" in warnings[0]
    assert "accept-envvar-when-unprivileged is false" in warnings[0]
    by_mount = container({}, mounts=(device_mount("2"), device_mount("imex/1")))
    believed = from_container(by_mount, config)
    assert believed == Request(("2",), DEFAULT, MOUNTS, imex_channels=("1",))


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("NVIDIA_GDS", "gds"),
        ("NVIDIA_MOFED", "mofed"),
        ("NVIDIA_GDRCOPY", "gdrcopy"),
        ("NVIDIA_NVSWITCH", "nvswitch"),
    ],
)
def test_a_switch_gives_its_feature_and_any_other_value_a_warning(name: str, feature: str) -> None:
    warnings: list[str] = []
    asked = from_container(container({VISIBLE: "0", name: "enabled"}), Config(), warnings)
    assert asked == Request(("0",), DEFAULT, VISIBLE, features=(feature,))
    assert warnings == []
    off = from_container(container({VISIBLE: "0", name: "1"}), Config(), warnings)
    assert off == Request(("0",), DEFAULT, VISIBLE)
    assert warnings == [f"{name}=1 asks for nothing: only the value enabled does"]
    assert ask({name: "enabled"}) is None


@pytest.mark.parametrize(
    ("env", "names", "devices", "source"),
    [
        (
            {"DOCKER_RESOURCE_GPU": "GPU-a"},
            ("DOCKER_RESOURCE_GPU",),
            ("GPU-a",),
            "DOCKER_RESOURCE_GPU",
        ),
        ({"A": "0", "B": "1, 0"}, ("B", "A"), ("1", "0"), "B+A"),
        ({"A": "0"}, ("B", "A"), ("0",), "A"),
        ({"A": "0"}, ("B",), ("all",), VISIBLE),
        ({"A": "none"}, ("A",), (), "A"),
    ],
)
def test_swarm_resources_replace_the_variable(
    env: dict[str, str], names: tuple[str, ...], devices: tuple[str, ...], source: str
) -> None:
    asked = ask({VISIBLE: "all", **env}, swarm_resource=names)
    assert asked == Request(devices, DEFAULT, source)


def test_void_or_empty_swarm_resource_is_no_gpu_container() -> None:
    for value in ("void", "", "0,void"):
        assert ask({VISIBLE: "all", "A": value}, swarm_resource=("A",)) is None


@pytest.mark.parametrize(
    "env",
    [
        *[
            {"NVIDIA_REQUIRE_CUDA": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": value}
            for value in ("1", "t", "T", "TRUE", "true", "True")
        ],
        {"NVIDIA_REQUIRE_JETPACK": "csv-mounts=some"},
        {"NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS": "base-only"},
        {"NVIDIA_REQUIRE_CUDA": ""},
        {"NVIDIA_GDS": "disabled", "NVIDIA_MOFED": "1"},
        {"NVIDIA_IMEX_CHANNELS": "", "NVIDIA_MIG_CONFIG_DEVICES": " "},
    ],
)
def test_what_asks_for_nothing_is_let_through(env: dict[str, str]) -> None:
    assert ask({VISIBLE: "0", **env}) == Request(("0",), DEFAULT, VISIBLE)


@pytest.mark.parametrize(
    ("env", "requirements"),
    [
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.4"}, (("NVIDIA_REQUIRE_CUDA", "cuda>=12.4"),)),
        (
            {"NVIDIA_REQUIRE_X": "driver>=1", "NVIDIA_REQUIRE_Y": "a", "CUDA_VERSION": "v10.2.89"},
            (
                ("NVIDIA_REQUIRE_X", "driver>=1"),
                ("NVIDIA_REQUIRE_Y", "a"),
                ("CUDA_VERSION", "cuda>=10.2"),
            ),
        ),
        (
            {"NVIDIA_REQUIRE_X": "driver>=1", "NVIDIA_DISABLE_REQUIRE": "yes"},
            (("NVIDIA_REQUIRE_X", "driver>=1"),),
        ),
        (
            {"NVIDIA_REQUIRE_X": "driver>=1", "NVIDIA_DISABLE_REQUIRE": "0"},
            (("NVIDIA_REQUIRE_X", "driver>=1"),),
        ),
    ],
)
def test_requirements_are_collected(
    env: dict[str, str], requirements: tuple[tuple[str, str], ...]
) -> None:
    asked = ask({VISIBLE: "0", **env})
    assert asked is not None
    assert asked.requirements == requirements
    off = ask({VISIBLE: "0", **env}, disable_require=True)
    assert off is not None
    assert off.requirements == ()


@pytest.mark.parametrize(
    ("variables", "manages"),
    [
        ({"NVIDIA_MIG_CONFIG_DEVICES": "all"}, ("config",)),
        ({"NVIDIA_MIG_MONITOR_DEVICES": " all ,all"}, ("monitor",)),
        (
            {"NVIDIA_MIG_MONITOR_DEVICES": "all", "NVIDIA_MIG_CONFIG_DEVICES": "all"},
            ("config", "monitor"),
        ),
        ({"NVIDIA_MIG_CONFIG_DEVICES": ""}, ()),
    ],
)
def test_managing_mig_is_for_privileged_containers(
    variables: dict[str, str], manages: tuple[str, ...]
) -> None:
    env = {VISIBLE: "0:1", **variables}
    asked = from_container(container(env, privileged=True), Config())
    assert asked == Request(("0:1",), DEFAULT, VISIBLE, manages_mig=manages)
    assert from_container(container({**env, VISIBLE: "void"}), Config()) is None
    if manages:
        with pytest.raises(RequestError, match="for privileged containers only"):
            from_container(container(env), Config())


@pytest.mark.parametrize("value", ["0", "all,0:1", "none", "void"])
def test_managing_mig_is_for_all_of_it(value: str) -> None:
    env = {VISIBLE: "0", "NVIDIA_MIG_CONFIG_DEVICES": value}
    with pytest.raises(RequestError, match="it can only be all"):
        from_container(container(env, privileged=True), Config())


def test_endless_list_is_refused() -> None:
    with pytest.raises(RequestError, match=f"{VISIBLE} is longer than 131072 characters"):
        ask({VISIBLE: "0," * 70_000})


# Each sample of tests/data/requests: settings beside the defaults, and what comes out. An exception
# comes with words of its message.
# What the images' requirements lead to stands in test_requirements.
SAMPLE_RESULTS: dict[str, list[tuple[dict[str, object], object]]] = {
    "caps-all_on_old_jetson.txt": [({}, (("all",), ALL))],
    "caps-graphics_video_display.txt": [
        (
            {},
            (
                ("GPU-6ccaccdb-251b-ce79-793a-67c9e2ed829a",),
                ("display", "graphics", "utility", "video"),
            ),
        )
    ],
    "cdi_injected_env.txt": [({}, None)],
    "cuda-10.2.txt": [({}, (("all",), DEFAULT))],
    "cuda-11.8.txt": [({}, (("0",), DEFAULT))],
    "cuda-12.1-full.txt": [({}, (("all",), DEFAULT))],
    "cuda-12.2-arm64.txt": [({}, (("all",), DEFAULT))],
    "cuda-12.4-full.txt": [({}, (("all",), DEFAULT))],
    "cuda-12.9-two_clauses.txt": [({}, (("all",), DEFAULT))],
    "cuda-13.1-full-rapids.txt": [({}, (("all",), DEFAULT))],
    "cuda-13.3-disable_require.txt": [({}, (("all",), DEFAULT))],
    "cuda-9.0-base.txt": [({}, (("all",), DEFAULT))],
    "k8s-image_all_plus_unprivileged.txt": [
        ({"accept_envvar_when_unprivileged": False}, None),
        ({}, (("all",), DEFAULT)),
    ],
    "kata-visible_cdi.txt": [({}, None)],
    "legacy_cuda_version_no_visible.txt": [({}, (("all",), ALL))],
    "no_caps_var.txt": [({}, (("all",), DEFAULT))],
    "nv_sm_var_mps.txt": [({}, (("all",), DEFAULT))],
    "swarm-gpu_kind_full_uuid.txt": [
        (
            {"swarm_resource": ("DOCKER_RESOURCE_GPU",)},
            (("GPU-11111111-2222-3333-4444-555555555555",), DEFAULT),
        )
    ],
    "swarm-nvidia_gpu_kind.txt": [
        ({"swarm_resource": ("DOCKER_RESOURCE_GPU",)}, (("all",), DEFAULT)),
        ({"swarm_resource": ("DOCKER_RESOURCE_NVIDIA-GPU",)}, (("GPU-0a1b2c3d",), DEFAULT)),
    ],
    "swarm-two_uuids_cdi_mode.txt": [
        (
            {"swarm_resource": ("DOCKER_RESOURCE_NVIDIA-GPU",)},
            (
                (
                    "GPU-11111111-2222-3333-4444-555555555555",
                    "GPU-66666666-7777-8888-9999-000000000000",
                ),
                DEFAULT,
            ),
        )
    ],
    "visible-cdi_name.txt": [({}, (("all",), DEFAULT))],
    # Privileged: test_samples_that_manage_mig.
    "visible-mig_index.txt": [({}, (RequestError, "NVIDIA_MIG_CONFIG_DEVICES is for privileged"))],
    "visible-mig_uuid_new.txt": [({}, (RequestError, "NVIDIA_MIG_MONITOR_DEVICES is for priv"))],
    "visible-no_gpu_has_10MiB.txt": [({}, (("no-gpu-has-10MiB-to-run",), DEFAULT))],
    "visible-runtime_cdi.txt": [({}, (("all",), DEFAULT))],
    "visible-void-dra.txt": [({}, None)],
}


def sample(name: str) -> dict[str, str]:
    lines = (DATA / "requests" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_of_a_real_container(name: str) -> None:
    assert name in SAMPLE_RESULTS, "a sample without an expectation proves nothing"
    for settings, expected in SAMPLE_RESULTS[name]:
        if expected is None:
            assert ask(sample(name), **settings) is None
        elif isinstance(expected, tuple) and isinstance(expected[0], type):
            with pytest.raises(expected[0], match=str(expected[1])):
                ask(sample(name), **settings)
        else:
            asked = ask(sample(name), **settings)
            assert asked is not None
            assert (asked.devices, asked.driver_capabilities) == expected


@pytest.mark.parametrize(
    ("name", "devices", "manages"),
    [
        ("visible-mig_index.txt", ("0:0", "0:1"), ("config",)),
        ("visible-mig_uuid_new.txt", ("MIG-e8c4bf14-4d33-3495-5d46-af783b52901a",), ("monitor",)),
    ],
)
def test_samples_that_manage_mig(
    name: str, devices: tuple[str, ...], manages: tuple[str, ...]
) -> None:
    asked = from_container(container(sample(name), privileged=True), Config())
    assert asked == Request(devices, DEFAULT, VISIBLE, manages_mig=manages)


def test_every_expectation_has_a_sample() -> None:
    assert sorted(SAMPLE_RESULTS) == SAMPLES


# Public bug reports (reports.md), by their number.


@pytest.mark.parametrize("setting", [False, True], ids=["ctk108-off", "ctk108-on-without-mounts"])
def test_directory_of_mounts_is_never_a_device(setting: bool) -> None:
    with pytest.raises(RequestError) as caught:
        ask({VISIBLE: MOUNTS}, accept_volume_mounts=setting)
    text = str(caught.value)
    assert MOUNTS in text
    assert "unknown device" not in text
    assert ("accept-volume-mounts = true" in text) is not setting


def test_ctk108_with_the_option_on_the_mounts_are_the_list() -> None:
    data = (DATA / "oci/containerd-1.6.20-cgroupv1/cri-container-hardened/config.json").read_bytes()
    hardened = parse_config(data, "/bundle")
    with pytest.raises(RequestError, match="accept-volume-mounts"):
        from_container(hardened, Config())
    asked = from_container(hardened, Config(accept_volume_mounts=True))
    expected = tuple(d[len(MOUNTS) + 1 :] for _, d in hardened.mounts if d.startswith(MOUNTS + "/"))
    assert expected
    assert asked is not None
    assert asked.devices == expected


def test_ctk1089_variable_where_mounts_are_wanted_is_explained() -> None:
    warnings: list[str] = []
    config = Config(accept_volume_mounts=True, accept_envvar_when_unprivileged=False)
    assert from_container(container({VISIBLE: "0"}), config, warnings) is None
    assert "accept-envvar-when-unprivileged" in warnings[0]


def test_ctk51_all_capabilities_on_an_old_hook() -> None:
    asked = ask({VISIBLE: "all", "NVIDIA_DRIVER_CAPABILITIES": "all"})
    assert asked is not None
    assert asked.driver_capabilities == ALL


def test_ctk57_ctk1599_swarm_assignment_wins_over_the_image() -> None:
    env = {VISIBLE: "all", "DOCKER_RESOURCE_NVIDIA-GPU": "GPU-x"}
    wrong = ask(env, swarm_resource=("DOCKER_RESOURCE_GPU",))
    right = ask(env, swarm_resource=("DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_NVIDIA-GPU"))
    assert wrong is not None
    assert right is not None
    assert (wrong.devices, right.devices) == (("all",), ("GPU-x",))


def test_ctk152_only_the_right_variable_switches_a_requirement_off() -> None:
    env = {VISIBLE: "all", "NVIDIA_REQUIRE_CUDA": "cuda>=11.8"}
    required = (("NVIDIA_REQUIRE_CUDA", "cuda>=11.8"),)
    off = ask({**env, "NVIDIA_DISABLE_REQUIRE": "1"})
    misspelt = ask({**env, "NVIDIA_REQUIRE_DISABLE": ""})  # as the thread has it
    assert off is not None
    assert misspelt is not None
    assert (off.requirements, misspelt.requirements) == ((), required)


NAMES = st.sampled_from(
    [
        VISIBLE,
        "NVIDIA_DRIVER_CAPABILITIES",
        "CUDA_VERSION",
        "NVIDIA_REQUIRE_CUDA",
        "NVIDIA_DISABLE_REQUIRE",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_GDS",
        "DOCKER_RESOURCE_GPU",
    ]
)


@given(
    st.dictionaries(NAMES, st.text() | st.sampled_from(["all", "none", "void", "0,1", "enabled"])),
    st.lists(st.tuples(st.just("/dev/null"), st.text().map(lambda text: f"{MOUNTS}/{text}"))),
    st.booleans(),
)
def test_arbitrary_text_raises_only_nvhook_errors(
    env: dict[str, str], mounts: list[tuple[str, str]], accept: bool
) -> None:
    config = Config(accept_volume_mounts=accept, swarm_resource=("DOCKER_RESOURCE_GPU",))
    try:
        asked = from_container(container(env, mounts=tuple(mounts)), config)
    except NvhookError as error:
        line = f"nvhook: {error}"
        assert len(line) < 300
        assert line.isprintable()
    else:
        assert asked is None or "" not in asked.devices
