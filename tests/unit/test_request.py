"""Samples and reports of what containers ask for; the rules themselves: test_request_table."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.config import Config
from nvhook.core.catalog import CAPABILITIES
from nvhook.core.request import Request, from_container
from nvhook.errors import NvhookError, RequestError
from nvhook.formats.oci import ContainerConfig, parse_config

DATA = Path(__file__).parent.parent / "data"
SAMPLES = sorted(path.name for path in (DATA / "requests").glob("*.txt"))
MOUNTS = "/var/run/nvidia-container-devices"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
DEFAULT = ("compute", "utility")
ALL = tuple(sorted(CAPABILITIES))


def container(
    env: dict[str, str],
    privileged: bool = False,
    mounts: tuple[tuple[str, str], ...] = (),
    annotations: dict[str, str] | None = None,
) -> ContainerConfig:
    return ContainerConfig(
        env, "/root", privileged=privileged, mounts=mounts, annotations=annotations or {}
    )


def ask(env: dict[str, str], **settings: object) -> Request | None:
    return from_container(container(env), Config(**settings))


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
