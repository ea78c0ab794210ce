"""The checks behind check.sh: ``check.py WORK``, the directory that check.sh prepared.

Prints one JSON report; exit status as in check.sh. Needs the standard library only.
"""

import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import host_view
import in_container
import on_host
import timing
from container import Machine, OutOfTimeError
from findings import Findings, NotRunError, WrongError, expect

Step = Callable[[Findings], str]
STATES = ("ok", "failed", "not run")
STEPS: tuple[tuple[str, Step], ...] = (
    ("install", on_host.install),
    ("list", on_host.list_gpus),
    ("plan", on_host.plan_one),
    ("list-as-nvidia-smi", on_host.list_as_nvidia_smi),
    ("runc-runs", in_container.runc_runs),
    ("gpu-container", in_container.gpu_container),
    ("gpu-nvidia-smi", in_container.gpu_nvidia_smi),
    ("gpu-loader", in_container.gpu_loader),
    ("gpu-cuda", in_container.gpu_cuda),
    ("gpu-nodes", in_container.gpu_nodes),
    ("gpu-denied", in_container.gpu_denied),
    ("gpu-proc-params", in_container.gpu_proc_params),
    ("gpu-proc-gpus", in_container.gpu_proc_gpus),
    ("none-container", in_container.none_container),
    ("none-denied", in_container.none_denied),
    ("void-untouched", in_container.void_untouched),
    ("unset-untouched", in_container.unset_untouched),
    ("unknown-gpu-refused", in_container.unknown_refused),
    ("timing", timing.measure),
)


class Report:
    """The result of every check, in order."""

    def __init__(self, known: Findings) -> None:
        self.known = known
        self.results: list[dict[str, str]] = []

    def add(self, name: str, step: Step) -> None:
        """Make a check."""
        try:
            status, seen = "ok", step(self.known)
        except WrongError as error:
            status, seen = "failed", str(error)
        except (NotRunError, OutOfTimeError) as error:
            status, seen = "not run", str(error)
        except (LookupError, OSError, TypeError, ValueError) as error:
            # An answer in a form that nothing here expects.
            status, seen = "failed", f"{type(error).__name__}: {error}"
        self.results.append({"name": name, "status": status, "seen": seen})
        line = seen.replace("\n", "; ")[:200]
        print(f"{status:8} {name}: {line}", file=sys.stderr, flush=True)

    def document(self) -> tuple[dict[str, object], int]:
        """Return the report and the exit status."""
        counts = {state: sum(each["status"] == state for each in self.results) for state in STATES}
        status = 1 if counts["failed"] else 3 if counts["not run"] else 0
        known = self.known
        machine = {
            "kernel": platform.release(),
            "system": _system(),
            "python": f"{platform.python_version()} at {sys.executable}",
            "cpus": os.cpu_count(),
            "cgroups": known.cgroups,
            "kernel_driver": known.real,
            "driver_version": known.inventory.get("driver_version"),
            "gpus": [gpu["model"] for gpu in known.inventory.get("gpus", [])],
        }
        document = {
            "ok": status == 0,
            "counts": counts,
            "machine": machine,
            "timing": known.timing,
            "seconds": round(time.monotonic() - known.machine.started, 1),
            "checks": self.results,
        }
        return document, status


def main() -> int:
    """Run the checks and print the report."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    known = Findings(Machine(Path(sys.argv[1])))
    report = Report(known)
    known.cgroups = host_view.enter(known.machine)
    mounts = host_view.mount_table()
    for name, step in STEPS:
        report.add(name, step)
    report.add("host-mount-table", lambda _: _same_mounts(mounts, host_view.mount_table()))
    report.add("nothing-left", _nothing_left)
    document, status = report.document()
    print(json.dumps(document, indent=2))
    return status


def _same_mounts(before: list[str], after: list[str]) -> str:
    new = sorted(set(after) - set(before))
    # Mounts of others go, here too, when somebody removes the directory that they are on.
    lost = [line for line in set(before) - set(after) if os.path.lexists(line.split()[4])]
    seen = "; ".join([*(f"new: {line}" for line in new), *(f"lost: {line}" for line in lost)])
    return expect(not new and not lost, seen[:400] or f"{len(before)} mounts, before and after")


def _nothing_left(known: Findings) -> str:
    listed = known.machine.runc("list", "--quiet")
    expect(listed.status == 0, listed.why())
    left = listed.out.split() + host_view.left(known.machine.name)
    left += [path.name for path in known.machine.work.glob(known.machine.name + "*")]
    return expect(not left, " ".join(left) or "no container, no cgroup, no bundle")


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
