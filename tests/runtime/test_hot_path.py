"""What a hot door loads is a budget, kept as a set of modules and never in milliseconds."""

import json
import marshal
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook import hot_archive
from tests.installed import PACKED, SITE
from tests.runtime.bundle import Bundle
from tests.runtime.engine import Engine, Result
from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches
from tests.runtime.simulated import Driver

# Beside the bare interpreter and nvhook's modules. A module here costs every GPU container.
FOREIGN = {"_cffi_backend", "_json", "_stat", "_struct", "errno", "posix", "time"}
NATIVE = {"nvhook._native._syscalls", "nvhook._native._syscalls.lib"}
SOURCES = Path(__file__).parents[2] / "nvhook/_native"
LAUNCHER = ("launcher", "bundle", "handoff", "interpreter", "runtime")

# Runs the hook as the launcher does and writes down what was loaded beside the bare interpreter.
RECORD = """
import sys
for name in ("abc", "codecs", "encodings", "encodings.aliases", "encodings.utf_8", "io"):
    sys.modules.pop(name, None)  # what the launcher starts has none of them
bare = {*sys.modules}
sys.path.append(sys.argv[1])
name = "nvhook." + sys.argv[3]
__import__(name)
import posix
end = posix._exit
def record(code):
    loaded = sorted({*sys.modules} - bare)
    with open(sys.argv[2], "w") as file:
        file.write(repr(loaded).replace("'", '"'))
    end(code)
posix._exit = record
posix.fork = lambda: 1
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
    for name in ("abc", "codecs", "encodings", "io"):
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Seeker)
    enter(self)
def leaving(self, *reason):
    leave(self, *reason)
    sys.meta_path.remove(Seeker)
    with open(sys.argv[2], "w") as file:
        file.write(" ".join(sought))
Seeker = Seeker()
MountNamespace.__enter__, MountNamespace.__exit__ = entering, leaving
import nvhook.hook
nvhook.hook.main(sys.argv[3:])
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
        for _ in range(2):  # the first fills the caches; the second is what a host pays for
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


def test_the_hook_loads_its_budget_and_nothing_else(each_engine, loaded) -> None:
    found = loaded(each_engine)

    v2 = hot_archive.V2_MODULES if each_engine.view.name == "v2" else ()
    assert found - NATIVE - FOREIGN == {*hot_archive.HOOK, *v2}
    assert found >= NATIVE


def test_all_of_a_host_without_mig_loads_no_more(runc, loaded) -> None:
    assert loaded(runc, "all") - NATIVE - FOREIGN == {*hot_archive.HOOK}


def test_a_whole_gpu_of_a_host_with_mig_loads_no_more(runc, loaded, mig_driver) -> None:
    assert loaded(runc, "1", mig_driver) - NATIVE - FOREIGN == {*hot_archive.HOOK}


def test_a_mig_device_loads_what_it_needs(runc, loaded, mig_driver) -> None:
    """NVML, json and subprocess are not among it: the caches have the answer."""
    found = loaded(runc, "0:1", mig_driver) - NATIVE - FOREIGN
    assert found == {*hot_archive.HOOK, "nvhook.core.mig", "nvhook.formats.mig", "nvhook.host.mig"}


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


def test_the_runtime_loads_its_budget_and_nothing_else(runc, bundles, place) -> None:
    bundle: Bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    document = bundle.directory / "config.json"
    for _ in range(2):  # the first fills the caches
        bundle.write()
        paths = [bundle.directory, document, "/bin/nvhook", bundle.driver.config]
        command = [*recording(place / "modules.json", "runtime"), *map(str, paths), "", ""]
        subprocess.run(command, check=True)

    assert "--delegated" in document.read_text()
    found = set(json.loads((place / "modules.json").read_text()))
    assert found - {*hot_archive.RUNTIME} == {"_json", "_stat"}
    assert found >= {*hot_archive.RUNTIME}


@pytest.mark.parametrize("door", hot_archive.DOORS)
def test_the_archive_holds_the_installed_modules(door) -> None:
    name = f"{door}.modules"
    installed = _modules((PACKED / name).read_bytes())

    assert set(installed) == set(hot_archive.DOORS[door])
    assert installed == _modules(hot_archive.build(str(SITE / "nvhook"))[name])


def _modules(archive: bytes) -> dict[str, object]:
    """Return an archive's code objects: marshal does not give the same bytes twice."""
    modules: dict[str, object] = {}
    while archive:
        size = int.from_bytes(archive[:4], "little")
        assert size <= hot_archive.GROUP
        group = marshal.loads(archive[4 : 4 + size])  # noqa: S302 - our own
        modules |= {name: code for name, _, code in group}
        archive = archive[4 + size :]
    return modules


