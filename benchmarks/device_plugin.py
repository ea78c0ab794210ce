"""What the device plugin takes: from kubelet.sock to a complete list, its answers, its memory.

    sudo .venv/bin/python -P benchmarks/device_plugin.py [--gpus 8] [--replicas 100] [--json]

Rows, medians and the 99th percentile: a kubelet starts (tests/kubelet/scripted.py) until it has the
list of every device; Allocate of one device; GetPreferredAllocation of one and of four among all;
and GetDevicePluginOptions, which is what gRPC costs by itself, with the kubelet's side in Python.
Resident memory: of the plugin, and of its child that asks NVML. A simulated driver. Needs root.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc

sys.path.append(str(Path(__file__).parent.parent))

from nvhook.sim import driver
from tests.kubelet.plugin import Plugin
from tests.kubelet.scripted import ScriptedKubelet

RESOURCE = "nvidia.com/gpu"
SETTINGS = """
version: v1
sharing:
  timeSlicing:
    resources:
    - {{name: nvidia.com/gpu, replicas: {replicas}}}
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nvk-") as name:
        rows, memory = measure(Path(name), arguments.gpus, arguments.replicas, arguments.rounds)
    if arguments.as_json:
        print(json.dumps({"milliseconds": rows, "resident_mib": memory}))
        return
    print(
        f"{arguments.gpus} GPUs x {arguments.replicas} replicas, {arguments.rounds} rounds;",
        end=" ",
    )
    print(f"Python {platform.python_version()}, grpcio {grpc.__version__}")
    print(f"{'milliseconds':34}{'median':>8}{'p99':>8}{'most':>8}")
    for row, times in rows.items():
        p99 = statistics.quantiles(times, n=100)[98]
        print(f"{row:34}{statistics.median(times):8.2f}{p99:8.2f}{max(times):8.2f}")
    print(f"resident memory, MiB: {', '.join(f'{name} {mib}' for name, mib in memory.items())}")


def measure(
    work: Path, gpus: int, replicas: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the times of every row, and the memory of each process in MiB."""
    config = Path(driver.create(str(work / "sim"), gpus=gpus, report=lambda _: None))
    settings = work / "plugin.yaml"
    settings.write_text(SETTINGS.format(replicas=replicas))
    kubelet = ScriptedKubelet(work / "device-plugins")
    kubelet.start()
    plugin = Plugin(
        config, kubelet.socket, *([f"--config-file={settings}"] if replicas > 1 else [])
    )
    try:
        plugin.wait_for_log("NVML watches the GPUs")
        kubelet.wait_for_list()
        rows = {"kubelet.sock to complete list": [restart(kubelet) for _ in range(rounds // 5)]}
        rows |= answers(kubelet, rounds)
        return rows, resident(plugin.pid)
    finally:
        plugin.stop()
        kubelet.stop()


def restart(kubelet: ScriptedKubelet) -> float:
    """Start the kubelet again; return how long it waited for its list."""
    kubelet.restart()
    endpoint = kubelet.wait_for_list()
    return (endpoint.first_list - kubelet.created) * 1e3


def answers(kubelet: ScriptedKubelet, rounds: int) -> dict[str, list[float]]:
    """Return the times of requests, taken in turn."""
    endpoint = kubelet.endpoints[RESOURCE]
    ids = [*endpoint.devices]
    questions: dict[str, Callable[[], object]] = {
        "GetDevicePluginOptions": lambda: endpoint.call(
            "GetDevicePluginOptions", "DevicePluginOptions"
        ),
        "Allocate, 1 device": lambda: kubelet.allocate(ids[:1]),
        f"GetPreferredAllocation, 1 of {len(ids)}": lambda: kubelet.prefer(1, RESOURCE, ids),
        f"GetPreferredAllocation, 4 of {len(ids)}": lambda: kubelet.prefer(4, RESOURCE, ids),
    }
    times: dict[str, list[float]] = {name: [] for name in questions}
    for _ in range(rounds):
        for name, question in questions.items():
            started = time.perf_counter()
            question()
            times[name].append((time.perf_counter() - started) * 1e3)
    return times


def resident(pid: int) -> dict[str, int]:
    """Return the resident memory of the plugin and of its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        "plugin": _resident(pid),
        "NVML child": sum(_resident(int(child)) for child in children),
    }


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) >> 10
    return 0


if __name__ == "__main__":
    main()
