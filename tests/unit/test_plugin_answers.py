"""The exact answer to the kubelet, for every strategy."""

import pytest

from nvhook.config import Config
from nvhook.core.inventory import MigDevice
from nvhook.core.request import from_container
from nvhook.core.selection import select
from nvhook.errors import HostError, RequestError
from nvhook.formats.oci import ContainerConfig
from nvhook.kubelet.answers import Answer, DeviceSpec, HostFacts, Mount, allocate
from nvhook.kubelet.resources import Resource
from nvhook.kubelet.settings import IdStrategy, ListStrategy, Settings
from tests.unit.plugin_hosts import gpu, host, mig

G0, G1 = gpu(0), gpu(1)
PART = mig(G1, 0)
OLD = MigDevice(G1, 1, f"MIG-{G1.uuid}/3/0", "1g.5gb", 3, 0, 30, 31)
GPUS = Resource("nvidia.com/gpu", (G0, G1), {})
SHARED = Resource("nvidia.com/gpu.shared", (G0, G1), {G0.uuid: 4, G1.uuid: 4}, "time-slicing")
PARTS = Resource("nvidia.com/mig-1g.5gb", (PART, OLD), {})
CHANNEL = "nvidia-caps-imex-channels/channel0"
HOST = HostFacts("/dev", frozenset({"nvidiactl", "nvidia-uvm", "nvidia6", "nvidia7", CHANNEL}))
KIND = "k8s.device-plugin.nvidia.com"
MOUNTS = "/var/run/nvidia-container-devices"


def node(name: str, directory: str = "/dev") -> DeviceSpec:
    return DeviceSpec(f"/dev/{name}", f"{directory}/{name}", "rw")


