"""Containers that are started before the start that a test is about, to compare what comes of it.

With NVHOOK_TEST_START=repeated every container of these tests is started four times, each time on
an equal copy of its root: by Python, which leaves a recording; from that; from a recording that was
made with another root, of the same request; and then as the test wants it. The first three must be
equal in all that a snapshot has.
"""

import os
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

from nvhook.create.recording import path as recordings_path
from tests.runtime import snapshot
from tests.runtime.bundle import Bundle
from tests.runtime.engine import Engine
from tests.runtime.snapshot import Snapshot

REPEATED = os.environ.get("NVHOOK_TEST_START") == "repeated"
INJECTED, REPLAYED = " msg=injected", " replayed=true"
# Why a start can't be repeated, as the file KEY.why says it; every other reason fails the test.
REASONS = {
    " is left out": "what has no place in an image is told to the log, each time anew",
    "WSL 2 and Jetsons": "libdxcore and CSV files are looked at in other ways",
    "NVML does not know all MIG devices": "what is wrong now may be right at the next start",
    "nvidia-container-cli": "its caller says what to do, and no config.json",
    " is masked already": "a second hook of one container",
    "the image's loader cache is not understood": "ldconfig writes it",
    "the image's compatibility libraries are odd": "they are looked at in other ways",
}
OWN, OTHER = "replayed", "replayed from another root's recording"
ELSEWHERE = "started where another root's recording was"
COUNTS: Counter[str] = Counter()


class Kept:
    """A copy of a bundle's root, to start from again."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.layer = bundle.directory / "upper"
        self.is_layered = self.layer.exists()
        self.place = bundle.directory.parent / f"{bundle.directory.name}-kept"
        _copy(self.layer if self.is_layered else bundle.root, self.place)

    def restore(self) -> None:
        """Let the root be as it was."""
        self.clear()
        if self.is_layered:
            _copy(self.place, self.layer)
            self.bundle.mount_overlay()
        else:
            _copy(self.place, self.bundle.root)

    def clear(self) -> None:
        """Take the root away."""
        if self.is_layered:
            self.bundle.unmount_overlay()
            for name in ("upper", "work"):
                if (self.bundle.directory / name).exists():
                    _remove(self.bundle.directory / name)
            (self.bundle.directory / "work").mkdir()
        else:
            _remove(self.bundle.root)

    def end(self) -> None:
        """Remove the copy."""
        _remove(self.place)


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory)  # noqa: TID251 - made by these tests, and nothing is mounted there


class Start:
    """What came of one start: a snapshot, or the lines of an error."""

    def __init__(self, engine: Engine, bundle: Bundle) -> None:
        bundle.log.unlink(missing_ok=True)
        output = bundle.directory / "output"
        output.write_text("")
        words = [*engine.prefix(bundle), "create", "-b", bundle.directory, bundle.name]
        files = 'exec "$@" <"$0" >>"$0" 2>&1'
        done = engine.view.run("sh", "-c", files, output, *words, check=False)
        self.seen: Snapshot = {}
        try:
            if done.returncode == 0:
                self.seen = snapshot.take(engine, bundle)
            else:
                self.seen = snapshot.files("image", bundle.seen_root)
        finally:
            engine.call(bundle, "delete", "--force", bundle.name)
        self.is_created = done.returncode == 0
        self.log = bundle.logged()
        lines = [line for line in self.log.splitlines() if " level=error " in line]
        self.errors = [re.sub(r" pid=\d+", "", line).partition(" msg=")[2] for line in lines]
        self.output = output.read_text()
        output.unlink()
        self.is_replayed = REPLAYED in self.log

    def assert_equals(self, other: "Start", what: str) -> None:
        """Check that nothing is different."""
        assert self.is_created == other.is_created, f"{what}: {self.output}{other.output}"
        different = snapshot.differences(self.seen, other.seen)
        assert different == [], f"{what}:\n" + "\n".join(different)
        assert self.errors == other.errors, what


def rehearse(engine: Engine, bundle: Bundle) -> None:
    """Start a container in other ways than the one that follows, and compare."""
    directory = recordings(engine)
    kept = Kept(bundle)
    try:
        kept.restore()
        settle(bundle)
        forget(directory)
        first = Start(engine, bundle)
        assert not first.is_replayed
        reason = _reason(directory)
        kept.restore()
        second = Start(engine, bundle)
        second.assert_equals(first, "repeated")
        _count(bundle, first, second, reason)
        forget(directory)
        if _record_another(engine, bundle, kept):
            kept.restore()
            COUNTS[ELSEWHERE] += any(directory.glob("*.0"))
            third = Start(engine, bundle)
            third.assert_equals(first, "repeated what was done in another root")
            if INJECTED in first.log:
                COUNTS[OTHER if third.is_replayed else f"not {OTHER}"] += 1
        kept.restore()
    finally:
        kept.end()
    bundle.log.unlink(missing_ok=True)


def settle(bundle: Bundle) -> None:
    """Wait until the settings are old enough to be trusted."""
    age = time.time() - bundle.settings.stat().st_ctime
    time.sleep(max(0.0, 0.15 - age))


def forget(directory: Path) -> None:
    """Remove all recordings."""
    if directory.exists():
        _remove(directory)


def recordings(engine: Engine) -> Path:
    """Return where an engine's recordings are: in a view, its own."""
    return engine.view.path(Path(recordings_path()))


def _reason(directory: Path) -> str:
    """Return why nothing was recorded."""
    if not directory.exists():
        return "nothing was recorded"
    for path in directory.glob("*.why"):
        return path.read_text()
    return ""


def _count(bundle: Bundle, first: Start, second: Start, reason: str) -> None:
    if INJECTED not in first.log:
        COUNTS["refused" if first.errors else "no GPU"] += 1
    elif second.is_replayed:
        COUNTS[OWN] += 1
    else:
        if "nvidia-container-cli" in (bundle.directory / "config.json").read_text():
            reason = "nvidia-container-cli"
        known = next((text for text in REASONS if text in reason), None)
        assert known, f"not repeated: {reason or 'a recording was not used'}\n{second.log}"
        COUNTS[f"not replayed: {known.strip()}"] += 1


def _record_another(engine: Engine, bundle: Bundle, kept: Kept) -> bool:
    """Start the same request with a plain root; tell whether it could be."""
    words = bundle.config["process"]["args"]
    owner = os.stat(bundle.seen_root)
    kept.clear()
    try:
        bundle.furnish_plainly(owner.st_uid)
        bundle.args("/probe")
        engine.prepare(bundle)
        return Start(engine, bundle).is_created
    finally:
        if kept.is_layered:
            _remove(bundle.root)
            bundle.root.mkdir()
        bundle.args(*words)
        engine.prepare(bundle)
