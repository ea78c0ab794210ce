"""The official CDI library, in Go, as a program."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime import go

SOURCE = Path(__file__).parent / "validator"

Verdicts = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def go_verdicts(require: Callable[[bool, str], None]) -> Verdicts:
    """Give a function: files -> what the library says against each, empty if it takes it."""
    program = go.build(require, SOURCE)

    def verdicts(*files: Path) -> dict[str, str]:
        names = [str(file) for file in files]
        done = subprocess.run([program, *names], capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        assert len(lines) == len(names), done.stderr
        found = {}
        for name, line in zip(names, lines, strict=True):
            assert line == f"ok {name}" or line.startswith(f"bad {name}: "), line
            found[name] = line.removeprefix(f"ok {name}").removeprefix(f"bad {name}: ")
        return found

    return verdicts