ENVVAR = {"NVIDIA_VISIBLE_DEVICES": f"{G0.uuid},{G1.uuid}"}
BOTH = (G1.uuid, G0.uuid)
CASES: list[tuple[str, Settings, Resource, tuple[str, ...], Answer]] = [
    ("envvar", Settings(), GPUS, BOTH, Answer(ENVVAR)),
    (
        "envvar, by index",
        Settings(id_strategy="index"),
        GPUS,
        BOTH,
        Answer({"NVIDIA_VISIBLE_DEVICES": "0,1"}),
    ),
    (
        "replicas of one GPU are that GPU, once",
        Settings(),
        SHARED,
        (f"{G1.uuid}::3", f"{G0.uuid}::1", f"{G1.uuid}::0"),
        Answer(ENVVAR),
    ),
    (
        "MIG devices",
        Settings(),
        PARTS,
        (PART.uuid,),
        Answer({"NVIDIA_VISIBLE_DEVICES": PART.uuid}),
    ),
    (
        "MIG devices, by index",
        Settings(id_strategy="index"),
        PARTS,
        (PART.uuid, OLD.uuid),
        Answer({"NVIDIA_VISIBLE_DEVICES": "1:0,1:1"}),
    ),
    (
        "volume mounts",
        Settings(list_strategies=("volume-mounts",)),
        GPUS,
        BOTH,
        Answer(
            {"NVIDIA_VISIBLE_DEVICES": MOUNTS},
            (
                Mount(f"{MOUNTS}/{G0.uuid}", "/dev/null", True),
                Mount(f"{MOUNTS}/{G1.uuid}", "/dev/null", True),
            ),
        ),
    ),
    (
        "volume mounts win over the variable",
        Settings(list_strategies=("envvar", "volume-mounts"), id_strategy="index"),
        GPUS,
        (G0.uuid,),
        Answer({"NVIDIA_VISIBLE_DEVICES": MOUNTS}, (Mount(f"{MOUNTS}/0", "/dev/null", True),)),
    ),
    (
        "CDI by annotation",
        Settings(list_strategies=("cdi-annotations",)),
        GPUS,
        BOTH,
        Answer(
            annotations={
                "cdi.k8s.io/nvidia-device-plugin_KEY": f"{KIND}/gpu={G0.uuid},{KIND}/gpu={G1.uuid}"
            }
        ),
    ),
    (
        "CDI by annotation, with another prefix",
        Settings(list_strategies=("cdi-annotations",), cdi_annotation_prefix="x.io/"),
        GPUS,
        (G0.uuid,),
        Answer(annotations={"x.io/nvidia-device-plugin_KEY": f"{KIND}/gpu={G0.uuid}"}),
    ),
    (
        "CDI by the kubelet",
        Settings(list_strategies=("cdi-cri",)),
        GPUS,
        BOTH,
        Answer(cdi_devices=(f"{KIND}/gpu={G0.uuid}", f"{KIND}/gpu={G1.uuid}")),
    ),
    (
        "CDI by index; an old MIG UUID, which CDI has no place for, by index always",
        Settings(list_strategies=("cdi-cri",)),
        PARTS,
        (OLD.uuid, PART.uuid),
        Answer(cdi_devices=(f"{KIND}/gpu={PART.uuid}", f"{KIND}/gpu=1:1")),
    ),
    (
        "CDI beside the variable",
        Settings(list_strategies=("envvar", "cdi-cri"), id_strategy="index"),
        GPUS,
        (G1.uuid,),
        Answer({"NVIDIA_VISIBLE_DEVICES": "1"}, cdi_devices=(f"{KIND}/gpu=1",)),
    ),
    (
        "device specs: control nodes that exist, then the GPU's",
        Settings(pass_device_specs=True),
        GPUS,
        (G0.uuid,),
        Answer(
            {"NVIDIA_VISIBLE_DEVICES": G0.uuid},
            devices=(node("nvidiactl"), node("nvidia-uvm"), node("nvidia7")),
        ),
    ),
    (
        "device specs of MIG devices: the GPU's once, and both capabilities",
        Settings(pass_device_specs=True),
        PARTS,
        (PART.uuid, OLD.uuid),
        Answer(
            {"NVIDIA_VISIBLE_DEVICES": f"{PART.uuid},{OLD.uuid}"},
            devices=tuple(
                map(
                    node,
                    [
                        "nvidiactl",
                        "nvidia-uvm",
                        "nvidia6",
                        f"nvidia-caps/nvidia-cap{PART.gpu_instance_minor}",
                        f"nvidia-caps/nvidia-cap{PART.compute_instance_minor}",
                        "nvidia-caps/nvidia-cap30",
                        "nvidia-caps/nvidia-cap31",
                    ],
                )
            ),
        ),
    ),
    (
        "no device specs where CDI gives the nodes",
        Settings(pass_device_specs=True, list_strategies=("cdi-cri",)),
        GPUS,
        (G0.uuid,),
        Answer(cdi_devices=(f"{KIND}/gpu={G0.uuid}",)),
    ),
    (
        "features by variable",
        Settings(gds=True, mofed=True, gdrcopy=True),
        GPUS,
        (G0.uuid,),
        Answer(
            {
                "NVIDIA_GDRCOPY": "enabled",
                "NVIDIA_GDS": "enabled",
                "NVIDIA_MOFED": "enabled",
                "NVIDIA_VISIBLE_DEVICES": G0.uuid,
            }
        ),
    ),
    (
        "features and channels by CDI",
        Settings(
            gds=True, mofed=True, gdrcopy=True, imex_channels=(0,), list_strategies=("cdi-cri",)
        ),
        GPUS,
        (G0.uuid,),
        Answer(
            {
                "NVIDIA_GDRCOPY": "enabled",
                "NVIDIA_GDS": "enabled",
                "NVIDIA_MOFED": "enabled",
            },
            cdi_devices=(
                f"{KIND}/gpu={G0.uuid}",
                f"{KIND}/imex-channel=0",
                f"{KIND}/gdrcopy=all",
                f"{KIND}/gds=all",
                f"{KIND}/mofed=all",
            ),
        ),
    ),
    (
        "a channel by variable, and its node",
        Settings(imex_channels=(0,), imex_required=True, pass_device_specs=True),
        GPUS,
        (G0.uuid,),
        Answer(
            {"NVIDIA_VISIBLE_DEVICES": G0.uuid, "NVIDIA_IMEX_CHANNELS": "0"},
            devices=(node("nvidiactl"), node("nvidia-uvm"), node("nvidia7"), node(CHANNEL)),
        ),
    ),
    (
        "a channel by mount",
        Settings(imex_channels=(0,), list_strategies=("volume-mounts",)),
        GPUS,
        (G0.uuid,),
        Answer(
            {"NVIDIA_VISIBLE_DEVICES": MOUNTS},
            (
                Mount(f"{MOUNTS}/{G0.uuid}", "/dev/null", True),
                Mount(f"{MOUNTS}/imex/0", "/dev/null", True),
            ),
        ),
    ),
    (
        "MPS: the daemon's pipes, and its shared memory",
        Settings(mps_root="/run/nvidia/mps/"),
        Resource("nvidia.com/gpu.shared", (G0, G1), {G0.uuid: 4}, "mps", True),
        (f"{G0.uuid}::2",),
        Answer(
            {
                "NVIDIA_VISIBLE_DEVICES": G0.uuid,
                "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu.shared/pipe",
            },
            (
                Mount(
                    "/mps/nvidia.com/gpu.shared/pipe",
                    "/run/nvidia/mps/nvidia.com/gpu.shared/pipe",
                    False,
                ),
                Mount("/dev/shm", "/run/nvidia/mps/shm", False),
            ),
        ),
    ),
    (
        "no MPS for the one of the resource that is not shared",
        Settings(mps_root="/run/nvidia/mps"),
        Resource("nvidia.com/gpu", (G0, G1), {G0.uuid: 4}, "mps", True),
        (G1.uuid,),
        Answer({"NVIDIA_VISIBLE_DEVICES": G1.uuid}),
    ),
]


