"""What a hot door loads is a budget, kept as a set of modules and never in milliseconds."""

import json
import marshal
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nvhook
from nvhook import hot_archive
from tests.runtime.bundle import Bundle
from tests.runtime.simulated import Driver

# Beside the bare interpreter and nvhook's modules. A module here costs every GPU container.
FOREIGN = {"_cffi_backend", "_json", "_stat", "_struct", "errno", "posix", "time"}
NATIVE = {"nvhook._native._syscalls", "nvhook._native._syscalls.lib"}
SITE = Path(nvhook.__file__).parent.parent

# Runs the hook as the launcher does and writes down what was loaded beside the bare interpreter.
RECORD = """
import sys
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


def recording(result: Path, door: str) -> list[str]:
    """Return the command that runs a door and writes down what it loaded."""
    python = str(Path(sys.executable).resolve())
    return [python, "-I", "-S", "-c", RECORD, str(SITE), str(result), door]


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
    name = f"{door}-{sys.version_info[0]}{sys.version_info[1]}.modules"
    installed = _modules((SITE / "nvhook/_hot" / name).read_bytes())

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


@pytest.mark.parametrize("debug", [False, True])
def test_the_launcher_runs_the_archive_unless_debugging(runc, bundles, place, debug) -> None:
    """In a copy of the installation whose hook.py is broken."""
    copy = place / "copy"
    (copy / "bin").mkdir(parents=True)
    shutil.copytree(SITE / "nvhook", copy / "nvhook")
    (copy / "nvhook/hook.py").write_text("raise SystemExit(3)\n")
    for backend in SITE.glob("_cffi_backend*.so"):
        shutil.copy(backend, copy)
    if sys.version_info < (3, 11):
        shutil.copytree(SITE / "tomli", copy / "tomli")
    bundle = bundles(runc)
    shutil.copy(bundle.driver.launcher, copy / "bin")
    (copy / "bin/python3").symlink_to(Path(sys.executable).resolve())
    bundle.ask("NVIDIA_VISIBLE_DEVICES=nonsense")
    hook = bundle.config["hooks"]["prestart"][0]
    hook["path"] = str(copy / "bin/nvhook")
    hook["env"] += ["NVHOOK_DEBUG=1"] if debug else []

    result = runc.run(bundle)

    assert result.returncode != 0
    assert ("unknown device id nonsense" in result.stderr) is not debug
    assert ("exit status 3" in result.stderr) is debug
