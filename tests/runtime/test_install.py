"""scripts/install-hook.sh: real installations, their hooks in real containers, removal."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.runtime.engine import Handler
from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts/install-hook.sh"
COMPAT = "nvidia-container-runtime-hook"
HOOK_FILE = "usr/share/containers/oci/hooks.d/oci-nvhook.json"
Tree = dict[str, tuple[int, int, str]]


def install(
    *options: str | Path, path: str = "", wrap: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the script; ``path`` is put before PATH, ``wrap`` before the command."""
    environment = os.environ | {"PATH": f"{path}{os.environ['PATH']}"}
    command = [*wrap, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def succeed(*options: str | Path, wrap: Sequence[str] = ()) -> str:
    """Run the script, which must succeed without a word of complaint; return what it says."""
    done = install(*options, wrap=wrap)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def refuse(*options: str | Path, status: int = 1, path: str = "") -> str:
    """Run the script, which must refuse with one line; return it."""
    done = install(*options, path=path)
    assert done.returncode == status, done.stdout
    *_, line = done.stderr.splitlines()
    assert line.startswith("install-hook.sh: ")
    assert "(hint: " in line
    return line


def tree(directory: Path) -> Tree:
    """Return everything below a directory: mode, time of change, and content or target."""
    found = {}
    for path in directory.rglob("*"):
        status = path.lstat()
        content = ""
        if stat.S_ISLNK(status.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def contents(directory: Path) -> Tree:
    """Return the same without the times of directories, in which a file came and went."""
    found = tree(directory)
    return {
        path: (mode, 0 if stat.S_ISDIR(mode) else changed, content)
        for path, (mode, changed, content) in found.items()
    }


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels of nvhook, of everything it needs, and of pip."""
    directory = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(directory)]
    subprocess.run([*command, str(REPOSITORY), "pip"], check=True)
    return directory


@pytest.fixture(scope="session")
def offline(wheels: Path) -> list[str]:
    """Options to install without the network."""
    (wheel,) = wheels.glob("nvhook-*.whl")
    return [
        f"--wheel={wheel}",
        f"--find-links={wheels}",
        "--no-index",
        f"--python={sys.executable}",
    ]


@pytest.fixture(scope="session")
def original(offline: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with an installation; tests take copies."""
    directory = tmp_path_factory.mktemp("installed")
    succeed(*offline, "--root", directory)
    return directory


@pytest.fixture
def installed(original: Path, place: Path) -> Path:
    """A root directory of this test's own with an installation."""
    return Path(shutil.copytree(original, place / "root", symlinks=True))


@pytest.fixture
def empty(place: Path) -> Path:
    """An empty root directory."""
    directory = place / "root"
    directory.mkdir()
    return directory


# ---- it works ----


def test_a_container_gets_its_gpu_through_what_the_script_says(runc, bundles, place):
    prefix = place / "usr"
    said = succeed(
        f"--prefix={prefix}", f"--hooks-dir={place}/hooks.d", f"--python={sys.executable}"
    )
    _, _, rest = said.partition('"hooks": ')
    hooks, _ = json.JSONDecoder().raw_decode(rest)
    (entry,) = hooks["prestart"]
    assert entry["path"] == f"{prefix}/bin/nvhook"
    assert entry["env"]
    before = tree(prefix)

    bundle = bundles(runc)
    bundle.config["hooks"] = hooks
    entry["args"] += ["--config", str(bundle.settings)]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle)
    result = runc.start(bundle)

    assert_reaches(bundle, result, (1,), COMPUTE)
    run = [f"{prefix}/bin/nvhook", "list", "--json", "--config", str(bundle.settings)]
    listed = json.loads(subprocess.run(run, capture_output=True, check=True).stdout)
    assert [gpu["uuid"] for gpu in listed["gpus"]] == [gpu.uuid for gpu in bundle.driver.gpus]
    assert tree(prefix) == before, "running it changed it: was something not compiled?"
    succeed("--uninstall", f"--prefix={prefix}")
    assert not prefix.exists()
    assert not (place / "hooks.d").exists()


def test_docker_finds_the_name_it_looks_for(runc, bundles, installed, offline):
    succeed(*offline, "--root", installed, "--compat")
    launcher = installed / "usr/local/bin" / COMPAT
    bundle = bundles(runc)
    entry = bundle.config["hooks"]["prestart"][0]
    entry |= {"path": str(launcher), "args": [COMPAT, "-config", str(bundle.settings), "prestart"]}
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2")
    ask_everything(bundle)

    assert_reaches(bundle, runc.start(bundle), (0, 2), COMPUTE)


@pytest.mark.parametrize("name", ["nvhook-runtime", "nvidia-container-runtime"])
def test_the_runtime_is_installed_too(runc, bundles, installed, offline, name):
    succeed(*offline, "--root", installed, "--compat")
    handler = Handler(runc, installed / "usr/local/bin/nvhook", "hook", name)
    bundle = bundles(handler)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2")
    ask_everything(bundle)

    assert_reaches(bundle, handler.start(bundle), (0, 2), COMPUTE)

    (hook,) = json.loads((bundle.directory / "config.json").read_text())["hooks"]["createRuntime"]
    assert hook["path"] == str(installed / "usr/local/lib/nvhook/bin/nvhook")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["poststart"], ""), (["poststop"], ""), (["-version"], f"{COMPAT}: nvhook ")],
)
def test_the_other_calls_of_the_compatible_name(installed, offline, arguments, says):
    succeed(*offline, "--root", installed, "--compat")
    command = [str(installed / "usr/local/bin" / COMPAT), *arguments]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(says)
    assert bool(done.stdout) == bool(says)


