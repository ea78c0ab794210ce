"""Containers for the check: a fresh root each, run to their end by the runc of the folder."""

import itertools
import json
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOOK_ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
CAPABILITIES = ("CAP_MKNOD", "CAP_SYS_CHROOT", "CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER")
SETS = ("bounding", "effective", "permitted")
NAMESPACES = ("pid", "mount", "ipc", "uts")
TMPFS = ["nosuid", "strictatime", "mode=755", "size=65536k"]
MOUNTS = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": TMPFS},
    {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "rslave", "ro"]},
)
LIMIT = 170.0  # seconds for everything
ONE_RUN = 20.0  # seconds for one program
COUNTER = itertools.count(1)


class OutOfTimeError(Exception):
    """The check as a whole has taken too long."""


class Done:
    """How a program ended, and what it said."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    def why(self) -> str:
        """Return the end of what it said, for a report."""
        lines = (self.err.strip() or self.out.strip() or "no message").splitlines()
        return f"status {self.status}: {lines[-1][-400:]}"


class Machine:
    """What the check runs on and with: the work directory that check.sh prepared."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.started = time.monotonic()
        self.launcher = work / "nvhook/bin/nvhook"
        self.config = work / "nvhook.toml"
        self.name = f"nvhook-gpu-check-{os.getpid()}"

    def run(self, *command: object, env: dict[str, str] | None = None) -> Done:
        """Run a program; one that hangs is ended. Raises: OutOfTimeError."""
        left = LIMIT - (time.monotonic() - self.started)
        if left <= 0:
            raise OutOfTimeError(f"the check has taken {LIMIT:.0f} s")
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=min(left, ONE_RUN),
                env=env,
            )
        except subprocess.TimeoutExpired:
            return Done(124, "", f"{words[0]} did not end in {ONE_RUN:.0f} s")
        except OSError as error:
            return Done(127, "", f"{words[0]}: {error.strerror}")
        return Done(done.returncode, done.stdout, done.stderr)

    def nvhook(self, *arguments: str) -> Done:
        """Run a command of nvhook."""
        return self.run(self.launcher, *arguments)

    def runc(self, *arguments: object) -> Done:
        """Run runc with the check's own state directory."""
        return self.run(self.work / "bin/runc", "--root", self.work / "runc", *arguments)

    def container(self, script: str, ask: tuple[str, ...] = (), hook: bool = True) -> "Container":
        """Prepare a container that runs a shell script; ask: entries of its environment."""
        return Container(self, script, ask, hook)

    def answers(self, *questions: str) -> dict[str, str]:
        """Ask the probe on the host; see Container.answers."""
        return parse_answers(self.run(self.work / "bin/probe", *questions).out)


class Container:
    """One container, with a root of its own that the next one does not see."""

    def __init__(self, machine: Machine, script: str, ask: tuple[str, ...], hook: bool) -> None:
        self.machine = machine
        self.name = f"{machine.name}-{next(COUNTER)}"
        self.bundle = machine.work / self.name
        self.seconds = 0.0  # from runc's start to the container's end
        self.bundle.mkdir()
        shutil.copytree(machine.work / "root", self.bundle / "rootfs", symlinks=True)
        (self.bundle / "rootfs/script").write_text(script)
        config = self._config(ask)
        if hook:
            arguments = ["nvhook", "hook", "prestart", "--config", str(machine.config)]
            entry = {"path": str(machine.launcher), "args": arguments, "env": HOOK_ENVIRONMENT}
            config["hooks"] = {"prestart": [entry]}
        (self.bundle / "config.json").write_text(json.dumps(config))

    def _config(self, ask: tuple[str, ...]) -> dict[str, Any]:
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sh", "/script"],
                "env": [SEARCH_PATH, *ask],
                "cwd": "/",
                "capabilities": {name: list(CAPABILITIES) for name in SETS},
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs", "readonly": False},
            "mounts": [dict(mount) for mount in MOUNTS],
            "linux": {
                "cgroupsPath": f"/{self.name}",
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
                "namespaces": [{"type": kind} for kind in NAMESPACES],
            },
        }

    def run(self) -> Done:
        """Run it to its end and remove it."""
        try:
            began = time.perf_counter()
            done = self.machine.runc("run", "--bundle", self.bundle, self.name)
            self.seconds = time.perf_counter() - began
            if done.status == 124:
                self.machine.runc("delete", "--force", self.name)
        finally:
            shutil.rmtree(self.bundle)  # noqa: TID251 - made by this class, on the host
        return done


def section(title: str, command: str) -> str:
    """Return a part of a script whose output can be found again."""
    return f'echo "== {title}"; {command}; echo "-- $?"\n'


def sections(text: str) -> dict[str, tuple[str, int]]:
    """Return output and exit status by title."""
    found = {}
    for part in text.split("== ")[1:]:
        title, _, rest = part.partition("\n")
        output, dashes, status = rest.rpartition("-- ")
        if dashes and status.strip().isdigit():
            found[title] = (output.strip(), int(status))
    return found


def parse_answers(text: str) -> dict[str, str]:
    """Return what the probe (tests/runtime/probe.c) answered, by question."""
    lines = (line.partition(" = ") for line in text.splitlines())
    return {question: answer for question, equals, answer in lines if equals}


def make_node(path: Path, numbers: tuple[int, int]) -> Path:
    """Make a character device on the host."""
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(*numbers))
    return path
