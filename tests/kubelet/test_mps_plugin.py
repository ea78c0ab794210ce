"""GPUs shared by MPS: what the kubelet hears of them follows their daemon."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.sim.machine import gpu_uuid
from tests.kubelet.plugin import Plugin
from tests.kubelet.scripted import ScriptedKubelet

GPU = "nvidia.com/gpu"


@pytest.fixture
def sharing(short_directory: Path, require) -> list[str]:
    require(os.geteuid() == 0, "needs root: compute mode, mount")
    file = short_directory / "plugin.yaml"
    file.write_text(
        "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    )
    return [f"--config-file={file}", f"--mps-root={short_directory}/mps"]


def test_replicas_are_healthy_as_long_as_their_daemon_is(
    kubelet: ScriptedKubelet,
    machine: Callable[..., Path],
    plugin: Callable[..., Plugin],
    sharing: list[str],
    short_directory: Path,
) -> None:
    running = plugin(machine(gpus=2), *sharing)
    pipe = short_directory / "mps" / GPU / "pipe"
    kubelet.wait_for_list()
    kubelet.wait_for(lambda: kubelet.allocatable() == 8, 20)
    _, answer = kubelet.admit(1)
    assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{GPU}/pipe"
    mounted = {each.host_path for each in answer.mounts}
    assert mounted == {str(pipe), f"{short_directory}/mps/shm"}
    os.kill(int((pipe / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    kubelet.wait_for(lambda: kubelet.allocatable() == 0, 5)
    assert (
        "the MPS control daemon ended"
        in json.loads(running.get("/healthz")[1])["unhealthy"][gpu_uuid(1)]
    )
    kubelet.wait_for(lambda: kubelet.allocatable() == 8, 20)
    assert running.stop() == 0
    assert not (pipe / "control").exists()
    modes = [path.read_text() for path in (short_directory / "sim/run").glob("compute-mode.*")]
    assert modes == ["0\n"] * 2
