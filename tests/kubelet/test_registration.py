"""The plugin finds the kubelet, and finds it again."""

from collections.abc import Callable
from pathlib import Path

from nvhook.sim.machine import gpu_uuid
from tests.kubelet.plugin import Plugin
from tests.kubelet.scripted import ScriptedKubelet

Machine = Callable[..., Path]
Start = Callable[..., Plugin]
GPU = "nvidia.com/gpu"


def test_the_kubelet_learns_of_every_gpu(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    plugin(machine(gpus=4))
    endpoint = kubelet.wait_for_list()
    assert endpoint.devices == {gpu_uuid(index): True for index in range(4)}
    assert list(endpoint.devices) == [gpu_uuid(index) for index in range(4)]


def test_a_container_gets_the_uuid_of_its_gpu(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    plugin(machine(gpus=2))
    kubelet.wait_for_list()
    ids, answer = kubelet.admit(1)
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": ids[0]}
    assert not answer.mounts
    assert not answer.devices
    assert not answer.annotations
    assert not answer.cdi_devices
