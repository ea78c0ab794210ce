"""How the launcher starts a door, and what it may load: each first start of a container pays."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.installed import SITE
from tests.runtime.bundle import Bundle
from tests.runtime.engine import Engine, Result
from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches
from tests.runtime.simulated import Driver

# Each costs as much as the bare interpreter's own start, or more, alone or by what it imports.
SLOW = {
    "re",
    "enum",
    "json",
    "typing",
    "dataclasses",
    "pathlib",
    "logging",
    "subprocess",
    "inspect",
}
SOURCES = Path(__file__).parents[2] / "nvhook/_native"
_BUILD = (SOURCES / "meson.build").read_text()
LAUNCHER = re.findall(r"'(\w+)\.c'", _BUILD.split("launcher = files(")[1].split(")")[0])

# Runs a door as the launcher does and writes down which modules it has loaded.
RECORD = """
import os, sys
sys.path.append(sys.argv[1])
name = "nvhook.doors." + sys.argv[3]
__import__(name)
end = os._exit
def record(code):
    with open(sys.argv[2], "w") as file:
        file.write(repr(sorted(sys.modules)).replace("'", '"'))
    end(code)
os._exit = sys.modules["posix"]._exit = record
sys.modules[name].main(sys.argv[3:])
"""


# The same, and writes down what it looks for while it is in the container's mount namespace.
INSIDE = """
import sys
sys.path.append(sys.argv[1])
from nvhook.kernel.process import MountNamespace
sought = ["entered"]
class Seeker:
    def find_spec(self, name, path=None, target=None):
        sought.append(name)
enter, leave = MountNamespace.__enter__, MountNamespace.__exit__
def entering(self):
    sys.meta_path.insert(0, Seeker)
    enter(self)
def leaving(self, *reason):
    leave(self, *reason)
    sys.meta_path.remove(Seeker)
    with open(sys.argv[2], "w") as file:
        file.write(" ".join(sought))
Seeker = Seeker()
MountNamespace.__enter__, MountNamespace.__exit__ = entering, leaving
import nvhook.doors.hook
nvhook.doors.hook.main(sys.argv[3:])
"""


def recording(result: Path, door: str, script: str = RECORD) -> list[str]:
    """Return the command that runs a door and writes down what it loaded."""
    python = str(Path(sys.executable).resolve())
    return [python, "-I", "-S", "-c", script, str(SITE), str(result), door]


@pytest.fixture
def loaded(bundles, driver, place: Path):
    """Start a container on an engine with a recording hook; return the modules it loaded."""

    def start(engine, asked: str = "1", host: Driver = driver) -> set[str]:
        age = time.time() - host.config.stat().st_ctime
        time.sleep(max(0.0, 0.2 - age))  # what is newer may still change, and is not remembered
        for _ in range(2):  # the first discovers the host
            bundle: Bundle = bundles(engine, host=host)
            bundle.ask(f"NVIDIA_VISIBLE_DEVICES={asked}")
            bundle.args("/probe", "open", "/dev/nvidia3")
            hook = bundle.hook()
            record = recording(place / "modules.json", "hook")
            arguments = [*record, "prestart", "--config", str(bundle.driver.config)]
            bundle.config["hooks"]["prestart"] = [{**hook, "path": record[0], "args": arguments}]
            engine.start(bundle)
        return set(json.loads((place / "modules.json").read_text()))

    return start


def test_the_hook_loads_nothing_slow(each_engine, loaded) -> None:
    found = loaded(each_engine)

    assert not found & SLOW
    assert "nvhook._native._syscalls" in found


def test_a_mig_device_loads_nothing_slow(runc, loaded, mig_driver) -> None:
    """NVML is not asked: what it said is remembered."""
    found = loaded(runc, "0:1", mig_driver)

    assert not found & SLOW
    assert "nvhook.host.mig_devices" in found


@pytest.mark.parametrize("image", ["good", "wrong-type", "broken-cache", "no-cache"])
def test_nothing_is_imported_in_the_mount_namespace(runc, bundles, place, image) -> None:
    """It would be the container's file that is run, by root of the host."""
    bundle: Bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    if image == "wrong-type":
        (bundle.root / "usr/bin/nvidia-smi").mkdir(parents=True)
    elif image == "broken-cache":
        (bundle.root / "etc/ld.so.cache").write_bytes(b"ld.so-1.7.0\0 and \xff nonsense")
    elif image == "no-cache":
        (bundle.root / "etc/ld.so.cache").unlink(missing_ok=True)
    hook = bundle.hook()
    record = recording(place / "sought", "hook", INSIDE)
    arguments = [*record, "prestart", "--config", str(bundle.driver.config)]
    bundle.config["hooks"]["prestart"] = [{**hook, "path": record[0], "args": arguments}]

    result = runc.run(bundle)

    assert ("nvidia-smi" in result.stderr) == (image == "wrong-type"), result.stderr
    assert (place / "sought").read_text() == "entered"


