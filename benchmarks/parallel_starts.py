"""What the hook costs where many containers start at once: interleaved, as a ratio.

    sudo .venv/bin/python benchmarks/parallel_starts.py [--rounds 10] [--containers 100]
        [--at-once 16] [--view v2] [--json]

A row is a batch: containers of a Debian root are created, started and deleted, so many at a time,
by runc alone and with nvhook and one GPU each, which has been recorded. A container has failed if
one of its commands did, or if its root has no driver library afterwards.
Needs root, runc, and the Debian root that scripts/debian-root.sh makes.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bundles import HOOK, Bundle, Taken, attempt, debian_root, enter, interleaved, options
from figures import Ratio, Row, report

from nvhook.sim import driver


def main() -> None:
    """Measure and print the table."""
    parser = options(__doc__, 10)
    parser.add_argument("--containers", type=int, default=100, help="of a batch, by default 100")
    parser.add_argument("--at-once", type=int, default=16, help="at a time, by default 16")
    given = parser.parse_args()
    enter(given.view)
    failures: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-") as directory,
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-", dir="/dev/shm") as memory,
    ):
        config = driver.create(str(Path(directory) / "sim"))
        hooks = {"plain": [], "nvhook": [str(HOOK), "hook", "prestart", "--config", config]}
        actions = {}
        for name, hook in hooks.items():
            bundles = [
                Bundle(
                    Path(memory),
                    f"{name}-{number}",
                    debian_root(),
                    ["NVIDIA_VISIBLE_DEVICES=1"],
                    hook,
                )
                for number in range(given.containers)
            ]
            actions[name] = partial(batch, bundles, given.at_once, failures)
        times = interleaved(actions, given.rounds)
    plain, nvhook = Row("plain", "runc without a hook"), Row("nvhook", "nvhook", "plain")
    failed = sum(failures.values())
    title = f"{given.containers} containers, {given.at_once} at a time"
    ratio = Ratio(Row("nvhook", ""), plain, "nvhook / runc without a hook", 1.15, "wall")
    notes = f"failed: {failed} (bar 0)"
    report(times, {title: [plain, nvhook]}, [ratio], notes, given.json)
    for what, count in failures.most_common():
        print(f"{count} times: {what}", file=sys.stderr)


def batch(bundles: list[Bundle], at_once: int, failures: Counter[str]) -> Taken:
    """Return what the lives of all the containers take together; count what failed."""
    with ExitStack() as stack:
        for bundle in bundles:
            stack.enter_context(bundle.fresh())
        start = Taken.since_boot()
        with ThreadPoolExecutor(at_once) as pool:
            errors = list(pool.map(life, bundles))
        taken = Taken.since_boot().since(start)
        failures.update(
            [error or without_driver(bundle) for error, bundle in zip(errors, bundles, strict=True)]
        )
    del failures[""]
    return taken


def life(bundle: Bundle) -> str:
    """Create, start and delete a container; return what the first command said that failed."""
    errors = [attempt(*command)[1] for command in bundle.commands()]
    return next((error for error in errors if error), "")


def without_driver(bundle: Bundle) -> str:
    """Say if the hook left no mount point for a driver library."""
    has_hook = '"prestart"' in bundle.document
    found = any((bundle.path / "upper").rglob("libcuda.so.*")) or not has_hook
    return "" if found else "no driver library"


if __name__ == "__main__":
    main()
