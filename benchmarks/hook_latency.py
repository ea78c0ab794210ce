"""What the hook adds to a container's start: interleaved, in one run, as ratios.

    sudo .venv/bin/python benchmarks/hook_latency.py [--rounds 200] [--view v2] [--json]

Rows, each measured once per round in random order, medians of processor time and of the clock:
  runc create+start+delete without a hook, with nvhook when it has recorded nothing and when it has,
  and with a static C hook that knows beforehand and does the same mounts, nodes and rules (the
  floor): one GPU in a Debian root, in one with 1,300 more libraries, and 8 GPUs;
  the hook process alone for a container without a GPU, /bin/true, and the bare interpreter the
  hook uses (python3 -I -S -c pass).
Every cycle has a fresh overlay whose upper layer is in memory: what a disk does is not the hook's.
What runc create takes by the clock is spread over ten milliseconds, because moving a process into
a cgroup waits for a grace period of the kernel; Linux 6.17 does without that wait once cgroup2 was
mounted with favordynmods, until the next boot. Hence the many rounds, and processor time first.
Needs root, runc, gcc (musl-gcc for a floor that is linked as the launcher is), and the Debian root
that scripts/debian-root.sh makes.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bundles import (
    HOOK,
    Bundle,
    Taken,
    bare_interpreter,
    debian_root,
    enter,
    interleaved,
    nothing_recorded,
    options,
    run,
)
from figures import Ratio, Row, report
from floor import Floor

from nvhook import config as configuration
from nvhook.sim import driver, elf_writer

LIBRARIES = 1300
# What is started: title, base, whether the root is the large one, GPUs of the host, what is asked.
KINDS = {
    "small": ("Debian root, 1 GPU", "small plain", False, 4, "1"),
    "large": ("1,300 more libraries, 1 GPU", "large plain", True, 4, "1"),
    "eight": ("Debian root, 8 GPUs", "small plain", False, 8, "all"),
}
HOOKS = {"first": "nvhook, first start", "repeated": "nvhook, repeated start", "floor": "floor"}


def main() -> None:
    """Measure and print the table."""
    given = options(__doc__, 200).parse_args()
    enter(given.view)
    with (
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-") as directory,
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-", dir="/dev/shm") as memory,
    ):
        actions, libc = prepare(Path(directory), Path(memory))
        times = interleaved(actions, given.rounds)
    python = Row("python", "bare interpreter")
    nothing, true = Row("no GPU", "nvhook, no GPU asked"), Row("true", "/bin/true")
    sections: dict[str, list[Row]] = {}
    ratios = []
    for kind, (title, base, *_) in KINDS.items():
        rows = {hook: Row(f"{kind} {hook}", label, base) for hook, label in HOOKS.items()}
        plain = [Row(base, "runc without a hook")] if base.startswith(kind) else []
        sections[title] = [*plain, *rows.values()]
        ratios.append(
            Ratio(rows["repeated"], rows["floor"], f"{kind}: repeated added / floor added", 1.5)
        )
        if kind == "small":
            ratios.append(Ratio(rows["first"], python, "small: first added / interpreter", 3.5))
    ratios.append(Ratio(nothing, true, "no GPU / true", 1))
    sections["The process alone"] = [nothing, true, python]
    report(times, sections, ratios, f"floor linked with {libc}", given.json)


def prepare(work: Path, memory: Path) -> tuple[dict[str, Callable[[], Taken]], str]:
    """Return what is measured, by name, and what the floor is linked with."""
    small = debian_root()
    roots = {False: small, True: large_root(small, work)}
    idle = Bundle(memory, "idle", small, [], [])
    floor = Floor(work, idle)
    actions: dict[str, Callable[[], Taken]] = {}
    for kind, (_, base, is_large, gpus, devices) in KINDS.items():
        root = roots[is_large]
        config = driver.create(str(work / f"sim-{gpus}"), gpus)
        hook = [str(HOOK), "hook", "prestart", "--config", config]
        env = [f"NVIDIA_VISIBLE_DEVICES={devices}"]
        if base not in actions:
            actions[base] = Bundle(memory, base.replace(" ", "-"), root, env, []).cycle
        first = Bundle(memory, f"{kind}-first", root, env, hook)
        actions[f"{kind} first"] = partial(cycle_of_first, first)
        actions[f"{kind} repeated"] = Bundle(memory, f"{kind}-repeated", root, env, hook).cycle
        name = f"{kind}-floor"
        settings = configuration.load(config)
        words = floor.hook(kind, settings, devices, root, memory / name / "rootfs")
        actions[f"{kind} floor"] = Bundle(memory, name, root, env, words).cycle
    state = json.dumps(
        {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 2, "bundle": str(idle.path)}
    ).encode()
    no_gpu = [str(HOOK), "hook", "prestart", "--config", str(work / "sim-4/config.toml")]
    actions["no GPU"] = lambda: run(*no_gpu, stdin=state)
    actions["true"] = lambda: run("/bin/true")
    actions["python"] = lambda: run(*bare_interpreter())
    return actions, floor.libc


def cycle_of_first(bundle: Bundle) -> Taken:
    """Return what the life of a container takes that nvhook has recorded nothing of."""
    with nothing_recorded():
        return bundle.cycle()


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


if __name__ == "__main__":
    main()