def test_it_installs_without_network_and_without_pip(empty, offline, place):
    bare = place / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    succeed(*offline, f"--python={bare}/bin/python", "--root", empty, wrap=["unshare", "--net"])

    command = [str(empty / "usr/local/bin/nvhook"), "--version"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.startswith(b"nvhook ")
    # The interpreter is the system's, not that of an environment that may go away.
    assert (empty / "usr/local/lib/nvhook/bin/python3").readlink() == Path(sys.executable).resolve()


def test_modules_of_the_system_are_not_used(installed, place, require):
    python = str(Path(sys.executable).resolve())
    ask = [python, "-I", "-c", "import site; print(*site.getsitepackages(), sep='\\n')"]
    listed = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()
    directory = next(filter(os.path.isdir, listed), None)
    require(directory is not None, "needs an interpreter with a site directory")
    broken = place / "broken"
    broken.mkdir()
    (broken / "click.py").write_text("raise RuntimeError('the system has another click')\n")
    hide = (
        f"mount --bind {broken} {directory} && ! {python} -I -c 'import click' 2>/dev/null && exec "
    )
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f"{hide} {installed}/usr/local/bin/nvhook --version",
    ]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_everything_is_compiled_for_good(installed):
    lib = installed / "usr/local/lib/nvhook"
    tag = sys.implementation.cache_tag
    for source in (lib / "nvhook").rglob("*.py"):
        compiled = source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"
        # PEP 552: hash-based, and never compared with the source.
        assert compiled.read_bytes()[4:8] == b"\x01\0\0\0", source


# ---- twice, and not at all ----


def test_a_second_run_changes_nothing(installed, offline):
    before = tree(installed)
    assert "nothing to do" in succeed(*offline, "--root", installed)
    assert tree(installed) == before


def test_a_dry_run_says_where_and_changes_nothing(empty, offline):
    said = succeed(*offline, "--root", empty, "--compat", "--dry-run")
    assert not list(empty.iterdir())
    names = ("nvhook", "nvhook-runtime", COMPAT, "nvidia-container-runtime", "nvidia-container-cli")
    for path in ("lib/nvhook", "lib/nvhook/manifest", *(f"bin/{name}" for name in names)):
        assert f"{empty}/usr/local/{path}" in said
    assert f"{empty}/{HOOK_FILE}" in said


