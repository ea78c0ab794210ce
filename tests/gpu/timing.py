"""How long a container takes to start, with the hook and without, in turn."""

import statistics
import sys
import time

from findings import Findings, expect
from in_container import ask

ROUNDS = 15
PLAIN = "container without hook"
GPU = "container with one GPU"
NO_GPU = "container with hook, no GPU asked"
PYTHON = "bare interpreter"


def measure(known: Findings) -> str:
    """Every container of the rounds starts; the times are reported, not judged."""
    known.need_containers()
    asked = ask(known.gpu["index"])
    took: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for kind, environment, hook in (
            (PLAIN, asked, False),
            (GPU, asked, True),
            (NO_GPU, (), True),
        ):
            container = known.machine.container(":", environment, hook)
            done = container.run()
            expect(done.status == 0, f"{kind}: {done.why()}")
            took.setdefault(kind, []).append(container.seconds)
        began = time.perf_counter()
        done = known.machine.run(sys.executable, "-I", "-S", "-c", "pass")
        took.setdefault(PYTHON, []).append(time.perf_counter() - began)
        expect(done.status == 0, f"{PYTHON}: {done.why()}")
    medians = {kind: round(statistics.median(times) * 1000, 2) for kind, times in took.items()}
    added = round(medians[GPU] - medians[PLAIN], 2)
    known.timing = {
        "rounds": ROUNDS,
        "median_ms": medians,
        "hook_adds_ms": added,
        "hook_adds_in_bare_interpreters": round(added / medians[PYTHON], 2),
    }
    return f"the hook adds {added} ms, a bare interpreter takes {medians[PYTHON]} ms"
