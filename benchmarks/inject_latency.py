"""What giving a GPU to a running container costs: interleaved, in one run, as ratios.

    sudo .venv/bin/python benchmarks/inject_latency.py [--rounds 40] [--view v2] [--json]

Rows, medians of processor time and of the clock: the commands `nvhook inject` and `nvhook eject` of
one simulated GPU, warm, into one runc container of a Debian root; the bare interpreter with the
command line's imports; and the work itself, inject and eject by the Python API in a process that
has imported everything.
Needs root, runc, and the Debian root that scripts/debian-root.sh makes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bundles import HOOK, WARM_UP, Bundle, Taken, debian_root, enter, options, run
from figures import Ratio, Row, Times, report

from nvhook import config
from nvhook.core.request import Request
from nvhook.live import eject, inject
from nvhook.live.container import LiveContainer
from nvhook.log import Log
from nvhook.sim import driver

IMPORTS = "import nvhook.cli.root, nvhook.cli.inject, nvhook.cli.output, rich.table"


def main() -> None:
    """Measure and print the table."""
    given = options(__doc__, 40).parse_args()
    enter(given.view)
    with (
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-") as directory,
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-", dir="/dev/shm") as memory,
    ):
        path = driver.create(str(Path(directory) / "sim"))
        bundle = Bundle(Path(memory), "inject", debian_root(), [], [], ["/bin/sleep", "1000"])
        with bundle.running() as pid:
            run("runc", "start", bundle.id)
            times = measure(pid, path, given.rounds)
    commands = [Row("inject", "nvhook inject"), Row("eject", "nvhook eject")]
    python = Row("python", "python and imports")
    work = [Row("work of inject", "inject"), Row("work of eject", "eject")]
    sections = {"Commands": [*commands, python], "The work": work}
    ratios = [Ratio(row, python, f"{row.label} / {python.label}") for row in commands]
    report(times, sections, ratios, "a simulated driver", given.json)


def measure(pid: int, path: str, rounds: int) -> Times:
    """Return what every row takes."""
    settings = config.load(path)
    log = Log(settings.log_path, "error")
    request = Request(("1",), ("compute", "utility"), "benchmark")

    def work_of_inject() -> None:
        with LiveContainer(pid, settings.state_directory) as container:
            inject.inject(container, request, settings, log)

    def work_of_eject() -> None:
        with LiveContainer(pid, settings.state_directory) as container:
            eject.eject(container, None, settings)

    words = ("--config", path, "--pid", str(pid))
    # In this order: what one gives, the next takes.
    actions: dict[str, Callable[[], Taken]] = {
        "inject": lambda: run(HOOK, "inject", *words, "--gpus", "1"),
        "eject": lambda: run(HOOK, "eject", *words),
        "python": lambda: run(HOOK.with_name("python3"), "-I", "-c", IMPORTS),
        "work of inject": lambda: here(work_of_inject),
        "work of eject": lambda: here(work_of_eject),
    }
    times: Times = {name: [] for name in actions}
    for _ in range(WARM_UP + rounds):
        for name, action in actions.items():
            times[name].append(action())
    return {name: taken[WARM_UP:] for name, taken in times.items()}


def here(action: Callable[[], None]) -> Taken:
    """Return what a call takes in this process and in the children it waits for."""
    start, own = Taken.since_boot(), time.process_time()
    action()
    taken = Taken.since_boot().since(start)
    return Taken(taken.wall, taken.cpu + (time.process_time() - own) * 1e3)


if __name__ == "__main__":
    main()
