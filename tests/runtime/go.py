"""Programs of Go modules, built once into the test cache.

Debian 12 has Go 1.19, Ubuntu 22.04 has 1.18: older than the modules want, but enough to fetch a
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

from tests.runtime.packages import CACHE, cache

NEEDED = (1, 24)
TOOLCHAIN = "go1.24.9"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def build(
    require: Callable[[bool, str], None], module: Path, package: str = ".", *options: str
) -> Path:
    """Return the program of a package, which the module has or requires, with options of go build.

    It is built again when the module's files change.
    """
    go = shutil.which("go")
    require(go is not None, "needs Go, of any version that apt has: apt-get install golang-go")
    assert go is not None
    digest = hashlib.sha256(repr((package, options)).encode())
    for file in sorted(path for path in module.rglob("*") if path.is_file()):
        digest.update(file.read_bytes())
    with cache(f"go-{module.name}") as directory:
        program = directory / digest.hexdigest()[:16]
        if not program.exists():
            directory.mkdir(exist_ok=True)
            made = program.with_suffix(".partial")
            _run(_recent(go, module), "build", *options, "-o", str(made), package, cwd=module)
            made.rename(program)
    return program


def _recent(go: str, module: Path) -> str:
    """Return a Go that is new enough: this one, or one that it can fetch."""
    found = re.search(r"go(\d+)\.(\d+)", _run(go, "version", cwd=module))
    assert found is not None
    if (int(found[1]), int(found[2])) >= NEEDED:
        return go
    version = f"v0.0.1-{TOOLCHAIN}.linux-{ARCHITECTURES[platform.machine()]}"
    # Not in a module of ours: its go.mod is for the newer Go.
    answer = _run(go, "mod", "download", "-json", f"golang.org/toolchain@{version}", cwd=CACHE)
    root = Path(json.loads(answer)["Dir"])
    for program in [*root.glob("bin/*"), *root.glob("pkg/tool/*/*")]:
        program.chmod(0o755)  # a module's files are not executable
    return str(root / "bin/go")


def _run(go: str, *arguments: str, cwd: Path) -> str:
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
