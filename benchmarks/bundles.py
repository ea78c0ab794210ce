"""What the benchmarks share: bundles on a fresh overlay, and a stop-watch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("NVHOOK_TEST_CACHE", "/var/cache/nvhook-tests"))
HOOK = Path(sysconfig.get_path("scripts")) / "nvhook"


def run(*command: str | Path, cwd: Path | None = None, stdin: bytes = b"") -> None:
    """Run a command that must succeed; files, not pipes: a container would keep a pipe open."""
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command, cwd=cwd, input=stdin, stdout=output, stderr=output, check=False
        )
        if done.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(map(str, command))}: {output.read().decode()}")


def milliseconds(action: Callable[[], None]) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def debian_root() -> Path:
    """Return the root of a minimal Debian, made if it is not there yet."""
    root = CACHE / "debian-root"
    CACHE.mkdir(parents=True, exist_ok=True)
    run(HERE.parent / "scripts/debian-root.sh", root)
    return root


def bare_interpreter() -> tuple[str, ...]:
    """Return the command of the interpreter the launcher starts: the one behind python3."""
    return (os.path.realpath(HOOK.with_name("python3")), "-I", "-S", "-c", "pass")


class Bundle:
    """A bundle on a fresh overlay of a root."""

    def __init__(self, work: Path, name: str, lower: Path, env: list[str], hook: list[str]) -> None:
        self.path = work / name
        self.id = f"nvhook-benchmark-{name}-{os.getpid()}"
        self.lower = lower
        self.rootfs = self.path / "rootfs"
        self.rootfs.mkdir(parents=True)
        document = json.loads((HERE / "config.json").read_text())
        document["process"]["env"] += env
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

    def cycle(self) -> float:
        """Return the wall time of create, start and delete."""
        with self.fresh():
            took = milliseconds(lambda: run("runc", "create", "-b", self.path, self.id))
            took += milliseconds(lambda: run("runc", "start", self.id))
            took += milliseconds(lambda: run("runc", "delete", "-f", self.id))
        return took

    def create(self, *runtime: str | Path) -> float:
        """Return the wall time of a runtime's create."""
        self.write()
        with self.fresh():
            took = milliseconds(lambda: run(*runtime, "create", "-b", self.path, self.id))
            run("runc", "delete", "-f", self.id)
        return took
