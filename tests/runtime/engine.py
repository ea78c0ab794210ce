"""runc and crun, started as an engine starts them, and what came out of it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.runtime.bundle import Bundle
from tests.runtime.cgroup_view import View


class Result:
    """The end of a container."""

    def __init__(self, returncode: int, stdout: str, stderr: str, log: str) -> None:
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        self.log = log
        lines = (line.partition(" = ") for line in stdout.splitlines())
        # The probe's answers, by question.
        self.answers = {question: answer for question, equals, answer in lines if equals}

    @property
    def error(self) -> str:
        """The one line nvhook logged as an error."""
        lines = [line for line in self.log.splitlines() if " level=error " in line]
        assert len(lines) == 1, f"expected one error: {self.log}\n{self.stderr}"
        return lines[0].partition(" msg=")[2]


class Engine:
    """A runtime in a view of the cgroups."""

    # What is done with a bundle before a container is run, in some runs of the tests (repeated.py).
    rehearse: Callable[["Engine", Bundle], None] | None = None

    def __init__(self, kind: str, program: Path, view: View, state: Path) -> None:
        self.kind = kind
        self.view = view
        self.command = [program, "--root", state]

    def run(self, bundle: Bundle) -> Result:
        """Run a container to its end."""
        self.prepare(bundle)
        if Engine.rehearse is not None:
            Engine.rehearse(self, bundle)
        self.prepare(bundle)
        done = self.call(bundle, "run", "--bundle", bundle.directory, bundle.name)
        return Result(done.returncode, done.stdout, done.stderr, bundle.logged())

    def prepare(self, bundle: Bundle) -> None:
        """Write what a bundle's container is started from."""
        bundle.write()

    def call(self, bundle: Bundle, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Call the runtime."""
        return self.view.run(*self.prefix(bundle), *arguments, check=False)

    def prefix(self, bundle: Bundle) -> list[str | Path]:
        """Return the command that the runtime's arguments follow."""
        return self.command

    def start_detached(self, bundle: Bundle) -> None:
        """Start a container that goes on: with files, since it would keep our pipes open."""
        bundle.write()
        words = [*self.prefix(bundle), "run", "-d", "-b", bundle.directory, bundle.name]
        files = 'exec "$@" <"$0" >>"$0" 2>&1'
        output = bundle.directory / "output"
        output.touch()
        done = self.view.run("sh", "-c", files, output, *words, check=False)
        assert done.returncode == 0, output.read_text()

    def start(self, bundle: Bundle) -> Result:
        """Run a container that must start: the probe's or script's answers are in the result."""
        result = self.run(bundle)
        assert result.returncode == 0, f"{result.stderr}\n{result.log}"
        return result

    def fail(self, bundle: Bundle) -> str:
        """Run a container that nvhook must refuse; return the error's line.

        Checks what holds for every refusal: no container, one line, nothing left in the root.
        """
        before = bundle.tree()
        result = self.run(bundle)
        assert result.returncode != 0
        assert not result.stdout, "the container was started"
        after = bundle.tree()
        assert before == after, set(before) ^ set(after)
        if self.kind == "runc":
            line = next(line for line in result.stderr.splitlines() if "nvhook: " in line)
            assert line.count("nvhook: ") == 1
            assert "Traceback" not in result.stderr
        listed = self.view.run(
            *self.command, "list", "--quiet" if self.kind == "runc" else "-q"
        ).stdout
        assert bundle.name not in listed.split()
        error = result.error
        assert len(error) < 400
        return error


class Handler(Engine):
    """nvhook-runtime in front of a runtime; bundles have no hook of their own.

    ``mounts`` is the setting handler.mounts.
    """

    def __init__(
        self, engine: Engine, launcher: Path, mounts: str, name: str = "nvhook-runtime"
    ) -> None:
        self.real = engine
        self.kind = engine.kind
        self.view = engine.view
        self.mounts = mounts
        program, *options = engine.command
        chosen = [f"NVHOOK_RUNTIME={program}"]
        self.command = ["env", *chosen, launcher.with_name(name), *options]

    def prepare(self, bundle: Bundle) -> None:
        """Write what a bundle's container is started from: without a hook, with the setting."""
        if bundle.config.get("hooks") == {"prestart": [bundle.hook()]}:
            del bundle.config["hooks"]
        setting = f'handler.mounts = "{self.mounts}"\n'
        if setting not in bundle.settings.read_text():
            with bundle.settings.open("a") as settings:
                settings.write(setting)
        bundle.write()

    def prefix(self, bundle: Bundle) -> list[str | Path]:
        """Return the command that the runtime's arguments follow, with the bundle's settings."""
        env, *command = self.command
        return [env, f"NVHOOK_CONFIG={bundle.settings}", *command]


def require_root() -> bool:
    """Tell whether real containers can be made here."""
    return os.geteuid() == 0