def test_the_runtime_loads_nothing_slow(runc, bundles, place) -> None:
    bundle: Bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    document = bundle.directory / "config.json"
    for _ in range(2):  # the first discovers the host
        bundle.write()
        paths = [bundle.directory, document, "/bin/nvhook", bundle.driver.config]
        command = [*recording(place / "modules.json", "runtime"), *map(str, paths), "", ""]
        subprocess.run(command, check=True)

    assert "--delegated" in document.read_text()
    assert not set(json.loads((place / "modules.json").read_text())) & SLOW


class Copy:
    """A copy of the installation, to be broken, and a bundle whose hook is its launcher."""

    def __init__(self, directory: Path, bundle: Bundle) -> None:
        self.package = directory / "nvhook"
        self.launcher = directory / "bin/nvhook"
        self.bundle = bundle
        shutil.copytree(SITE / "nvhook", self.package)
        for backend in SITE.glob("_cffi_backend*.so"):
            shutil.copy(backend, directory)
        if sys.version_info < (3, 11):
            shutil.copytree(SITE / "tomli", directory / "tomli")
        self.launcher.parent.mkdir()
        shutil.copy(bundle.driver.launcher, self.launcher)
        (directory / "bin/python3").symlink_to(Path(sys.executable).resolve())
        bundle.config["hooks"]["prestart"][0]["path"] = str(self.launcher)

    def run(self, engine: Engine, debug: bool) -> Result:
        """Run the container, which can't start; debug: with NVHOOK_DEBUG."""
        hook = self.bundle.config["hooks"]["prestart"][0]
        hook["env"] += ["NVHOOK_DEBUG=1"] if debug else []
        result = engine.run(self.bundle)
        assert result.returncode != 0
        return result


@pytest.fixture
def copy(runc, bundles, place) -> Copy:
    """A copy of the installation. Its bundle asks for what does not exist."""
    (place / "copy").mkdir()
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=nonsense")
    return Copy(place / "copy", bundle)


@pytest.mark.parametrize("debug", [False, True])
def test_a_traceback_is_for_who_debugs(runc, copy, debug) -> None:
    result = copy.run(runc, debug)
    assert "unknown device id nonsense" in result.stderr
    assert ("Traceback" in result.stderr) is debug


@pytest.mark.usefixtures("once")
def test_the_launcher_is_the_same_with_either_c_library(runc, copy, require) -> None:
    """The build takes musl where it is, so that glibc's is tried only here."""
    require(shutil.which("musl-gcc") is not None, "needs musl-tools")
    sources = sorted(SOURCES.glob("*.c"))
    made = copy.launcher.with_name("glibc")
    subprocess.run(
        ["cc", "-O2", "-static", '-DNVHOOK_VERSION="0"', "-o", made, *sources], check=True
    )
    assert made.stat().st_size > 4 * copy.launcher.stat().st_size  # musl's is the installed one
    made.rename(copy.launcher)

    assert "unknown device id nonsense" in copy.run(runc, debug=False).stderr
    copy.bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(copy.bundle)
    assert_reaches(copy.bundle, runc.start(copy.bundle), [1], COMPUTE)
