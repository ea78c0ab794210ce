"""A host, an image and containers to be, between whose starts anything may change.

Decides as the hook does (doors/hook.py, to its end), but for the container: nothing is applied, and
what would be is kept; and as the launcher does, by its own C.
"""

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nvhook import observations, state
from nvhook.create import executor, recording, target
from nvhook.doors import hook
from nvhook.errors import HostError, NvhookError
from nvhook.kernel.root_view import RootView
from nvhook.log import Log
from nvhook.sim import driver
from tests.native import repeater

FEATURES = ("gds", "mofed", "gdrcopy", "nvswitch", "imex")
MINORS = (2, 3, 1, 0)
VERSION, NEWER = "550.54.14", "555.42.02"
GPUS = ("0000:04:00.0", "0000:07:00.0", "0000:0a:00.0", "0000:0d:00.0")
TRIPLET = f"{os.uname().machine}-linux-gnu"
ADMIN = ["CAP_SYS_ADMIN"]


@dataclass(frozen=True)
class Kind:
    """A kind of container: its variables, its bounding set, more of linux, the hook's options."""

    variables: tuple[str, ...]
    capabilities: tuple[str, ...] = ()
    devices: tuple[tuple[str, int, int], ...] = ()
    options: tuple[str, ...] = ()

    def config(self) -> bytes:
        nodes = [
            {"path": path, "type": "c", "major": major, "minor": minor}
            for path, major, minor in self.devices
        ]
        return json.dumps(
            {
                "process": {
                    "env": [*self.variables],
                    "capabilities": {"bounding": list(self.capabilities)},
                },
                "root": {"path": "../../image"},
                "linux": {"devices": nodes},
            }
        ).encode()


KINDS = {
    "one": Kind(("NVIDIA_VISIBLE_DEVICES=0",)),
    "all": Kind(
        ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.0 brand=unknown,driver>=470")
    ),
    "utility": Kind(("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=utility")),
    "everything": Kind(("NVIDIA_VISIBLE_DEVICES=0,3", "NVIDIA_DRIVER_CAPABILITIES=all")),
    "no-gpu": Kind(("NVIDIA_VISIBLE_DEVICES=none",)),
    "mig": Kind(("NVIDIA_VISIBLE_DEVICES=0:1",)),
    "manager": Kind(("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MIG_CONFIG_DEVICES=all"), tuple(ADMIN)),
    "features": Kind(
        (
            "NVIDIA_VISIBLE_DEVICES=1",
            "NVIDIA_GDS=enabled",
            "NVIDIA_MOFED=enabled",
            "NVIDIA_GDRCOPY=enabled",
            "NVIDIA_NVSWITCH=enabled",
            "NVIDIA_IMEX_CHANNELS=all",
        ),
        tuple(ADMIN),
    ),
    "delegated": Kind(
        ("NVIDIA_VISIBLE_DEVICES=1",), devices=(("/dev/nvidia3", 195, 3),), options=("--delegated",)
    ),
    "cdi": Kind(
        ("NVIDIA_VISIBLE_DEVICES=void",),
        devices=(("/dev/nvidia3", 195, 3),),
        options=("--cdi", "compute,graphics"),
    ),
    "swarm": Kind(("NVIDIA_VISIBLE_DEVICES=void", "DOCKER_RESOURCE_GPU=1")),
}


