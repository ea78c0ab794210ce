"""The official CDI library, in Go, as a program: built once into the test cache.

Debian 12 has Go 1.19, Ubuntu 22.04 has 1.18: older than the library wants, but enough to fetch a
newer Go from the module proxy, where each release is a module (golang.org/toolchain).
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.packages import CACHE, cache

SOURCE = Path(__file__).parent / "validator"
NEEDED = (1, 23)
TOOLCHAIN = "go1.24.9"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Verdicts = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def go_verdicts(require: Callable[[bool, str], None]) -> Verdicts:
    """Give a function: files -> what the library says against each, empty if it takes it."""
    go = shutil.which("go")
    require(go is not None, "needs Go, of any version that apt has: apt-get install golang-go")
    assert go is not None
    program = _build(go)

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


def _build(go: str) -> Path:
    digest = hashlib.sha256()
    for file in sorted(SOURCE.iterdir()):
        digest.update(file.read_bytes())
    with cache("cdi-validator") as directory:
        program = directory / digest.hexdigest()[:16]
        if not program.exists():
            directory.mkdir(exist_ok=True)
            _go(_recent(go), "build", "-o", str(program), ".", cwd=SOURCE)
    return program


def _recent(go: str) -> str:
    """Return a Go that is new enough: this one, or one that it can fetch."""
    found = re.search(r"go(\d+)\.(\d+)", _go(go, "version", cwd=SOURCE))
    assert found is not None
    if (int(found[1]), int(found[2])) >= NEEDED:
        return go
    version = f"v0.0.1-{TOOLCHAIN}.linux-{ARCHITECTURES[platform.machine()]}"
    # Not in a module of ours: its go.mod is for the newer Go.
    answer = _go(go, "mod", "download", "-json", f"golang.org/toolchain@{version}", cwd=CACHE)
    root = Path(json.loads(answer)["Dir"])
    for program in [*root.glob("bin/*"), *root.glob("pkg/tool/*/*")]:
        program.chmod(0o755)  # a module's files are not executable
    return str(root / "bin/go")


def _go(go: str, *arguments: str, cwd: Path) -> str:
    own = {
        "GOPATH": str(CACHE / "go"),
        "GOCACHE": str(CACHE / "go/cache"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-modcacherw",
        "CGO_ENABLED": "0",
    }
    inherited = {key: value for key, value in os.environ.items() if key != "GOROOT"}
    done = subprocess.run(
        [go, *arguments],
        cwd=cwd,
        env=inherited | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"go {' '.join(arguments)}: {done.stderr[-2000:]}{done.stdout}"
    return done.stdout