def test_a_dry_run_of_the_removal_names_every_file(installed):
    before = tree(installed)
    said = succeed("--uninstall", "--dry-run", "--root", installed)
    assert tree(installed) == before
    files = {path for path, (mode, _, _) in before.items() if not stat.S_ISDIR(mode)}
    assert {line.removeprefix(f"would remove {installed}/") for line in said.splitlines()} == files


def test_an_update_keeps_the_compatible_name(installed, offline):
    succeed(*offline, "--root", installed, "--compat")
    before = tree(installed)
    succeed(*offline, "--root", installed)
    assert tree(installed) == before


def test_another_hooks_directory_replaces_the_first(installed, offline):
    succeed(*offline, "--root", installed, "--hooks-dir", "/etc/containers/oci/hooks.d")
    assert not (installed / HOOK_FILE).exists()
    moved = installed / "etc/containers/oci/hooks.d/oci-nvhook.json"
    assert json.loads(moved.read_text())["hook"]["path"] == "/usr/local/bin/nvhook"
    succeed("--uninstall", "--root", installed)
    assert not list(installed.iterdir())


# ---- removal ----


def test_removal_leaves_nothing(installed, offline):
    succeed(*offline, "--root", installed, "--compat")
    succeed("--uninstall", "--root", installed)
    assert not list(installed.iterdir())
    assert "nothing to do" in succeed("--uninstall", "--root", installed)


def test_removal_keeps_what_is_not_its_own(installed):
    for name in ("bin/other", "lib/other/file", "lib/nvhook/notes"):
        path = installed / "usr/local" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    changed = installed / "usr/local/lib/nvhook/nvhook/hook.py"
    changed.write_text("print('mine')\n")
    relinked = installed / "usr/local/bin/nvhook"
    relinked.unlink()
    relinked.symlink_to("other")

    said = succeed("--uninstall", "--root", installed)

    files = {path for path in installed.rglob("*") if path.is_symlink() or not path.is_dir()}
    mine = {changed, relinked, installed / "usr/local/lib/nvhook/notes"}
    assert files == mine | {
        installed / "usr/local/bin/other",
        installed / "usr/local/lib/other/file",
    }
    kept = {
        Path(line[5:].rpartition(": ")[0]) for line in said.splitlines() if line.startswith("kept ")
    }
    assert kept == mine


# ---- refusals ----


@pytest.mark.parametrize(
    "path",
    ["usr/local/bin/nvhook", "usr/local/lib/nvhook/file", f"usr/local/bin/{COMPAT}", HOOK_FILE],
)
def test_a_foreign_file_is_never_overwritten(empty, offline, path):
    foreign = empty / path
    foreign.parent.mkdir(parents=True)
    foreign.write_text("not nvhook's")
    before = tree(empty)

    error = refuse(*offline, "--root", empty, "--compat")

    assert str(foreign if path != "usr/local/lib/nvhook/file" else foreign.parent) in error
    assert tree(empty) == before


def test_nvidias_own_hook_elsewhere_on_the_path_is_respected(empty, offline):
    foreign = empty / "usr/bin" / COMPAT
    foreign.parent.mkdir(parents=True)
    foreign.write_text("NVIDIA's")
    before = tree(empty)
    assert str(foreign) in refuse(*offline, "--root", empty, "--compat")
    assert tree(empty) == before


@pytest.mark.parametrize("name", ["usr/local/lib/nvhook/nvhook/hook.py", HOOK_FILE])
def test_an_update_does_not_overwrite_a_changed_file(installed, offline, name):
    changed = installed / name
    changed.write_text("mine")
    before = tree(installed)
    assert str(changed) in refuse(*offline, "--root", installed)
    assert tree(installed) == before


