"""What a container gets, by strategy, as the kubelet receives it."""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from nvhook.sim.machine import gpu_uuid
from tests.kubelet.plugin import Plugin
from tests.kubelet.scripted import ScriptedKubelet

Machine = Callable[..., Path]
Start = Callable[..., Plugin]
FIRST, SECOND = gpu_uuid(0), gpu_uuid(1)
CDI = "k8s.device-plugin.nvidia.com/gpu="
VOLUMES = "/var/run/nvidia-container-devices"

# (flags, expected envs, mounts, CDI names in annotations, CDI names)
CASES = {
    "envvar": ((), {"NVIDIA_VISIBLE_DEVICES": f"{FIRST},{SECOND}"}, [], [], []),
    "envvar by index": (
        ("--device-id-strategy=index",),
        {"NVIDIA_VISIBLE_DEVICES": "0,1"},
        [],
        [],
        [],
    ),
    "volume-mounts": (
        ("--device-list-strategy=volume-mounts",),
        {"NVIDIA_VISIBLE_DEVICES": VOLUMES},
        [(f"{VOLUMES}/{uuid}", "/dev/null", True) for uuid in (FIRST, SECOND)],
        [],
        [],
    ),
    "cdi-annotations": (
        ("--device-list-strategy=cdi-annotations",),
        {},
        [],
        [f"{CDI}{FIRST},{CDI}{SECOND}"],
        [],
    ),
    "cdi-cri": (
        ("--device-list-strategy=cdi-cri",),
        {},
        [],
        [],
        [f"{CDI}{FIRST}", f"{CDI}{SECOND}"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_strategy_has_its_answer(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, case: str
) -> None:
    flags, envs, mounts, annotations, names = CASES[case]
    plugin(machine(gpus=2), *flags)
    kubelet.wait_for_list()
    answer = kubelet.allocate([SECOND, FIRST])
    assert dict(answer.envs) == envs
    found = [(each.container_path, each.host_path, each.read_only) for each in answer.mounts]
    assert found == mounts
    assert [*answer.annotations.values()] == annotations
    prefix = "cdi.k8s.io/nvidia-device-plugin_"
    assert all(key.startswith(prefix) for key in answer.annotations)
    assert [each.name for each in answer.cdi_devices] == names
    assert not answer.devices


def test_device_nodes_are_passed_where_they_are_wanted(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    config = machine(gpus=2, minors=[5, 3])
    plugin(config, "--pass-device-specs")
    kubelet.wait_for_list()
    answer = kubelet.allocate([SECOND])
    dev = short_directory / "sim/dev"
    names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia3"]
    assert sorted((each.container_path, each.host_path) for each in answer.devices) == sorted(
        (f"/dev/{name}", f"{dev}/{name}") for name in names
    )
    assert {each.permissions for each in answer.devices} == {"rw"}


def test_the_same_devices_have_the_same_answer_byte_for_byte(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    flags = ("--device-list-strategy=envvar,cdi-annotations", "--gds-enabled", "--mofed-enabled")
    config = machine(gpus=2)
    first = plugin(config, *flags)
    kubelet.wait_for_list()
    answers = {kubelet.allocate([FIRST, SECOND]).SerializeToString() for _ in range(5)}
    first.stop()
    kubelet.restart()
    plugin(config, *flags)
    kubelet.wait_for_list()
    answers.add(kubelet.allocate([FIRST, SECOND]).SerializeToString())
    assert len(answers) == 1


def test_replicas_are_answered_with_their_gpu(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    file = short_directory / "plugin.yaml"
    file.write_text(
        "version: v1\nsharing: {timeSlicing: {failRequestsGreaterThanOne: true,"
        " resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    )
    plugin(machine(gpus=2), f"--config-file={file}")
    kubelet.wait_for_list()
    assert kubelet.capacity() == 8
    answer = kubelet.allocate([f"{SECOND}::3"])
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": SECOND}
    with pytest.raises(grpc.RpcError) as failure:
        kubelet.allocate([f"{FIRST}::0", f"{SECOND}::1"])
    assert "maximum request size for shared resources is 1" in failure.value.details()


@pytest.mark.parametrize("odd", ["GPU-nobody", f"{FIRST}::0", "", "GPU-\N{SNOWMAN}"])
def test_devices_that_do_not_exist_are_refused_with_a_reason(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, odd: str
) -> None:
    plugin(machine(gpus=1))
    kubelet.wait_for_list()
    with pytest.raises(grpc.RpcError) as failure:
        kubelet.allocate([FIRST, odd])
    assert failure.value.code() == grpc.StatusCode.NOT_FOUND
    assert "has no device" in failure.value.details()
    assert kubelet.allocate([FIRST]).envs


def test_bytes_that_are_no_message_are_refused(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    plugin(machine(gpus=1))
    endpoint = kubelet.wait_for_list()
    for method in ("Allocate", "GetPreferredAllocation"):
        call = endpoint.channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
        with pytest.raises(grpc.RpcError) as failure:
            call(b"\xff\xff\xff", timeout=5)
        assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (
        endpoint.call("PreStartContainer", "PreStartContainerResponse", devices_ids=[FIRST])
        is not None
    )


def test_a_mig_device_is_answered_with_its_uuid_and_nodes(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    config = machine(gpus=1, mig=["3g.40gb", "1g.10gb"])
    plugin(config, "--mig-strategy=mixed", "--pass-device-specs")
    name = "nvidia.com/mig-1g.10gb"
    kubelet.wait_for_list(name)
    (uuid,), answer = kubelet.admit(1, name)
    assert uuid.startswith("MIG-")
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": uuid}
    paths = [each.container_path for each in answer.devices]
    assert "/dev/nvidia0" in paths
    assert len([path for path in paths if path.startswith("/dev/nvidia-caps/")]) == 2
