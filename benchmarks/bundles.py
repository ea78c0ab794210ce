"""What the benchmarks share: bundles on a fresh overlay, a stop-watch, and views of the machine."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("NVHOOK_TEST_CACHE", "/var/cache/nvhook-tests"))
HOOK = Path(sysconfig.get_path("scripts")) / "nvhook"
RECORDINGS = Path("/run/nvhook/recordings")
WARM_UP = 2  # rounds that are not counted
# A cgroup2 mount of its own, not the machine's again: nothing of the machine's changes.
ONLY_V2 = 'umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"'


@dataclass(frozen=True)
class Taken:
    """What something took, in ms: by the clock, and of processors, user and system together.

    The processors' is that of all processes below that have ended and were waited for: a hook's,
    too, but not that of a container which goes on.
    """

    wall: float
    cpu: float

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.wall + other.wall, self.cpu + other.cpu)

    @staticmethod
    def since_boot() -> Taken:
        """Return the clock, and the processor time of all children so far."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Taken(time.perf_counter() * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3)

    def since(self, start: Taken) -> Taken:
        """Return what was taken since a start."""
        return Taken(self.wall - start.wall, self.cpu - start.cpu)


def attempt(*command: str | Path, stdin: bytes = b"") -> tuple[Taken, str]:
    """Run a command; return what it took, and what it said if it failed.

    Files, not pipes: a container would keep a pipe open.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output:
        given.write(stdin)
        given.seek(0)
        start = Taken.since_boot()
        done = subprocess.run(command, stdin=given, stdout=output, stderr=output, check=False)
        taken = Taken.since_boot().since(start)
        output.seek(0)
        said = output.read().decode(errors="replace").strip() if done.returncode else ""
        return taken, said or ("failed without a word" if done.returncode else "")


def run(*command: str | Path, stdin: bytes = b"") -> Taken:
    """Run a command that must succeed; return what it took."""
    taken, error = attempt(*command, stdin=stdin)
    if error:
        sys.exit(f"{' '.join(map(str, command))}: {error}")
    return taken


def output_of(*command: str | Path) -> str:
    """Return what a command prints that must succeed."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def options(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return the options that the benchmarks of starts have in common."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"by default {rounds}")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--view",
        choices=("machine", "v2"),
        default="machine",
        help="v2: with cgroup v2 alone, in a mount namespace of the benchmark's own",
    )
    return parser


def enter(view: str) -> None:
    """Start the script again in a view of the machine's cgroups, unless it is the machine's own."""
    if view != "machine":
        unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ONLY_V2, "sh"]
        os.execvp("unshare", [*unshare, sys.executable, *sys.orig_argv[1:], "--view", "machine"])  # noqa: S606


def cgroups() -> str:
    """Say which cgroups are mounted, and whether moving a process into one waits for the kernel."""
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    lines = [line.split(" - ")[1].split(" ") for line in table]
    v1 = any(kind == "cgroup" and "devices" in words.split(",") for kind, _, words in lines)
    v2 = [words.split(",") for kind, _, words in lines if kind == "cgroup2"]
    name = ("hybrid" if v2 else "v1") if v1 else "v2"
    quick = any("favordynmods" in words for words in v2)
    return f"cgroup {name} {'with' if quick else 'without'} favordynmods"


def debian_root() -> Path:
    """Return the root of a minimal Debian, made if it is not there yet."""
    root = CACHE / "debian-root"
    CACHE.mkdir(parents=True, exist_ok=True)
    run(HERE.parent / "scripts/debian-root.sh", root)
    return root


def bare_interpreter() -> tuple[str, ...]:
    """Return the command of the interpreter the launcher starts: the one behind python3."""
    return (os.path.realpath(HOOK.with_name("python3")), "-I", "-S", "-c", "pass")


@contextmanager
def nothing_recorded() -> Iterator[None]:
    """Put aside what nvhook has recorded of earlier starts: a start meanwhile is a first one."""
    aside = RECORDINGS.with_name("recordings-aside")
    shutil.rmtree(aside, ignore_errors=True)  # noqa: TID251 - left by a run that was killed
    with suppress(FileNotFoundError):
        RECORDINGS.rename(aside)
    try:
        yield
    finally:
        shutil.rmtree(RECORDINGS, ignore_errors=True)  # noqa: TID251 - below /run/nvhook
        with suppress(FileNotFoundError):
            aside.rename(RECORDINGS)


def interleaved(actions: Mapping[str, Callable[[], Taken]], rounds: int) -> dict[str, list[Taken]]:
    """Do each action once per round, in random order; return what each took, by round."""
    taken: dict[str, list[Taken]] = {name: [] for name in actions}
    for number in range(-WARM_UP, rounds):
        for name in random.sample(list(actions), len(actions)):
            each = actions[name]()
            if number >= 0:
                taken[name].append(each)
    return taken


class Bundle:
    """A bundle on a fresh overlay of a root."""

    def __init__(
        self,
        work: Path,
        name: str,
        lower: Path,
        env: list[str],
        hook: list[str],
        args: list[str] | None = None,
    ) -> None:
        self.path = work / name
        self.id = f"nvhook-benchmark-{name}-{os.getpid()}"
        self.lower = lower
        self.rootfs = self.path / "rootfs"
        self.rootfs.mkdir(parents=True)
        document = json.loads((HERE / "config.json").read_text())
        document["process"]["env"] += env
        document["process"]["args"] = args or document["process"]["args"]
        document["root"]["path"] = str(self.rootfs)
        if hook:
            entry = {"path": hook[0], "args": hook, "env": ["PATH=/usr/bin:/bin"]}
            document["hooks"] = {"prestart": [entry]}
        self.document = json.dumps(document)
        self.write()

    def write(self) -> None:
        """Write config.json, also where a runtime has changed it."""
        (self.path / "config.json").write_text(self.document)

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Mount an empty overlay for the duration."""
        for part in ("upper", "work"):
            (self.path / part).mkdir()
        layers = f"lowerdir={self.lower},upperdir={self.path}/upper,workdir={self.path}/work"
        run("mount", "-t", "overlay", "-o", layers, "overlay", self.rootfs)
        try:
            yield
        finally:
            run("umount", self.rootfs)
            for part in ("upper", "work"):
                shutil.rmtree(self.path / part)  # noqa: TID251 - the benchmark's own directory

    def commands(self) -> tuple[tuple[str | Path, ...], ...]:
        """Return the commands of a container's whole life."""
        return (
            ("runc", "create", "-b", self.path, self.id),
            ("runc", "start", self.id),
            ("runc", "delete", "-f", self.id),
        )

    def cycle(self) -> Taken:
        """Return what create, start and delete take."""
        with self.fresh():
            create, start, delete = self.commands()
            return run(*create) + run(*start) + run(*delete)

    def create(self, *runtime: str | Path) -> Taken:
        """Return what a runtime's create takes."""
        self.write()
        with self.fresh():
            taken = run(*runtime, "create", "-b", self.path, self.id)
            run("runc", "delete", "-f", self.id)
        return taken

    @contextmanager
    def running(self) -> Iterator[int]:
        """Create the container for the duration; give its process's number."""
        with self.fresh():
            run("runc", "create", "-b", self.path, self.id)
            try:
                yield int(json.loads(output_of("runc", "state", self.id))["pid"])
            finally:
                run("runc", "delete", "-f", self.id)
