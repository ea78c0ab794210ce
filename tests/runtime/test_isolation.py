"""Nothing of the image or the bundle is ever loaded into the hook (CVE-2025-23266 and its like)."""

import os
import subprocess
from pathlib import Path

import pytest

MODULES = (
    "sitecustomize",
    "usercustomize",
    "os",
    "json",
    "time",
    "_json",
    "nvhook",
    "click",
    "prctl",
)
STAGES = ("prestart", "createRuntime")


@pytest.fixture(scope="session")
def evil_library(workspace: Path) -> Path:
    """A library that, loaded into a program of the host, writes to a file of the host."""
    directory = workspace / "evil-library"
    directory.mkdir()
    source = directory / "evil.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "__attribute__((constructor)) static void run(void)\n"
        f'{{ FILE *f = fopen("{directory}/marker", "a");\n'
        '  if (f) { fputs("library\\n", f); fclose(f); } }\n'
    )
    library = directory / "evil.so"
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


@pytest.fixture
def trap(evil_library: Path, place: Path):
    """Fill a directory with everything a careless program would load; tell what was loaded."""
    marker = place / "marker"
    library_marker = evil_library.parent / "marker"
    library_marker.unlink(missing_ok=True)

    def fill(directory: Path) -> None:
        for name in MODULES:
            text = f"open({str(marker)!r}, 'a').write({name!r} + chr(10))\n"
            (directory / f"{name}.py").write_text(text)
        (directory / "encodings").mkdir()
        (directory / "encodings/__init__.py").write_text(f"open({str(marker)!r}, 'a')\n")
        (directory / "evil.so").write_bytes(evil_library.read_bytes())
        (directory / "pyvenv.cfg").write_text("home = .\n")

    yield fill
    assert not marker.exists(), marker.read_text()
    assert not library_marker.exists(), library_marker.read_text()


def _attack(directory: str) -> list[str]:
    return [
        f"LD_PRELOAD={directory}/evil.so",
        f"LD_LIBRARY_PATH={directory}",
        f"LD_AUDIT={directory}/evil.so",
        f"PYTHONPATH={directory}",
        f"PYTHONHOME={directory}",
        f"PYTHONSTARTUP={directory}/json.py",
        f"PYTHONUSERBASE={directory}",
        "PYTHONINSPECT=1",
        "GLIBC_TUNABLES=glibc.malloc.check=3",
    ]


def _check_injected(engine, bundle, driver) -> None:
    node = f"/dev/nvidia{driver.gpus[1].minor}"
    bundle.args("/probe", "open", node)
    assert engine.start(bundle).answers == {f"open {node}": "ENXIO"}


@pytest.mark.parametrize("stage", STAGES)
def test_the_images_environment_reaches_no_hook(each_runtime, bundles, driver, trap, stage):
    bundle = bundles(each_runtime)
    bundle.config["hooks"] = {stage: [bundle.hook(stage)]}
    trap(bundle.directory)
    (bundle.root / "evil").mkdir()
    trap(bundle.root / "evil")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1", *_attack("."))

    _check_injected(each_runtime, bundle, driver)


def test_a_hook_entry_that_passes_the_attack_on(each_runtime, bundles, driver, trap):
    """As an engine's careless entry could: the variables reach the launcher itself."""
    bundle = bundles(each_runtime)
    trap(bundle.directory)
    hook = bundle.hook()
    hook["env"] = [*hook["env"], *_attack(str(bundle.directory))]
    bundle.config["hooks"]["prestart"] = [hook]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    _check_injected(each_runtime, bundle, driver)


def test_a_hook_entry_without_environment(each_door, bundles, driver, trap):
    """Then the hook gets the engine's, where an administrator may have PYTHONPATH."""
    bundle = bundles(each_door)
    trap(bundle.directory)
    hook = bundle.hook()
    del hook["env"]
    bundle.config["hooks"]["prestart"] = [hook]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    names = [entry for entry in _attack(str(bundle.directory)) if entry.startswith("PYTHON")]
    each_door.command = ["env", *names, *each_door.command]

    _check_injected(each_door, bundle, driver)


def test_the_damaged_cache_of_an_attacker(each_door, bundles, driver, trap):
    """The way that runs a program, ldconfig, in the container's root."""
    bundle = bundles(each_door)
    trap(bundle.root)
    bundle.put("/etc/ld.so.cache", b"damaged")
    bundle.put("/etc/ld.so.preload", b"/evil.so\n")
    bundle.put("/etc/ld.so.conf", b"/\ninclude /*.conf\n")
    bundle.put("/sbin/ldconfig", b"#!/bin/sh\ntouch /run-by-the-hook\n", 0o755)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1", *_attack(""))

    _check_injected(each_door, bundle, driver)

    assert not (bundle.root / "run-by-the-hook").exists()


def test_the_traps_work(bundles, each_door, evil_library, place):
    """A careless program does fall into them."""
    marker = evil_library.parent / "marker"
    try:
        environment = {"LD_PRELOAD": str(evil_library), "PATH": os.environ["PATH"]}
        subprocess.run(["true"], env=environment, check=True)
        assert marker.read_text() == "library\n"
    finally:
        marker.unlink(missing_ok=True)
