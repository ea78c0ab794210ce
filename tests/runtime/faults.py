"""A replay whose system calls are refused, or that is killed at one of them, by strace."""

import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.runtime import repeated, snapshot
from tests.runtime.bundle import Bundle
from tests.runtime.engine import Engine

# What changes something. open and openat are among it: of cgroups, of files that are made.
MAKES = {"linkat", "mkdirat", "mknodat", "symlinkat", "renameat", "renameat2", "unlinkat", "fchmod"}
MOUNTS = {"fsopen", "fsconfig", "fsmount", "open_tree", "mount_setattr", "move_mount", "umount2"}
ENTERS = {"setns", "unshare", "setfsuid", "setfsgid", "bpf", "write", "open", "openat", "openat2"}
CHANGES = MAKES | MOUNTS | ENTERS
# What can't fail, or whose failure nobody looks at.
NEVER = {"execve", "exit_group", "arch_prctl", "set_tid_address", "brk", "madvise", "munmap"}
NEVER |= {"close", "geteuid", "getegid", "getpid", "umask"}
_CALL = re.compile(r"^\d+ +(\w+)\(")
# The parts of a snapshot that what a killed start leaves in an image does not change.
_GIVEN = ("mount ", "at ", "devices.list", "program")


@dataclass(frozen=True)
class Fault:
    """What happens at the number-th call (from 1) of a name; lasting: at every later one, too."""

    call: str
    number: int
    kills: bool = False
    lasts: bool = False

    def __str__(self) -> str:
        what = "killed" if self.kills else "refused"
        return f"{what} at {self.call} {self.number}{' and later' if self.lasts else ''}"

    @property
    def option(self) -> str:
        """The argument of strace."""
        error = "ENOMEM" if self.call == "mmap" else "EPERM"
        what = "signal=KILL" if self.kills else f"error={error}"
        return f"inject={self.call}:{what}:when={self.number}{'+' if self.lasts else ''}"


class Faulty:
    """A container that a recording is there for, and its hook under strace."""

    def __init__(self, engine: Engine, bundle: Bundle) -> None:
        self.engine = engine
        self.bundle = bundle
        self.strace = shutil.which("strace")
        assert self.strace, "needs strace"
        self.trace = bundle.directory / "trace"
        self.kept = repeated.Kept(bundle)
        self.before = snapshot.files("image", bundle.seen_root)
        self.kept.restore()
        hook = bundle.config["hooks"]["prestart"][-1]
        self._hook, self._words = hook, [hook["path"], *hook["args"][1:]]
        engine.prepare(bundle)
        repeated.settle(bundle)
        first = repeated.Start(engine, bundle)
        assert first.is_created, first.output
        self.seen = first.seen
        self.mounts = engine.view.mounts()
        self.calls = self._count()

    def _start(self, *options: str) -> repeated.Start:
        self.kept.restore()
        self._hook["path"] = self.strace
        self._hook["args"] = ["strace", "-f", "-o", str(self.trace), *options, *self._words]
        self.engine.prepare(self.bundle)
        return repeated.Start(self.engine, self.bundle)

    def _count(self) -> Counter[str]:
        """Return how often a replay that nothing disturbs makes each call."""
        start = self._start()
        assert start.is_replayed, start.log + start.output
        assert snapshot.differences(start.seen, self.seen) == []
        found = [_CALL.match(line) for line in self.trace.read_text().splitlines()]
        return Counter(match[1] for match in found if match)

    def points(self, kills: bool) -> Iterator[Fault]:
        """Yield each call of a replay that is worth it."""
        for call, count in sorted(self.calls.items()):
            if call in CHANGES or (not kills and call not in NEVER):
                for number in range(1, count + 1):
                    yield Fault(call, number, kills)

    def lasting(self) -> Iterator[Fault]:
        """Yield refusals that Python meets, too: from the first, and from the middle on."""
        for call in sorted((CHANGES & self.calls.keys()) - {"open", "openat", "write"}):
            for number in sorted({1, (self.calls[call] + 1) // 2}):
                yield Fault(call, number, lasts=True)

    def check(self, fault: Fault) -> str:
        """Start the container with a fault; return what came of it.

        Raises: AssertionError if it is half a container, or something is left on the host.
        """
        start = self._start("-e", f"trace={fault.call}", "-e", fault.option)
        assert "INJECTED" in self.trace.read_text() or fault.kills, f"{fault} did not happen"
        assert self.engine.view.mounts() == self.mounts, f"{fault}: mounts are left"
        for _ in range(100):  # of a busy machine: the kernel may still be ending a process
            if not self.engine.view.cgroups():
                break
            time.sleep(0.02)
        assert self.engine.view.cgroups() == [], f"{fault}: cgroups are left"
        if fault.kills:
            assert not start.is_created, f"{fault}: the container is there"
            self._start_again(fault)
            return "killed"
        if start.is_created:
            different = snapshot.differences(start.seen, self.seen)
            if fault.call == "linkat":  # then a file is made in the place of a link
                different = [line for line in different if not line.startswith(snapshot.LINKS)]
            assert different == [], f"{fault}: half a container\n" + "\n".join(different[:9])
            assert not start.errors, f"{fault}: {start.log}"
            return "repeated" if start.is_replayed else "by Python"
        lines = [line for line in start.output.splitlines() if "nvhook: " in line]
        assert len(lines) == 1, f"{fault}: not one line but\n{start.output}"
        assert "internal error" not in lines[0], f"{fault}: {lines[0]}"
        different = snapshot.differences(start.seen, self.before)
        assert different == [], f"{fault}: not undone\n" + "\n".join(different[:9])
        return "refused"

    def _start_again(self, fault: Fault) -> None:
        """Start it where the killed start has left what it had made in the image."""
        self._hook["path"] = self._words[0]
        self._hook["args"] = ["nvhook", *self._words[1:]]
        self.engine.prepare(self.bundle)
        again = repeated.Start(self.engine, self.bundle)
        assert again.is_created, f"{fault}: {again.output}"
        given, wanted = [
            {key: value for key, value in seen.items() if key.startswith(_GIVEN)}
            for seen in (again.seen, self.seen)
        ]
        different = snapshot.differences(given, wanted)
        assert different == [], f"{fault}: not all the next time\n" + "\n".join(different[:9])

    def end(self) -> None:
        """Remove the copy of the root."""
        self.kept.end()