def test_an_update_does_not_lose_a_file_put_beside_its_own(installed, offline):
    added = installed / "usr/local/lib/nvhook/notes"
    added.write_text("mine")
    assert str(added) in refuse(*offline, "--root", installed, "--compat")
    assert added.exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--prefix", "relative"],
        ["--prefix=/"],
        ["--prefix=/a b"],
        ["--prefix=/a/../b"],
        ["--prefix"],
        ["--frobnicate"],
        ["--wheel=/nonexistent"],
        ["--root=/nonexistent"],
        ["extra"],
    ],
)
def test_usage_errors(options):
    refuse(*options, status=2)


def test_what_is_missing_to_build_is_named(empty, monkeypatch):
    monkeypatch.setenv("CC", "false")
    error = refuse("--root", empty)
    assert "missing to build: a C compiler (hint: " in error
    assert "libcap-dev" in error or "libcap-devel" in error
    assert not list(empty.iterdir())


# ---- failures half-way ----


def test_a_wheel_that_is_none_leaves_the_old_installation(installed, offline, place):
    wheel = place / "nvhook-9-py3-none-any.whl"
    wheel.write_text("not a zip file")
    before = contents(installed)
    assert "pip install failed" in refuse(*offline[1:], f"--wheel={wheel}", "--root", installed)
    assert contents(installed) == before


def test_a_failure_at_the_last_step_takes_everything_back(installed, failing_install, offline):
    before = contents(installed)
    moved = "--hooks-dir=/etc/hooks.d"
    done = install(*offline, "--root", installed, moved, "--compat", path=f"{failing_install}:")
    assert done.returncode != 0
    assert "/usr/local/lib/nvhook: nvhook" in done.stdout, "it failed too early for this test"
    assert contents(installed) == before


def test_a_first_installation_that_fails_leaves_nothing(empty, failing_install, offline):
    done = install(*offline, "--root", empty, path=f"{failing_install}:")
    assert done.returncode != 0
    assert not list(empty.iterdir())


def test_a_reader_that_goes_away_does_not_stop_it(empty, offline):
    command = [str(SCRIPT), *offline, "--root", str(empty)]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "nothing to do" in succeed(*offline, "--root", empty)


@pytest.fixture
def failing_install(place: Path) -> Path:
    """A directory for PATH whose ``install`` can't write the file for hooks.d."""
    directory = place / "programs"
    directory.mkdir()
    program = directory / "install"
    real = shutil.which("install")
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *oci-nvhook.json.new) exit 1 ;; esac\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    return directory


# ---- what lies in oci/ ----


def test_the_examples_are_one_hook():
    entry = json.loads((REPOSITORY / "oci/hook-entry.json").read_text())
    engines = json.loads((REPOSITORY / "oci/hooks.d/oci-nvhook.json").read_text())
    bundle = json.loads((REPOSITORY / "oci/bundle/config.json").read_text())
    assert entry["env"]
    assert engines["hook"] == entry
    assert engines["stages"] == ["prestart"]
    assert bundle["hooks"] == {"prestart": [entry]}


def test_the_example_bundle_runs(runc, bundles, installed):
    bundle = bundles(runc)
    example = json.loads((REPOSITORY / "oci/bundle/config.json").read_text())
    (entry,) = example["hooks"]["prestart"]
    entry["path"] = f"{installed}{entry['path']}"
    entry["args"] += ["--config", str(bundle.settings)]
    example["linux"]["cgroupsPath"] = bundle.config["linux"]["cgroupsPath"]
    bundle.config = example

    nodes = runc.start(bundle).stdout.split()

    assert nodes == sorted(
        f"/dev/{name}" for name in (*COMPUTE, f"nvidia{bundle.driver.gpus[0].minor}")
    )


# ---- the scripts themselves ----


def test_shellcheck(require: Callable[[bool, str], None]):
    require(shutil.which("shellcheck") is not None, "needs shellcheck")
    scripts = sorted([*REPOSITORY.glob("scripts/*.sh"), *REPOSITORY.glob("tests/gpu/*.sh")])
    assert SCRIPT in scripts
    done = subprocess.run(
        ["shellcheck", "-x", *map(str, scripts)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
