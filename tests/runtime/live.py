"""Containers that go on running, for what is done to them while they do."""

import json
import os
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

from nvhook.kernel import programs, revocation
from tests.runtime.bundle import Bundle, asks
from tests.runtime.engine import Engine

# What the kernel or a runtime changes by itself.
NOT_LOOKED_AT = ("proc", "sys")


class Live:
    """A running container, and nvhook's commands for it."""

    def __init__(self, engine: Engine, bundle: Bundle) -> None:
        self.engine = engine
        self.bundle = bundle
        self.driver = bundle.driver
        if bundle.config["process"]["args"] == ["/probe"]:
            bundle.args("/bin/sleep", "1000")
        engine.start_detached(bundle)
        state = engine.call(bundle, "state", bundle.name)
        assert state.returncode == 0, state.stderr
        self.pid = int(json.loads(state.stdout)["pid"])

    def delete(self) -> None:
        """End and remove it."""
        self.engine.call(self.bundle, "delete", "--force", self.bundle.name)

    # ---- nvhook ----

    def nvhook(
        self, *words: str, pid: int = 0, env: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run an nvhook command for it."""
        command, *rest = words
        return self.engine.view.run(
            "env",
            *env,
            self.driver.launcher,
            command,
            "--config",
            self.bundle.settings,
            "--pid",
            str(pid or self.pid),
            *rest,
            check=False,
        )

    def done(self, *words: str, pid: int = 0) -> dict[str, Any]:
        """Run one that must succeed; return what it prints as JSON."""
        result = self.nvhook(*words, "--json", pid=pid)
        assert result.returncode == 0, result.stderr
        assert not result.stderr
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    def inject(self, gpus: str, *words: str, pid: int = 0) -> dict[str, Any]:
        """Inject GPUs."""
        return self.done("inject", "--gpus", gpus, *words, pid=pid)

    def eject(self, gpus: str = "", pid: int = 0) -> dict[str, Any]:
        """Eject GPUs, or all."""
        return self.done("eject", *(("--gpus", gpus) if gpus else ()), pid=pid)

    def reconcile(self) -> str:
        """Run nvhook reconcile; return what it says."""
        command = [self.driver.launcher, "reconcile", "--config", self.bundle.settings]
        return self.engine.view.run(*command).stdout

    def take_rules(self, gpu: int) -> None:
        """Take a GPU's rule away, as systemd or a runtime does that does not know of it."""
        numbers = self.driver.numbers()[self.node(gpu)]
        listed, attached = self.cgroup(1), self.cgroup(2)
        if listed is not None:
            (listed / "devices.deny").write_text(f"c {numbers[0]}:{numbers[1]} rw")
        if attached is not None and self._programs():
            fd = os.open(attached, os.O_RDONLY)
            revocation.revoke(fd, (("c", *numbers, "rw"),))
            os.close(fd)

    # ---- inside ----

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program in it."""
        return self.engine.call(self.bundle, "exec", self.bundle.name, *words)

    def start(self, *words: str) -> int:
        """Start a program that goes on in it; return its process."""
        file = self.bundle.directory / "started"
        self.run_detached(file, *words)
        return int(file.read_text())

    def run_detached(self, file: Path, *words: str) -> None:
        """Start a program in it; its pid is written to a file."""
        command = [*self.engine.prefix(self.bundle), "exec", "-d", "--pid-file", file]
        script = 'exec "$@" </dev/null >/dev/null 2>&1'
        if self.engine.kind == "crun":  # it gives its standard streams away: not /dev/null
            script = 'exec "$@" <"$0" >>"$0" 2>&1'
        output = self.bundle.directory / "output"
        done = self.engine.view.run(
            "sh", "-c", script, output, *command, self.bundle.name, *words, check=False
        )
        assert done.returncode == 0, output.read_text()

    def kill(self, pid: int) -> None:
        """End a process that was started in it, and wait until it has gone."""
        os.kill(pid, 9)
        for _ in range(500):
            state = Path(f"/proc/{pid}/stat")
            if not state.exists() or ") Z " in state.read_text():
                return
            time.sleep(0.01)

    def make_cgroup(self, version: int, name: str) -> Path | None:
        """Make a directory below the container's own; None where the version is not mounted."""
        place = self.cgroup(version)
        if place is None:
            return None
        (place / name).mkdir(exist_ok=True)
        return place / name

    def move(self, pid: int, place: Path | None) -> None:
        """Move a process into a cgroup directory."""
        if place is not None:
            (place / "cgroup.procs").write_text(str(pid))

    def remove_cgroup(self, version: int, name: str) -> None:
        """Remove such a directory."""
        place = self.cgroup(version)
        if place is None:
            return
        for _ in range(500):
            if not (place / name / "cgroup.procs").read_text():
                break
            time.sleep(0.01)
        (place / name).rmdir()

    def probe(self, *commands: tuple[str, ...]) -> list[str]:
        """Ask the probe; return its answers."""
        result = self.run("/probe", *asks(commands))
        assert result.returncode == 0, result.stderr
        return [line.partition(" = ")[2] for line in result.stdout.splitlines()]

    def opens(self, *gpus: int, at: str = "dev") -> list[str]:
        """Return what opening GPUs' nodes gives (``nodes``: those of the image)."""
        return self.probe(*[("open", f"/{at}/{self.node(gpu)}") for gpu in gpus])

    def node(self, gpu: int) -> str:
        """Return the name of a GPU's node."""
        return f"nvidia{self.driver.gpus[gpu].minor}"

    def smi(self) -> list[str]:
        """Return the UUIDs that nvidia-smi lists, found through the loader cache."""
        result = self.run("/usr/bin/nvidia-smi", "-L")
        assert result.returncode == 0, result.stderr + result.stdout
        lines = [line for line in result.stdout.splitlines() if line.startswith("GPU ")]
        return [line.rpartition("UUID: ")[2].rstrip(")") for line in lines]

    # ---- all that must be as it was ----

    def snapshot(self) -> dict[str, object]:
        """Return its mounts, device rules and programs, and files with their contents."""
        return {
            "mounts": Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines(),
            "rules": self.rules(),
            "programs": self._programs(),
            "files": self.files(),
        }

    def files(self) -> dict[str, object]:
        """Return type, mode, owner and content of every file in its root and its own mounts."""
        root = f"/proc/{self.pid}/root"
        found: dict[str, object] = {}
        for directory, names, files in os.walk(root):
            if directory == root:
                names[:] = [name for name in names if name not in NOT_LOOKED_AT]
            for name in names + files:
                path = os.path.join(directory, name)
                status = os.lstat(path)
                row: tuple[object, ...] = (status.st_mode, status.st_uid, status.st_gid)
                if stat.S_ISLNK(status.st_mode):
                    row += (os.readlink(path),)
                elif stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20:
                    row += (Path(path).read_bytes(),)
                found[os.path.relpath(path, root)] = row
        return found

    def cgroup(self, version: int) -> Path | None:
        """Return where the view shows its directory of the v1 devices hierarchy or of v2."""
        view = self.engine.view
        kind = " - cgroup " if version == 1 else " - cgroup2 "
        for line in reversed(view.mounts()):
            if kind in line and (version == 2 or "devices" in line.rpartition(" ")[2].split(",")):
                place = view.path(Path(line.split()[4])) / self.bundle.name
                return place if place.exists() else None
        return None

    def rules(self) -> str:
        """Return what its directory of the v1 devices hierarchy allows, empty without one."""
        place = self.cgroup(1)
        return (place / "devices.list").read_text() if place else ""

    def _programs(self) -> list[bytes]:
        place = self.cgroup(2)
        if place is None:
            return []
        fd = os.open(place, os.O_RDONLY)
        try:
            found = []
            for number in programs.attached(fd)[0]:
                program = programs.open_program(number)
                found.append(programs.name_of(program) + b":" + programs.instructions(program))
                os.close(program)
            return found
        finally:
            os.close(fd)

    def journals(self) -> list[str]:
        """Return the files of its journal."""
        place = self.driver.directory / "run/containers"
        return sorted(path.name for path in place.glob(f"{self.pid}-*"))
