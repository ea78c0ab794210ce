"""What the hook adds to a container's start: interleaved, in one run, as ratios.

    sudo .venv/bin/python benchmarks/hook_latency.py [--rounds 200]

Rows, each measured once per round in random order, medians printed:
  runc create+start+delete of a Debian root: without a hook, with nvhook and one GPU, with a static
  C hook that does the same mounts, nodes and rules (the floor); the same for a root with 1,300
  more libraries; the hook process alone for a container without a GPU, /bin/true, and the bare
  interpreter the hook uses (python3 -I -S -c pass).
Every cycle has a fresh overlay whose upper layer is in memory: what a disk does is not the hook's.
What runc create takes without a hook is spread over ten milliseconds, because moving a process into
a cgroup waits for a grace period of the kernel. Hence the many rounds, and the interval that holds
the median with 95 %. Linux 6.17 does without that wait once cgroup2 was mounted with favordynmods,
until the next boot: then the spread is three.
Needs root, runc, gcc, and the Debian root that scripts/debian-root.sh makes.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from bundles import HERE, HOOK, Bundle, bare_interpreter, debian_root, milliseconds, run

import nvhook
from nvhook import config as configuration
from nvhook.core.edits import DeviceNode, LdCacheUpdate, Mount, Symlink
from nvhook.core.layout import container_layout
from nvhook.core.request import Request
from nvhook.create import pipeline
from nvhook.sim import driver, elf_writer

LIBRARIES = 1300


def large_root(small: Path, work: Path) -> Path:
    """Return a copy of a root with many more libraries in its loader cache."""
    root = work / "large"
    run("cp", "-a", small, root)
    directory = root / "usr/lib/x86_64-linux-gnu"
    for number in range(LIBRARIES):
        soname = f"libbenchmark{number}.so.1"
        abi = elf_writer.ABIS[platform.machine()]
        (directory / soname).write_bytes(elf_writer.shared_library(abi, soname, "benchmark"))
    run("/sbin/ldconfig", "-r", root)
    return root


def floor_list(settings: configuration.Config, root: Path, path: Path) -> None:
    """Write the floor's list: what nvhook's plan for GPU 1 comes to."""
    layout = container_layout(platform.machine(), debian=True, has_lib32=False)
    request = Request(("1",), ("compute", "utility"), "benchmark")
    lines = []
    for edit in pipeline.plan_for(request, settings, layout).plan.edits:
        match edit:
            case DeviceNode():
                lines.append(f"d {edit.host_path} {edit.container_path} {edit.major} {edit.minor}")
            case Mount() if edit.host_path and not edit.container_path.startswith("/proc/"):
                lines.append(f"m {edit.host_path} {edit.container_path}")
            case Symlink():
                lines.append(f"l {edit.target} {edit.container_path}")
            case LdCacheUpdate():
                lines.append(f"c {root}/etc/ld.so.cache /etc/ld.so.cache")
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help="rounds, 30 or more for a figure")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-") as directory,
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-", dir="/dev/shm") as memory,
    ):
        measure(Path(directory), Path(memory), options.rounds, options.json)


def measure(work: Path, memory: Path, rounds: int, as_json: bool) -> None:
    """Run all rows for some rounds."""
    small = debian_root()
    large = large_root(small, work)
    config = driver.create(str(work / "sim"))
    settings = configuration.load(config)
    floor = work / "floor"
    run("gcc", "-O2", "-static", "-o", floor, HERE / "floor.c")
    for name, root in (("small", small), ("large", large)):
        floor_list(settings, root, work / f"{name}.list")

    def bundle(name: str, root: Path, env: list[str], hook: list[str]) -> Bundle:
        return Bundle(memory, name, root, env, hook)

    gpu = ["NVIDIA_VISIBLE_DEVICES=1"]
    nvhook_hook = [str(HOOK), "hook", "prestart", "--config", config]
    bundles = {}
    for name, root in (("small", small), ("large", large)):
        floor_hook = [str(floor), str(work / f"{name}.list"), str(memory / f"{name}-floor/rootfs")]
        bundles[f"{name} plain"] = bundle(f"{name}-plain", root, gpu, [])
        bundles[f"{name} nvhook"] = bundle(f"{name}-nvhook", root, gpu, nvhook_hook)
        bundles[f"{name} floor"] = bundle(f"{name}-floor", root, gpu, floor_hook)
    idle = bundle("idle", small, [], [])
    state = json.dumps(
        {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 2, "bundle": str(idle.path)}
    ).encode()

    actions: dict[str, Callable[[], float]] = {name: b.cycle for name, b in bundles.items()}
    actions["true"] = lambda: milliseconds(lambda: run("/bin/true"))
    actions["no GPU"] = lambda: milliseconds(lambda: run(*nvhook_hook, stdin=state))
    actions["python"] = lambda: milliseconds(lambda: run(*bare_interpreter()))
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 2):
        for name in random.sample(list(actions), len(actions)):
            times[name].append(actions[name]())
    times = {name: values[2:] for name, values in times.items()}
    report(times, rounds, as_json)


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, by ranks."""
    ordered = sorted(values)
    half = 0.98 * len(ordered) ** 0.5
    low, high = math.floor(len(ordered) / 2 - half), math.ceil(len(ordered) / 2 + half)
    return ordered[max(low, 0)], ordered[min(high, len(ordered) - 1)]


def report(times: dict[str, list[float]], rounds: int, as_json: bool) -> None:
    """Print medians, what the hooks add, and the ratios that are the bars.

    What a hook adds is the median of its differences to the plain container of the same round: the
    machine's own drift is in both.
    """
    medians = {name: statistics.median(values) for name, values in times.items()}
    differences = {
        f"{size} {kind}": [
            with_hook - plain
            for with_hook, plain in zip(
                times[f"{size} {kind}"], times[f"{size} plain"], strict=True
            )
        ]
        for size in ("small", "large")
        for kind in ("nvhook", "floor")
    }
    added = {name: statistics.median(values) for name, values in differences.items()}
    intervals = {name: interval(values) for name, values in differences.items()}
    ratios = {
        "hook added / bare interpreter": added["small nvhook"] / medians["python"],
        "large root added / small root added": added["large nvhook"] / added["small nvhook"],
        "no GPU / true": medians["no GPU"] / medians["true"],
        "hook added / C floor added": added["small nvhook"] / added["small floor"],
    }
    if as_json:
        figures = {"medians_ms": medians, "added_ms": added, "intervals_ms": intervals}
        print(json.dumps({**figures, "ratios": ratios}, indent=2))
        return
    print(f"nvhook {nvhook.__version__}, {rounds} rounds, medians in ms,", platform.platform())
    for name, value in medians.items():
        extra = ""
        if name in added:
            low, high = intervals[name]
            extra = f"  (+{added[name]:.1f}, {low:.1f} to {high:.1f})"
        print(f"  {name:<14} {value:7.1f}{extra}")
    for name, value in ratios.items():
        print(f"  {name:<38} {value:5.2f}")


if __name__ == "__main__":
    main()