class Copy:
    """A copy of the installation, to be broken, and a bundle whose hook is its launcher."""

    def __init__(self, directory: Path, bundle: Bundle) -> None:
        self.package = directory / "nvhook"
        self.packed = self.package / PACKED.relative_to(SITE / "nvhook")
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

    def break_home(self, require: Callable[[bool, str], None], stamps: bytes = b"") -> None:
        """Make its encodings what no interpreter starts with; stamps: another one's."""
        encodings = self.packed / "encodings.pyc"
        require(encodings.stat().st_size > 0, "this Python needs more for its start")
        header = encodings.read_bytes()[:16]
        encodings.write_bytes(
            header[:8] + (stamps or header[8:]) + (self.packed / "start.pyc").read_bytes()[16:]
        )


@pytest.fixture
def copy(runc, bundles, place) -> Copy:
    """A copy of the installation. Its bundle asks for what does not exist."""
    (place / "copy").mkdir()
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=nonsense")
    return Copy(place / "copy", bundle)


@pytest.mark.parametrize("debug", [False, True])
def test_the_launcher_runs_the_archive_unless_debugging(runc, copy, debug) -> None:
    (copy.package / "hook.py").write_text("raise SystemExit(3)\n")
    result = copy.run(runc, debug)
    assert ("unknown device id nonsense" in result.stderr) is not debug
    assert ("exit status 3" in result.stderr) is debug


@pytest.mark.parametrize("debug", [False, True])
def test_the_interpreter_starts_with_its_home_unless_debugging(runc, copy, require, debug) -> None:
    copy.break_home(require)
    result = copy.run(runc, debug)
    assert ("Fatal Python error" in result.stderr) is not debug
    assert ("unknown device id nonsense" in result.stderr) is debug


@pytest.mark.parametrize("field", [0, 4])
def test_a_home_of_another_interpreter_is_not_used(runc, copy, require, field) -> None:
    """One of the same version may need more for its start: it was not tried."""
    python = os.stat(os.path.realpath(sys.executable))
    stamps = bytearray()
    for stamp in (int(python.st_mtime), python.st_size):
        stamps += (stamp & 0xFFFFFFFF).to_bytes(4, "little")
    assert stamps == (copy.packed / "encodings.pyc").read_bytes()[8:16]
    stamps[field] ^= 1
    copy.break_home(require, bytes(stamps))

    assert "unknown device id nonsense" in copy.run(runc, debug=False).stderr


@pytest.mark.parametrize("lost", ["home", "archive", "all"])
def test_what_is_not_packed_is_done_without(runc, copy, lost) -> None:
    """Another version of Python than it was built with, or one that needs more for its start."""
    if lost == "home":
        (copy.packed / "encodings.pyc").write_bytes(b"")
    elif lost == "archive":
        (copy.packed / "hook.modules").unlink()
    else:
        shutil.rmtree(copy.package / "_hot")  # noqa: TID251 - of our own making

    assert "unknown device id nonsense" in copy.run(runc, debug=False).stderr


def test_the_launcher_is_the_same_with_either_c_library(runc, copy, require) -> None:
    """The build takes musl where it is, so that glibc's is tried only here."""
    require(shutil.which("musl-gcc") is not None, "needs musl-tools")
    sources = [SOURCES / f"{name}.c" for name in LAUNCHER]
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
