"""Settings, hosts and signals change below a running plugin."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.sim.machine import gpu_uuid
from tests.kubelet.machines import cpu_seconds
from tests.kubelet.plugin import Plugin, until
from tests.kubelet.scripted import ScriptedKubelet

Machine = Callable[..., Path]
Start = Callable[..., Plugin]
GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
SETTINGS = """
version: v1
sharing:
  timeSlicing:
    renameByDefault: {rename}
    resources:
    - name: nvidia.com/gpu
      replicas: {replicas}
"""


def test_without_a_driver_it_ends_with_one_line(
    kubelet: ScriptedKubelet, machine: Machine, short_directory: Path
) -> None:
    config = machine(gpus=1)
    _unload(short_directory)
    command = [str(Path(sys.executable).with_name("nvhook")), "device-plugin"]
    result = subprocess.run(
        [*command, f"--config={config}", f"--kubelet-socket={kubelet.socket}"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert result.returncode == 1
    assert re.fullmatch(r"nvhook: no NVIDIA driver is loaded: .*\n", result.stderr)


def test_a_driver_that_is_loaded_later_is_found(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    config = machine(gpus=2)
    load = _unload(short_directory)
    running = plugin(config, "--fail-on-init-error=false")
    running.wait_for_log("no NVIDIA driver is loaded")
    assert running.get("/readyz")[0] == 200, "a node without a GPU is no failure"
    load()
    kubelet.wait_for_list()
    assert kubelet.allocatable() == 2


def test_a_driver_that_is_reloaded_takes_its_gpus_away_and_brings_them_back(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    running = plugin(machine(gpus=2))
    running.wait_for_log("NVML watches the GPUs")
    endpoint = kubelet.wait_for_list()
    load = _unload(short_directory)
    kubelet.wait_for(lambda: kubelet.allocatable() == 0)
    until(lambda: not running.children(), 5, lambda: "NVML is still in use")
    assert kubelet.capacity() == 2
    reasons = json.loads(running.get("/healthz")[1])["unhealthy"]
    assert set(reasons) == {gpu_uuid(0), gpu_uuid(1)}
    assert all("no NVIDIA driver is loaded" in reason for reason in reasons.values())
    assert running.metric("nvhook_devices", resource=GPU, health="unhealthy") == 2
    load()
    kubelet.wait_for(lambda: kubelet.allocatable() == 2, 40)
    assert endpoint.connected
    assert running.metric("nvhook_devices", resource=GPU, health="unhealthy") == 0


def test_a_gpu_that_is_unplugged_leaves_the_list_and_comes_back(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    plugin(machine(gpus=3))
    endpoint = kubelet.wait_for_list()
    gpus = short_directory / "sim/proc/driver/nvidia/gpus"
    unplugged = sorted(gpus.iterdir())[1]
    unplugged.rename(short_directory / "unplugged")
    kubelet.wait_for(lambda: kubelet.capacity() == 2)
    assert set(endpoint.devices) == {gpu_uuid(0), gpu_uuid(2)}
    (short_directory / "unplugged").rename(unplugged)
    kubelet.wait_for(lambda: kubelet.capacity() == 3)
    assert endpoint.connected
    assert len(kubelet.registrations) == 1


def test_new_settings_take_effect_at_sighup(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    file = short_directory / "plugin.yaml"
    file.write_text(SETTINGS.format(rename="false", replicas=2))
    running = plugin(machine(gpus=1), f"--config-file={file}")
    endpoint = kubelet.wait_for_list()
    assert sorted(endpoint.devices) == [f"{gpu_uuid(0)}::0", f"{gpu_uuid(0)}::1"]

    file.write_text(SETTINGS.format(rename="false", replicas=4))
    running.send(signal.SIGHUP)
    kubelet.wait_for(lambda: kubelet.allocatable() == 4)
    assert endpoint.connected, "the same resource is not registered anew"

    file.write_text(SETTINGS.format(rename="true", replicas=4))
    running.send(signal.SIGHUP)
    kubelet.wait_for_list(SHARED)
    assert kubelet.allocatable(SHARED) == 4
    kubelet.wait_for(lambda: not endpoint.connected)
    assert endpoint.devices == {}, "the last list of a resource that is no more is empty"
    assert endpoint.problem == ""
    assert running.metric("nvhook_devices", resource=GPU) is None


def test_a_broken_file_changes_nothing(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    file = short_directory / "plugin.yaml"
    file.write_text(SETTINGS.format(rename="false", replicas=2))
    running = plugin(machine(gpus=1), f"--config-file={file}")
    kubelet.wait_for_list()
    file.write_text("version: v1\nflags: {migStrategi: none}\n")
    running.send(signal.SIGHUP)
    line = running.wait_for_log("migStrategi")
    assert line["level"] == "error"
    assert "migStrategi" in json.loads(running.get("/healthz")[1])["problems"]["settings"]
    assert kubelet.allocatable() == 2
    file.write_text(SETTINGS.format(rename="false", replicas=3))
    running.send(signal.SIGHUP)
    kubelet.wait_for(lambda: kubelet.allocatable() == 3)
    assert json.loads(running.get("/healthz")[1])["problems"] == {}


def test_what_no_strategy_fits_is_not_served_until_it_fits(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    file = short_directory / "plugin.yaml"
    file.write_text("version: v1\nflags: {migStrategy: mixed}\n")
    config = machine(gpus=2, mig=["3g.40gb", "1g.10gb"], mig_gpus=[0])
    running = plugin(config, f"--config-file={file}")
    first = kubelet.wait_for_list()
    file.write_text("version: v1\nflags: {migStrategy: single}\n")
    running.send(signal.SIGHUP)
    assert running.wait_for_log("MIG strategy single")["level"] == "error"
    kubelet.wait_for(lambda: not first.connected)
    assert first.devices == {}
    status, text = running.get("/readyz")
    assert (status, [*json.loads(text)["problems"]]) == (503, ["fit"])
    assert running.get("/healthz")[0] == 200
    file.write_text("version: v1\nflags: {migStrategy: mixed}\n")
    running.send(signal.SIGHUP)
    kubelet.wait_for(lambda: kubelet.endpoints[GPU] is not first)
    kubelet.wait_for_list()
    assert kubelet.allocatable() == 1
    until(lambda: running.get("/readyz")[0] == 200, 5)


def test_a_kubelet_directory_that_is_lost_is_not_ready_and_then_not_healthy(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    running = plugin(
        machine(gpus=1), before="from nvhook.kubelet import daemon; daemon.LASTING = 3"
    )
    kubelet.wait_for_list()
    kubelet.stop()
    kept = kubelet.directory.rename(short_directory / "kept")
    kubelet.directory.write_text("")
    running.send(signal.SIGHUP)
    running.wait_for_log("can't use the kubelet's directory")
    status, text = running.get("/readyz")
    assert (status, [*json.loads(text)["problems"]]) == (503, ["serving"])
    assert running.get("/healthz")[0] == 200
    until(lambda: running.get("/healthz")[0] == 503, 5)
    kubelet.directory.unlink()
    kept.rename(kubelet.directory)
    kubelet.start()
    running.send(signal.SIGHUP)
    kubelet.wait_for_list()
    until(lambda: running.get("/readyz")[0] == running.get("/healthz")[0] == 200, 5)


def test_without_their_cdi_spec_devices_are_unhealthy(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    cdi = short_directory / "cdi"
    cdi.write_text("a file where the directory should be")
    running = plugin(machine(gpus=2), "--device-list-strategy=cdi-cri")
    endpoint = kubelet.wait_for_list()
    assert endpoint.devices == {gpu_uuid(0): False, gpu_uuid(1): False}
    status, text = running.get("/readyz")
    assert (status, [*json.loads(text)["problems"]]) == (503, ["cdi"])
    cdi.unlink()
    running.send(signal.SIGHUP)
    kubelet.wait_for(lambda: kubelet.allocatable() == 2)
    until(lambda: running.get("/readyz")[0] == 200, 5)


def test_another_partition_makes_other_resources(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    large, small = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"
    running = plugin(machine(gpus=1, mig=["3g.40gb", "3g.40gb"]), "--mig-strategy=mixed")
    endpoint = kubelet.wait_for_list(large)
    machine(gpus=1, mig=["1g.10gb"] * 3)
    running.send(signal.SIGHUP)
    kubelet.wait_for_list(small)
    assert kubelet.allocatable(small) == 3
    kubelet.wait_for(lambda: not endpoint.connected)
    assert endpoint.devices == {}
    ids, answer = kubelet.admit(1, small)
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": ids[0]}


def test_where_nvml_can_not_be_seen_gpus_are_served_and_not_watched(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, short_directory: Path
) -> None:
    config = machine(gpus=2)
    for path in (short_directory / "sim/root").rglob("libnvidia-ml.so*"):
        path.unlink()
    running = plugin(config)
    kubelet.wait_for_list()
    assert kubelet.allocatable() == 2
    assert running.wait_for_log("health is not watched")["level"] == "warning"
    assert running.children() == []


def test_a_kubelet_directory_that_can_not_be_used_is_one_line(
    machine: Machine, short_directory: Path
) -> None:
    (short_directory / "file").write_text("")
    running = Plugin(machine(gpus=1), short_directory / "file/kubelet.sock")
    assert running.wait(20) == 1
    (line,) = running.noise
    assert line.startswith("nvhook: can't use the kubelet's directory")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_signals_that_stop_it_stop_it_well(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start, number: signal.Signals
) -> None:
    running = plugin(machine(gpus=1))
    kubelet.wait_for_list()
    assert running.stop(number) == 0


def test_it_tells_prometheus_what_it_does(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    running = plugin(machine(gpus=2))
    kubelet.wait_for_list()
    kubelet.admit(1)
    kubelet.admit(1)
    assert running.metric("nvhook_devices", resource=GPU, health="healthy") == 2
    assert running.metric("nvhook_devices", resource=GPU, health="unhealthy") == 0
    assert running.metric("nvhook_kubelet_streams", resource=GPU) == 1
    allocations = {"resource": GPU, "method": "Allocate"}
    name = "nvhook_request_seconds_count"
    assert running.metric(name, outcome="ok", **allocations) == 2
    with pytest.raises(Exception, match="has no device GPU-of-another"):
        kubelet.allocate(["GPU-of-another"])
    assert running.metric(name, outcome="error", **allocations) == 1
    assert running.metric("nvhook_scan_seconds_count", outcome="ok") >= 1
    assert running.metric("process_resident_memory_bytes") > 1 << 20
    kubelet.stop()
    until(lambda: running.metric("nvhook_kubelet_streams", resource=GPU) == 0, 5)
    until(lambda: running.get("/readyz")[0] == 503, 10)
    assert running.get("/healthz")[0] == 200
    kubelet.start()


def test_what_is_no_http_harms_nothing(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    running = plugin(machine(gpus=1))
    port = running.wait_for_log("serving metrics")["port"]
    for data in (b"", b"\0" * 64, b"GET", b"POST /metrics HTTP/1.1\r\n\r\n", b"A" * 100_000):
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(data)
    assert running.get("/nothing") == (404, "try /metrics, /healthz, /readyz\n")
    assert running.get("/healthz")[0] == 200
    assert running.log[-1]["level"] == "info"


def test_an_idle_plugin_costs_nothing(
    kubelet: ScriptedKubelet, machine: Machine, plugin: Start
) -> None:
    running = plugin(machine(gpus=8))
    running.wait_for_log("NVML watches the GPUs")
    kubelet.wait_for_list()
    (child,) = running.children()

    def spent() -> float:
        return running.cpu_seconds() + cpu_seconds(int(child))

    before = spent()
    time.sleep(5)
    assert spent() - before < 0.1, "2 % of a core, NVML's process with it"
    assert running.children() == [child]


def _unload(directory: Path) -> Callable[[], None]:
    """Unload the simulated driver; return what loads it again."""
    version = directory / "sim/proc/driver/nvidia/version"
    module = directory / "sim/sys/module/nvidia/version"
    texts = {path: path.read_text() for path in (version, module) if path.exists()}
    for path in texts:
        path.unlink()

    def load() -> None:
        for path, text in texts.items():
            path.write_text(text)

    return load