@pytest.mark.parametrize(
    ("settings", "resource", "ids", "expected"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_the_answer(
    settings: Settings, resource: Resource, ids: tuple[str, ...], expected: Answer
) -> None:
    answer = allocate(resource, ids, settings, HOST)
    keys = [key for key in answer.annotations if "nvidia-device-plugin_" in key]
    annotations = {key.replace(key[-32:], "KEY"): answer.annotations[key] for key in keys}
    assert (
        Answer(answer.envs, answer.mounts, answer.devices, annotations, answer.cdi_devices)
        == expected
    )
    assert len(keys) == len(answer.annotations)


def annotation(resource: Resource, *ids: str) -> str:
    settings = Settings(list_strategies=("cdi-annotations",))
    (key,) = allocate(resource, ids, settings, HOST).annotations
    return key


def test_the_annotations_name_is_the_same_for_the_same_ids_and_no_others() -> None:
    assert annotation(GPUS, *BOTH) == annotation(GPUS, *reversed(BOTH))
    replicas = annotation(SHARED, f"{G0.uuid}::0"), annotation(SHARED, f"{G0.uuid}::1")
    different = {annotation(GPUS, G0.uuid), annotation(GPUS, G1.uuid), *replicas}
    assert len(different) == 4
    # Kubernetes' limit for the name of an annotation.
    assert all(len(key.partition("/")[2]) <= 63 for key in different)


def test_nodes_are_named_as_the_host_has_them() -> None:
    facts = HostFacts("/run/nvidia/driver/dev/", frozenset({"nvidiactl"}))
    answer = allocate(GPUS, (G0.uuid,), Settings(pass_device_specs=True), facts)
    directory = "/run/nvidia/driver/dev"
    assert answer.devices == (node("nvidiactl", directory), node("nvidia7", directory))


def test_a_second_replica_is_refused_where_it_would_give_nothing() -> None:
    resource = Resource("nvidia.com/gpu", (G0, G1), {G0.uuid: 4}, "time-slicing", True)
    assert allocate(resource, (f"{G0.uuid}::0",), Settings(), HOST)
    with pytest.raises(RequestError, match="maximum request size for shared resources is 1"):
        allocate(resource, (f"{G0.uuid}::0", G1.uuid), Settings(), HOST)
    whole = Resource("nvidia.com/gpu", (G0, G1), {}, "none", True)
    assert allocate(whole, BOTH, Settings(), HOST) == Answer(ENVVAR)


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(RequestError, match=r"nvidia\.com/gpu has no device GPU-x"):
        allocate(GPUS, ("GPU-x",), Settings(), HOST)


def test_a_channel_that_does_not_exist_is_left_out_unless_it_is_required() -> None:
    bare = HostFacts("/dev", frozenset({"nvidiactl"}))
    assert allocate(GPUS, BOTH, Settings(imex_channels=(0,)), bare) == Answer(ENVVAR)
    required = Settings(imex_channels=(0,), imex_required=True)
    with pytest.raises(HostError, match="IMEX channel 0 does not exist"):
        allocate(GPUS, BOTH, required, bare)


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", "cdi-annotations"])
@pytest.mark.parametrize("names", ["uuid", "index"])
@pytest.mark.parametrize("resource", [GPUS, Resource("nvidia.com/mig-1g.5gb", (PART,), {})])
def test_nvhooks_own_runtime_gives_a_container_what_the_answer_says(
    strategy: ListStrategy, names: IdStrategy, resource: Resource
) -> None:
    settings = Settings(
        list_strategies=(strategy,), id_strategy=names, gds=True, imex_channels=(0,)
    )
    answer = allocate(resource, resource.ids[:1], settings, HOST)
    container = ContainerConfig(
        {"NVIDIA_VISIBLE_DEVICES": "all", **answer.envs},  # every CUDA image says so
        "/root",
        mounts=tuple((each.host_path, each.container_path) for each in answer.mounts),
        annotations={**answer.annotations},
    )
    request = from_container(container, Config(accept_volume_mounts=True))
    assert request is not None
    assert select(request.devices, host(G0, G1, mig_devices=(PART,))) == resource.devices[:1]
    others = {f"{KIND}/gds=all", f"{KIND}/imex-channel=0"}
    by_name = others.issubset(request.cdi_devices)
    assert by_name or (request.features, request.imex_channels) == (("gds",), ("0",))
