"""What nvhook-runtime adds to a runtime's calls: interleaved, in one run, as ratios.

    sudo .venv/bin/python benchmarks/handler_latency.py [--rounds 100] [--view v2] [--json]
        [--nvidia COMMAND]

Rows, each measured once per round in random order, medians of processor time and of the clock:
  the create of a container with one GPU on a Debian root, by runc, by nvhook-runtime when nvhook
  has recorded nothing and when it has (mounts by the hook; in the spec), and by runc with a static
  C hook that knows beforehand and does the same (the floor);
  state and kill, by runc and by nvhook-runtime; the bare interpreter.
With --nvidia, a command that runs NVIDIA's runtime, configured for this machine, is measured beside
them. What the clock says of create is spread: hook_latency.py says why.
Needs root, runc, gcc (musl-gcc for a floor that is linked as the launcher is), and the Debian root
that scripts/debian-root.sh makes.
"""

from __future__ import annotations

import shlex
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
from figures import Ratio, Row, Times, report
from floor import Floor

from nvhook import config as configuration
from nvhook.sim import driver

CREATE = {
    "first": "nvhook-runtime, first start",
    "repeated": "nvhook-runtime, repeated",
    "spec": "  mounts in the spec",
    "floor": "runc with the floor",
    "NVIDIA": "NVIDIA's runtime",
}


def main() -> None:
    """Measure and print the table."""
    parser = options(__doc__, 100)
    parser.add_argument("--nvidia", default="", help="NVIDIA's runtime, with what configures it")
    given = parser.parse_args()
    enter(given.view)
    with (
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-") as directory,
        tempfile.TemporaryDirectory(prefix="nvhook-benchmark-", dir="/dev/shm") as memory,
    ):
        nvidia = shlex.split(given.nvidia)
        times, libc = measure(Path(directory), Path(memory), given.rounds, nvidia)
    create = {
        name: Row(f"create {name}", label, "create runc")
        for name, label in CREATE.items()
        if f"create {name}" in times
    }
    verbs = {
        verb: [Row(f"{verb} runc", "runc"), Row(f"{verb} nvhook", "nvhook-runtime", f"{verb} runc")]
        for verb in ("state", "kill")
    }
    python = Row("python", "bare interpreter")
    sections = {"create": [Row("create runc", "runc"), *create.values()], **verbs, "": [python]}
    ratios = [
        Ratio(create["repeated"], create["floor"], "create: repeated added / floor added", 2),
        Ratio(create["first"], python, "create: first added / interpreter"),
    ]
    ratios += [
        Ratio(Row(f"{verb} nvhook", ""), runc, f"{verb}: nvhook-runtime / runc")
        for verb, (runc, _) in verbs.items()
    ]
    report(times, sections, ratios, f"floor linked with {libc}", given.json)


def measure(work: Path, memory: Path, rounds: int, nvidia: list[str]) -> tuple[Times, str]:
    """Run all rows for some rounds; return also what the floor is linked with."""
    root = debian_root()
    by_hook = Path(driver.create(str(work / "sim")))
    in_spec = work / "spec.toml"
    in_spec.write_text(by_hook.read_text() + 'handler.mounts = "spec"\n')

    def handler(config: Path) -> list[str]:
        return ["env", f"NVHOOK_CONFIG={config}", str(HOOK.with_name("nvhook-runtime"))]

    # Through env, too: what it costs is not the runtime's.
    runc = ["env", "runc"]
    creators = {
        "runc": runc,
        "first": handler(by_hook),
        "repeated": handler(by_hook),
        "spec": handler(in_spec),
        "floor": runc,
    }
    if nvidia:
        creators["NVIDIA"] = ["env", *nvidia]
    ask = ["NVIDIA_VISIBLE_DEVICES=1"]
    running = Bundle(memory, "running", root, ask, [])
    floor = Floor(work, running)
    settings = configuration.load(str(by_hook))
    actions: dict[str, Callable[[], Taken]] = {}
    for name, command in creators.items():
        rootfs = memory / f"create-{name}/rootfs"
        hook = floor.hook("create", settings, "1", root, rootfs) if name == "floor" else []
        bundle = Bundle(memory, f"create-{name}", root, ask, hook)
        create = create_of_first if name == "first" else Bundle.create
        actions[f"create {name}"] = partial(create, bundle, *command)
    for name, command in (("runc", runc), ("nvhook", handler(by_hook))):
        for verb in (["state", running.id], ["kill", running.id, "CONT"]):
            words = [*command, *verb]
            actions[f"{verb[0]} {name}"] = partial(run, *words)
    actions["python"] = lambda: run(*bare_interpreter())
    with running.running():
        return interleaved(actions, rounds), floor.libc


def create_of_first(bundle: Bundle, *runtime: str | Path) -> Taken:
    """Return what the create of a container takes that nvhook has recorded nothing of."""
    with nothing_recorded():
        return bundle.create(*runtime)


if __name__ == "__main__":
    main()
