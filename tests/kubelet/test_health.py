"""GPUs fail in the simulated driver, and the kubelet hears of it."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.sim.machine import gpu_uuid
from tests.kubelet.machines import cpu_seconds
from tests.kubelet.plugin import Plugin
from tests.kubelet.scripted import ScriptedKubelet

Machine = Callable[..., Path]
Start = Callable[..., Plugin]
GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-1g.10gb"
# What is promised, in seconds.
GONE = 5
BACK = 30


@pytest.fixture
def say(short_directory: Path) -> Callable[..., None]:
    """Adds lines to the simulated machine's state."""

    def add(*lines: str) -> None:
        state = short_directory / "sim/state"
        new = state.with_name("state.new")
        new.write_text(state.read_text() + "".join(f"{line}\n" for line in lines))
        new.replace(state)

    return add


def watched(plugin: Plugin) -> Plugin:
    plugin.wait_for_log("NVML watches the GPUs")
    return plugin


def test_a_lost_gpu_leaves_within_5_s_and_is_back_within_30(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, say: Callable[..., None]
) -> None:
    running = watched(plugin(machine(gpus=2)))
    endpoint = kubelet.wait_for_list()
    say("gpu1.status=lost")
    kubelet.wait_for(lambda: endpoint.devices == {gpu_uuid(0): True, gpu_uuid(1): False}, GONE)
    reasons = json.loads(running.get("/healthz")[1])["unhealthy"]
    assert [*reasons] == [gpu_uuid(1)]
    assert running.metric("nvhook_unhealthy", uuid=gpu_uuid(1), reason=reasons[gpu_uuid(1)]) == 1
    assert running.wait_for_log("unhealthy")["reason"] == reasons[gpu_uuid(1)]
    say("gpu1.status=ok")
    kubelet.wait_for(lambda: kubelet.allocatable() == 2, BACK)
    assert running.metric("nvhook_unhealthy", uuid=gpu_uuid(1)) is None
    running.wait_for_log("healthy again")


def test_an_xid_takes_all_replicas_of_its_gpu_and_they_come_back(
    kubelet: ScriptedKubelet,
    machine: Machine,
    plugin: Start,
    say: Callable[..., None],
    short_directory: Path,
) -> None:
    file = short_directory / "plugin.yaml"
    file.write_text(
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    )
    running = watched(plugin(machine(gpus=2), f"--config-file={file}"))
    endpoint = kubelet.wait_for_list()
    say("gpu0.xid=31")  # the program's own fault
    say("gpu0.xid=79")
    kubelet.wait_for(lambda: kubelet.allocatable() == 4, GONE)
    bad = {each for each, good in endpoint.devices.items() if not good}
    assert bad == {f"{gpu_uuid(0)}::{n}" for n in range(4)}
    assert running.metric("nvhook_xids_total", uuid=gpu_uuid(0), xid="79") == 1
    assert running.metric("nvhook_xids_total", uuid=gpu_uuid(0), xid="31") == 1
    kubelet.wait_for(lambda: kubelet.allocatable() == 8, BACK)


def test_an_xid_takes_all_seven_mig_devices_and_they_come_back(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, say: Callable[..., None]
) -> None:
    watched(plugin(machine(gpus=1, mig=["1g.10gb"] * 7), "--mig-strategy=mixed"))
    kubelet.wait_for_list(MIG)
    assert kubelet.allocatable(MIG) == 7
    say("gpu0.xid=79")
    kubelet.wait_for(lambda: kubelet.allocatable(MIG) == 0, GONE)
    assert kubelet.capacity(MIG) == 7
    kubelet.wait_for(lambda: kubelet.allocatable(MIG) == 7, BACK)


def test_a_storm_of_nvml_errors_costs_less_than_2_percent_of_a_core(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, say: Callable[..., None]
) -> None:
    running = watched(plugin(machine(gpus=8)))
    kubelet.wait_for_list()
    say("nvml=storm")
    running.wait_for_log("NVML does not answer")
    before, lines = cpu_seconds(running.pid), len(running.log)
    time.sleep(30)
    assert cpu_seconds(running.pid) - before < 0.6
    assert len(running.log) - lines < 30
    kubelet.wait_for(lambda: kubelet.allocatable() == 0, 5)
    assert kubelet.allocate([gpu_uuid(1)]).envs
    assert kubelet.prefer(2, GPU, [gpu_uuid(5), gpu_uuid(3)]) == [gpu_uuid(3), gpu_uuid(5)]


def test_while_nvml_hangs_requests_are_answered(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, say: Callable[..., None]
) -> None:
    watched(plugin(machine(gpus=4)))
    kubelet.wait_for_list()
    say("nvml=hang")
    time.sleep(1.5)
    kubelet.restart()
    assert kubelet.wait_for_list().first_list - kubelet.created < 2
    assert kubelet.allocatable() == 4
    assert kubelet.admit(2)[1].envs


def test_what_was_bad_is_bad_for_a_kubelet_that_starts_again(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, say: Callable[..., None]
) -> None:
    watched(plugin(machine(gpus=2)))
    kubelet.wait_for_list()
    say("gpu0.status=lost")
    kubelet.wait_for(lambda: kubelet.allocatable() == 1, GONE)
    kubelet.restart()
    assert kubelet.wait_for_list().devices == {gpu_uuid(0): False, gpu_uuid(1): True}
