"""A GPU in MIG mode that has no MIG devices: no use to anyone, until it has some or leaves it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.sim.machine import gpu_uuid
from tests.kubelet.plugin import Plugin
from tests.kubelet.scripted import ScriptedKubelet

Machine = Callable[..., Path]
Start = Callable[..., Plugin]


def say(config: Path, *lines: str) -> None:
    """Add lines to the state of a simulated machine, at once."""
    state = config.with_name("state")
    new = config.with_name("state.new")
    new.write_text(state.read_text() + "".join(f"{line}\n" for line in lines))
    new.replace(state)


@pytest.mark.parametrize("strategy", ["mixed", "single"])
def test_it_leaves_the_list_and_comes_back(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, strategy: str
) -> None:
    config = machine(gpus=2)
    running = plugin(config, f"--mig-strategy={strategy}")
    endpoint = kubelet.wait_for_list()
    assert len(endpoint.devices) == 2
    say(config, "gpu1.mig_mode=1")
    kubelet.wait_for(lambda: [*endpoint.devices] == [gpu_uuid(0)])
    running.wait_for_log("GPU 1 is left out: in MIG mode, but without MIG devices")
    say(config, "gpu1.mig_mode=0")
    kubelet.wait_for(lambda: len(endpoint.devices) == 2)
    assert len(kubelet.registrations) == 1


def test_where_mig_is_not_asked_for_it_stays_a_gpu(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    config = machine(gpus=2)
    say(config, "gpu1.mig_mode=1")
    running = plugin(config)
    running.wait_for_log("NVML watches the GPUs")
    endpoint = kubelet.wait_for_list()
    assert sorted(endpoint.devices) == sorted([gpu_uuid(0), gpu_uuid(1)])
    assert not [line for line in running.log if "left out" in line["msg"]]