@dataclass
class Decision:
    """What a start would do: its operations and files, or why it fails; and its recording."""

    operations: tuple[bytes, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    looks: tuple[bytes, ...] = ()
    error: str = ""
    spoilt: str = ""

    def text(self, without: bytes = b"") -> bytes:
        """Return the recording; without: but for this look."""
        looks = [line for line in self.looks if line != without]
        return b"".join([recording.SCHEMA.encode() + b"\n", *looks, *self.operations, b"end\n"])

    def merges(self) -> list[tuple[str, str]]:
        """Return the path and the basis of each file that becomes another."""
        lines = [each.decode().rstrip("\n").split("\t") for each in self.operations]
        return [(line[1], line[2]) for line in lines if line[0] == "merge"]


class Trial(RootView):
    """A root where nothing is done."""

    live = False

    def attach(self, path: str, source: int) -> bool:
        return True

    def cover(self, path: str, source: int) -> bool:
        return True

    def link(self, path: str, link: str) -> bool:
        return True

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        pass


class World:
    """The directory of it all, on a tmpfs; only for use within ``with world.watched()``."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.host = base / "sim"
        self.image = base / "image"
        settings: dict[str, Any] = {"minors": MINORS, "features": FEATURES, "report": _refuse}
        driver.create(str(self.host), mig=("1g.10gb", "2g.20gb"), mig_gpus=(0,), **settings)
        # What a driver update puts there.
        driver.create(str(base / "newer"), driver_version=NEWER, **settings)
        self.settings = base / "nvhook.toml"
        text = (self.host / "config.toml").read_text()
        lines = [line for line in text.splitlines() if not line.startswith("log-path")]
        self.config_text = "".join(f"{line}\n" for line in [*lines, 'log-path = ""'])
        self.settings.write_text(self.config_text)
        self.image.mkdir()
        for name, kind in KINDS.items():
            (base / "bundles" / name).mkdir(parents=True)
            (base / "bundles" / name / "config.json").write_bytes(kind.config())
        # What the launcher finds beside its recordings.
        self.made: dict[str, bytes] = {}
        self._kept: list[recording.Recording] = []
        self._sources: list[int] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let decisions be made about this world, from the state directory of its own."""
        with ExitStack() as stack:
            for place, name, value in (
                (state, "DIRECTORY", str(self.base / "state")),
                (observations, "_FRESH", 0),
                (hook, "_read_state", lambda limit: self._state),
                (target, "Target", self._target),
                (executor, "apply", self._apply),
                (executor, "keep_over_reload", lambda *_: None),
                (executor, "open_source", self._open_source),
                (executor.mounts, "set_options", lambda mount, options: None),
                (recording.Recording, "keep", lambda made, *_: self._keep(made)),
            ):
                stack.enter_context(patch.object(place, name, value))
            yield

    def tick(self) -> None:
        """Wait for the clock's next tick: of two changes within one, no time stamp tells."""
        clock = self.base / "clock"
        clock.touch()
        before = clock.stat().st_ctime_ns
        while clock.stat().st_ctime_ns == before:
            time.sleep(0.001)
            clock.touch()

    def decide(self, name: str) -> Decision:
        """Decide afresh about a container of a kind."""
        self._state = json.dumps(
            {"id": "c", "pid": os.getpid(), "bundle": str(self.base / "bundles" / name)}
        ).encode()
        arguments = ["prestart", "--config", str(self.settings), *KINDS[name].options]
        self._kept.clear()
        try:
            hook._run(hook._Options(arguments), ["hook", *arguments], Log(""))
        except NvhookError as error:
            return Decision(error=str(error))
        finally:
            observations.end()
            for fd in self._sources:
                os.close(fd)
            self._sources.clear()
        if not self._kept:
            return Decision(error="not recorded")
        (made,) = self._kept
        looks = [
            ("\t".join([*what, answer]) + "\n").encode("utf-8", "surrogateescape")
            for each in (made.notes.of_host, made.notes.of_root)
            for what, answer in each.items()
        ]
        decision = Decision(tuple(made._operations), made._files, tuple(looks))
        decision.spoilt = made.notes.spoilt
        return decision

    def repeats(self, decision: Decision, without: bytes = b"") -> bool:
        """Tell whether the launcher would repeat a decision; without: if it had no such look."""
        if not self.holds(decision, without):
            return False
        return all(map(self._has_source, decision.operations)) and all(
            self._made_name(*merge) in self.made for merge in decision.merges()
        )

    def holds(self, decision: Decision, without: bytes = b"") -> bool:
        """Tell whether all looks give the same answers."""
        root = os.open(self.image, os.O_PATH | os.O_DIRECTORY)
        try:
            return repeater.holds(decision.text(without), root)
        finally:
            os.close(root)

    def otherwise(self, decision: Decision) -> list[bytes]:
        """Return the looks that give other answers now."""
        root = os.open(self.image, os.O_PATH | os.O_DIRECTORY)
        try:
            return [look for look in decision.looks if not repeater.looks_same(look, root)]
        finally:
            os.close(root)

    def differs(self, repeated: Decision, fresh: Decision) -> str:
        """Return what the launcher would do otherwise than Python does now; empty: nothing."""
        if fresh.error:
            return f"Python refuses: {fresh.error}"
        operations = tuple(map(self._as_it_ends, repeated.operations))
        if operations != fresh.operations:
            one, other = set(operations), set(fresh.operations)
            return f"repeated only: {one - other}; Python only: {other - one}"
        for merge in fresh.merges():
            name = self._made_name(*merge)
            if self.made.get(name) != fresh.files.get(name):
                return f"{merge[0]} becomes something else"
        return ""

    def remember(self, decision: Decision) -> None:
        """Put what Python made of files where the launcher finds it."""
        self.made.update(decision.files)

    # ---- in the places of what a container needs ----

    def _target(self, pid: int, root_path: str) -> Any:
        class Opened:
            rootfs = Trial(os.open(root_path, os.O_PATH | os.O_DIRECTORY))
            process = None
            host_mounts = b""

        self._sources += [Opened.rootfs.fd, Opened.rootfs._fds]
        return Opened

    def _apply(
        self, plan: Any, target: Any, machine: str, log: Log, record: recording.Recording
    ) -> None:
        work = executor.Application(target.rootfs, machine, recording=record)
        sources = work.open_sources(plan.edits, log)
        for rule in executor.rules_of(plan):
            record.operation("rule", *rule)
        work.run(sources)

    def _open_source(self, edit: Any, log: Log) -> int | None:
        """Do what sources.open_source does, without a mount, whose end takes milliseconds."""
        if not hasattr(edit, "host_path"):
            return None
        path = edit.host_path or "/"
        try:
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if getattr(edit, "required", True):
                raise HostError(f"{path}: {error.strerror}") from error
            return None
        self._sources.append(fd)
        status = os.fstat(fd)
        if isinstance(edit, executor.DeviceNode) and not _is_device(status, edit.major, edit.minor):
            raise HostError(f"{path} is another device")
        return fd

    def _keep(self, made: recording.Recording) -> None:
        self._kept.append(made)
        observations.end()

    # ---- what the launcher sees to beside the looks ----

    def _is_at(self, path: bytes, device: bytes, inode: bytes) -> bool:
        root = Trial(os.open(self.image, os.O_PATH | os.O_DIRECTORY))
        try:
            return root.is_at(path.decode(), (int(device), int(inode)))
        finally:
            root.close()

    def _as_it_ends(self, line: bytes) -> bytes:
        """Return an operation; nothing is mounted where the same file is (root.c)."""
        kind, *fields = line.rstrip(b"\n").split(b"\t")
        if kind == b"mount" and self._is_at(fields[1], *fields[3:]):
            return b"\t".join([b"there", fields[1], *fields[3:]]) + b"\n"
        return line

    def _has_source(self, line: bytes) -> bool:
        """Do what repeat.c's open_source and "there" do: tests/native/test_guards_in_c.py."""
        fields = line.rstrip(b"\n").split(b"\t")
        if fields[0] == b"there":
            return self._is_at(*fields[1:])
        if fields[0] not in (b"mount", b"device"):
            return True
        try:
            status = os.lstat(fields[1])
        except OSError:
            return False
        numbers = int(fields[4]), int(fields[5])
        if fields[0] == b"device":
            return _is_device(status, *numbers)
        return (status.st_dev, status.st_ino) == numbers

    def _made_name(self, path: str, basis: str) -> str:
        root = Trial(os.open(self.image, os.O_PATH | os.O_DIRECTORY))
        try:
            data = root.read(path, 1 << 20)
        except NvhookError:
            return ""
        finally:
            root.close()
        return recording._of(basis, "-" if data is None else observations.digest(data))


def _is_device(status: os.stat_result, major: int, minor: int) -> bool:
    numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
    return stat.S_ISCHR(status.st_mode) and numbers == (major, minor)


def _refuse(line: str) -> None:
    raise AssertionError(line)


def remove(path: Path) -> None:
    """Remove what is at a path itself."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # noqa: TID251 - in a world of the tests' own
    else:
        path.unlink(missing_ok=True)
