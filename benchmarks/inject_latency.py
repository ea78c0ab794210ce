"""What giving a GPU to a running container costs: interleaved, in one run, as ratios.

    sudo .venv/bin/python benchmarks/inject_latency.py [--rounds 40] [--json]

Rows, medians: the commands `nvhook inject` and `nvhook eject` of one simulated GPU, warm, into one
runc container of a Debian root; the bare interpreter with the command line's imports; and the work
itself, inject and eject by the Python API in a process that has imported everything.
Needs root, runc, and the Debian root that scripts/debian-root.sh makes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nvhook
from nvhook import config
from nvhook.core.request import Request
from nvhook.live.container import LiveContainer
from nvhook.log import Log
from nvhook.sim import driver

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("NVHOOK_TEST_CACHE", "/var/cache/nvhook-tests"))
NVHOOK = Path(sysconfig.get_path("scripts")) / "nvhook"
IMPORTS = "import nvhook.cli, nvhook.cli.inject, nvhook.cli.output"
ROWS = ("inject", "eject", "python and imports", "inject, the work", "eject, the work")


def run(*command: str | Path) -> str:
    """Run a command that must succeed; files, not pipes: a container would keep a pipe open."""
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
        output.seek(0)
        text = output.read().decode()
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {text}")
    return text


def milliseconds(action: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def start(work: Path, name: str) -> int:
    """Start a container on a fresh overlay of the Debian root; return its process."""
    root = CACHE / "debian-root"
    CACHE.mkdir(parents=True, exist_ok=True)
    run(HERE.parent / "scripts/debian-root.sh", root)
    for part in ("upper", "work", "rootfs"):
        (work / part).mkdir()
    layers = f"lowerdir={root},upperdir={work}/upper,workdir={work}/work"
    run("mount", "-t", "overlay", "-o", layers, "overlay", work / "rootfs")
    document = json.loads((HERE / "config.json").read_text())
    document["root"]["path"] = str(work / "rootfs")
    document["process"]["args"] = ["/bin/sleep", "1000"]
    (work / "config.json").write_text(json.dumps(document))
    run("runc", "run", "-d", "-b", work, name)
    return int(json.loads(run("runc", "state", name))["pid"])


def measure(pid: int, path: str, rounds: int) -> dict[str, list[float]]:
    """Return the times of every row."""
    settings = config.load(path)
    log = Log(settings.log_path, "error")
    request = Request(("1",), ("compute", "utility"), "benchmark")

    def inject() -> None:
        with LiveContainer(pid, settings.state_directory) as container:
            inject.inject(container, request, settings, log)

    def eject() -> None:
        with LiveContainer(pid, settings.state_directory) as container:
            eject.eject(container, None, settings)

    words = ("--config", path, "--pid", str(pid))
    actions: dict[str, Callable[[], object]] = {
        "inject": lambda: run(NVHOOK, "inject", *words, "--gpus", "1"),
        "eject": lambda: run(NVHOOK, "eject", *words),
        "python and imports": lambda: run(NVHOOK.with_name("python3"), "-I", "-c", IMPORTS),
        "inject, the work": inject,
        "eject, the work": eject,
    }
    times: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(rounds + 2):
        for name, action in actions.items():
            times[name].append(milliseconds(action))
    return {name: values[2:] for name, values in times.items()}


def report(times: dict[str, list[float]], as_json: bool) -> None:
    """Print medians, and the ratios that are the bars."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = medians["python and imports"]
    ratios = {f"{name} / python and imports": medians[name] / base for name in ("inject", "eject")}
    if as_json:
        print(json.dumps({"medians_ms": medians, "ratios": ratios}, indent=2))
        return
    print(f"nvhook {nvhook.__version__}, medians in ms,", platform.platform())
    for name, value in medians.items():
        print(f"  {name:<20} {value:7.1f}")
    for name, value in ratios.items():
        print(f"  {name:<28} {value:5.2f}")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds, 30 or more for a figure")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    options = parser.parse_args()
    name = f"nvhook-benchmark-inject-{os.getpid()}"
    with (
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-") as directory,
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-", dir="/dev/shm") as memory,
    ):
        path = driver.create(str(Path(directory) / "sim"))
        work = Path(memory)
        try:
            times = measure(start(work, name), path, options.rounds)
        finally:
            for command in (("runc", "delete", "-f", name), ("umount", str(work / "rootfs"))):
                subprocess.run(command, check=False, capture_output=True)
    report(times, options.json)


if __name__ == "__main__":
    main()
