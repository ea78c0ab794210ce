"""The plugin finds the kubelet, and finds it again."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.sim.machine import gpu_uuid
from tests.kubelet.plugin import Plugin, until
from tests.kubelet.scripted import ScriptedKubelet

Machine = Callable[..., Path]
Start = Callable[..., Plugin]
GPU = "nvidia.com/gpu"
# A lost stream alone makes it register after 1 s: what comes sooner, inotify has told.
SOON = 0.9
THREAD_POOL = 8


def test_the_kubelet_learns_of_every_gpu(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    plugin(machine(gpus=4))
    endpoint = kubelet.wait_for_list()
    assert endpoint.devices == {gpu_uuid(index): True for index in range(4)}
    assert [*endpoint.devices] == [gpu_uuid(index) for index in range(4)]
    assert endpoint.options.get_preferred_allocation_available
    assert not endpoint.options.pre_start_required


def test_a_kubelet_that_starts_again_is_told_at_once(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    plugin(machine(gpus=2))
    kubelet.wait_for_list()
    kubelet.restart()
    endpoint = kubelet.wait_for_list()
    assert endpoint.first_list - kubelet.created < SOON
    assert kubelet.allocatable() == 2
    assert kubelet.admit(1)[1].envs


def test_a_kubelet_that_was_killed_leaves_a_dead_socket_until_it_is_back(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    running = plugin(machine(gpus=1))
    kubelet.wait_for_list()
    kubelet.stop()
    kubelet.socket.unlink(missing_ok=True)
    _leave_dead_socket(kubelet.socket)
    running.wait_for_log("can't register")
    kubelet.start()
    assert kubelet.wait_for_list().first_list - kubelet.created < SOON


def test_a_plugin_waits_for_a_kubelet_that_has_never_run(
    short_directory: Path, machine: Machine
) -> None:
    kubelet = ScriptedKubelet(short_directory / "device-plugins")
    running = Plugin(machine(gpus=1), kubelet.socket)
    try:
        running.wait_for_log("serving metrics")
        assert running.get("/readyz")[0] == 503
        kubelet.start()
        assert kubelet.wait_for_list().first_list - kubelet.created < SOON
        until(lambda: running.get("/readyz")[0] == 200, SOON)
        kubelet.stop()
    finally:
        assert running.stop() == 0


def test_a_socket_that_somebody_removed_is_linked_again_and_not_registered_twice(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    plugin(machine(gpus=1))
    endpoint = kubelet.wait_for_list()
    os.unlink(endpoint.path)
    until(lambda: os.path.exists(endpoint.path), SOON)
    assert kubelet.admit(1)[1].envs
    assert len(kubelet.registrations) == 1
    assert endpoint.connected


def test_a_registration_that_fails_is_tried_again(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    kubelet.refuse = "failed to get device plugin options"
    running = plugin(machine(gpus=1))
    assert "failed to get" in running.wait_for_log("can't register")["reason"]
    kubelet.refuse = ""
    kubelet.wait_for_list(seconds=SOON)
    lines = [line for line in running.log if "can't register" in line["msg"]]
    assert len(lines) == 1, "the same reason is logged once"


def test_a_kubelet_that_hangs_is_given_up_when_another_takes_its_place(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    kubelet.hang = threading.Event()
    running = plugin(machine(gpus=1))
    running.wait_for_log("serving metrics")
    time.sleep(0.3)
    other = ScriptedKubelet(kubelet.directory)
    other.start()
    try:
        assert other.wait_for_list().first_list - other.created < SOON
    finally:
        kubelet.hang.set()
        other.stop()


def test_a_stream_that_the_kubelet_ends_is_asked_for_again(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    plugin(machine(gpus=1))
    first = kubelet.wait_for_list()
    first.stream.cancel()
    kubelet.wait_for(lambda: kubelet.endpoints[GPU] is not first)
    kubelet.wait_for_list()
    assert kubelet.allocatable() == 1


@pytest.mark.parametrize("old_kubelet", [False, True])
def test_in_a_rolling_update_the_new_plugin_stays(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, old_kubelet: bool
) -> None:
    kubelet.disconnects_the_newest = old_kubelet
    config = machine(gpus=2)
    old = plugin(config)
    first = kubelet.wait_for_list()
    plugin(config)
    kubelet.wait_for(lambda: kubelet.endpoints[GPU] is not first)
    kubelet.wait_for_list()
    assert old.stop() == 0
    # An old kubelet now ends the new plugin's stream, too.
    kubelet.wait_for(lambda: not first.connected)
    time.sleep(0.2)
    kubelet.wait_for(lambda: kubelet.endpoints[GPU].connected and kubelet.allocatable() == 2)
    assert kubelet.endpoints[GPU].path != first.path
    assert kubelet.admit(2)[1].envs


def test_every_resource_is_registered(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    config = machine(gpus=2, mig=["3g.40gb", "1g.10gb", "1g.10gb"], mig_gpus=[1])
    plugin(config, "--mig-strategy=mixed")
    for name, count in ((GPU, 1), ("nvidia.com/mig-3g.40gb", 1), ("nvidia.com/mig-1g.10gb", 2)):
        kubelet.wait_for_list(name)
        assert kubelet.allocatable(name) == count
    kubelet.restart()
    for name in (GPU, "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"):
        assert kubelet.wait_for_list(name).first_list - kubelet.created < SOON


def test_what_a_killed_plugin_left_is_removed_and_what_a_running_one_has_is_not(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    config = machine(gpus=1)
    (kubelet.directory / "kubelet_internal_checkpoint").write_text("{}")
    (kubelet.directory / "nvhook-of-somebody").write_text("")
    killed = plugin(config)
    first = kubelet.wait_for_list()
    killed.stop(signal.SIGKILL)
    plugin(config)
    kubelet.wait_for(lambda: kubelet.endpoints[GPU] is not first)
    second = kubelet.wait_for_list()
    names = {entry.name for entry in kubelet.directory.iterdir()}
    assert Path(first.path).name not in names
    assert len([name for name in names if name.startswith("nvhook-")]) == 3
    plugin(config)
    kubelet.wait_for(lambda: kubelet.endpoints[GPU] is not second)
    assert Path(second.path).exists()


def test_nothing_is_left_by_a_plugin_that_ends(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    running = plugin(machine(gpus=1))
    endpoint = kubelet.wait_for_list()
    assert running.stop() == 0
    kubelet.wait_for(lambda: not endpoint.connected)
    assert endpoint.problem == "", "the stream ends without an error"
    assert [entry.name for entry in kubelet.directory.iterdir()] == ["kubelet.sock"]


def test_a_directory_that_is_removed_and_made_again_is_served_again(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    plugin(machine(gpus=1))
    kubelet.wait_for_list()
    kubelet.stop()
    shutil.rmtree(kubelet.directory)  # noqa: TID251 - a directory of this test
    kubelet.start()
    kubelet.wait_for_list()
    assert kubelet.admit(1)[1].envs


def test_a_thousand_restarts_of_the_kubelet_leak_nothing(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    running = plugin(machine(gpus=2))
    running.wait_for_log("NVML watches the GPUs")

    def restart(times: int) -> None:
        for _ in range(times):
            kubelet.restart()
            kubelet.wait_for_list()

    restart(50)
    descriptors, threads, memory = len(running.descriptors()), running.threads(), running.resident()
    restart(950)
    # gRPC keeps a pool of threads, of which some come and go.
    until(
        lambda: (
            len(running.descriptors()) <= descriptors and running.threads() < threads + THREAD_POOL
        ),
        10,
        lambda: f"{running.threads()} threads, were {threads}; {running.descriptors()}",
    )
    assert running.resident() - memory < 20 << 10
    # Of some the kubelet was gone before its answer came.
    assert running.metric("nvhook_registration_seconds_count", outcome="ok") > 900


def _leave_dead_socket(path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
