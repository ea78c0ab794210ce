"""What nvhook-runtime adds to a runtime's calls: interleaved, in one run, as ratios.

    sudo .venv/bin/python benchmarks/handler_latency.py [--rounds 40] [--nvidia COMMAND]

Rows, each measured once per round in random order, medians printed: runc and nvhook-runtime for
state, kill and the create of a container with one GPU (mounts by the hook, and in the spec) on a
Debian root; the bare interpreter. With --nvidia, a command that runs NVIDIA's runtime, configured
for this machine, is measured beside them.
Needs root, runc, and the Debian root that scripts/debian-root.sh makes.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shlex
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from bundles import HOOK, Bundle, bare_interpreter, debian_root, milliseconds, run

import nvhook
from nvhook.sim import driver


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds, 30 or more for a figure")
    parser.add_argument("--nvidia", default="", help="NVIDIA's runtime, with what configures it")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-") as directory,
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-", dir="/dev/shm") as memory,
    ):
        times = measure(Path(directory), Path(memory), options.rounds, shlex.split(options.nvidia))
    report(times, options.rounds, options.json)


def measure(work: Path, memory: Path, rounds: int, nvidia: list[str]) -> dict[str, list[float]]:
    """Run all rows for some rounds."""
    root = debian_root()
    by_hook = Path(driver.create(str(work / "sim")))
    in_spec = work / "spec.toml"
    in_spec.write_text(by_hook.read_text() + 'handler.mounts = "spec"\n')

    def handler(config: Path) -> list[str]:
        return ["env", f"NVHOOK_CONFIG={config}", str(HOOK.with_name("nvhook-runtime"))]

    # Through env, too: what it costs is not the runtime's.
    runtimes = {"runc": ["env", "runc"], "nvhook": handler(by_hook)}
    creators = {**runtimes, "nvhook (spec)": handler(in_spec)}
    if nvidia:
        creators["NVIDIA"] = ["env", *nvidia]
    ask = ["NVIDIA_VISIBLE_DEVICES=1"]
    running = Bundle(memory, "running", root, ask, [])
    actions: dict[str, Callable[[], float]] = {}
    for name, command in creators.items():
        bundle = Bundle(memory, f"create{len(actions)}", root, ask, [])
        actions[f"create {name}"] = lambda bundle=bundle, command=command: bundle.create(*command)
    for name, command in runtimes.items():
        for verb in (["state", running.id], ["kill", running.id, "CONT"]):
            words = [*command, *verb]
            actions[f"{verb[0]} {name}"] = lambda words=words: milliseconds(lambda: run(*words))
    actions["python"] = lambda: milliseconds(lambda: run(*bare_interpreter()))
    times: dict[str, list[float]] = {name: [] for name in actions}
    with running.fresh():
        run("runc", "create", "-b", running.path, running.id)
        try:
            for _ in range(rounds + 2):
                for name in random.sample(list(actions), len(actions)):
                    times[name].append(actions[name]())
        finally:
            run("runc", "delete", "-f", running.id)
    return {name: values[2:] for name, values in times.items()}


def report(times: dict[str, list[float]], rounds: int, as_json: bool) -> None:
    """Print medians and the ratios that are the bars; differences are taken round by round."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    added = {
        name: statistics.median(
            a - b for a, b in zip(times[name], times[f"{name.split()[0]} runc"], strict=True)
        )
        for name in times
        if " " in name and not name.endswith(" runc")
    }
    ratios = {
        f"{verb}: nvhook / runc": medians[f"{verb} nvhook"] / medians[f"{verb} runc"]
        for verb in ("state", "kill")
    }
    for name, value in added.items():
        if name.startswith("create "):
            ratios[f"{name} added / bare interpreter"] = value / medians["python"]
    if as_json:
        print(json.dumps({"medians_ms": medians, "added_ms": added, "ratios": ratios}, indent=2))
        return
    print(f"nvhook {nvhook.__version__}, {rounds} rounds, medians in ms,", platform.platform())
    for name, value in medians.items():
        extra = f"  (+{added[name]:.1f})" if name in added else ""
        print(f"  {name:<22} {value:7.1f}{extra}")
    for name, value in ratios.items():
        print(f"  {name:<44} {value:5.2f}")


if __name__ == "__main__":
    main()
