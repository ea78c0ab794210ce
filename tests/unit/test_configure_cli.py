"""nvhook configure: what is written, what is not, and what the operator is told."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvhook.cli.engine_file import read_text, write_text
from nvhook.cli.root import main
from nvhook.engines import containerd, crio, docker, podman
from nvhook.errors import ConfigError

ENGINES = ["docker", "containerd", "crio"]
NAME_OF = {"docker": "daemon.json", "containerd": "config.toml", "crio": "99-nvhook.conf"}
BEFORE = {
    "docker": '{\n\t"hosts": ["fd://"]\n}\n',
    "containerd": "version = 2 # two\n[plugins.'io.containerd.grpc.v1.cri'.registry]\n",
    "crio": "# mine\n",
}


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a launcher with a runtime beside it, and keep the machine's own files out."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("nvhook", "nvhook-runtime"):
        (programs / name).touch(0o755)
    monkeypatch.setenv("NVHOOK_LAUNCHER", str(programs / "nvhook"))
    monkeypatch.setattr(crio, "MAIN_FILE", str(tmp_path / "crio.conf"))
    monkeypatch.setattr(podman, "HOOK_DIRECTORIES", (str(tmp_path / "hooks.d"),))
    monkeypatch.setattr(podman, "CDI_FILE", str(tmp_path / "nvidia.yaml"))
    return programs / "nvhook-runtime"


def invoke(*arguments: str, color: bool = False) -> Result:
    return CliRunner().invoke(
        main, ["configure", *arguments], prog_name="nvhook", color=color, catch_exceptions=False
    )


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.lstat().st_ino, path.read_bytes() if path.is_file() else b"")
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("there", [True, False])
def test_configure_again_and_undo(engine: str, there: bool, tmp_path: Path, program: Path) -> None:
    file = tmp_path / "etc/engine" / NAME_OF[engine]
    if there:
        file.parent.mkdir(parents=True)
        file.write_text(BEFORE[engine])
    done = invoke(engine, "--file", str(file))
    assert done.exit_code == 0
    action = "changed" if there else "created"
    assert done.stdout == f"{action} {file}\nthen: systemctl restart {engine}\n"
    assert str(program) in file.read_text()
    before = tree(file.parent)
    assert invoke(engine, "--file", str(file)).stdout == f"{file}: already configured\n"
    assert tree(file.parent) == before
    undone = invoke(engine, "--file", str(file), "--undo")
    assert undone.stdout.startswith(f"{'changed' if there else 'removed'} {file}\n")
    assert (file.read_text() == BEFORE[engine]) if there else not file.exists()
    assert invoke(engine, "--file", str(file), "--undo").stdout == f"{file}: nothing to undo\n"
    assert [*file.parent.iterdir()] == ([file] if there else [])


@pytest.mark.parametrize("engine", ENGINES)
def test_dry_run_shows_a_patch_and_writes_nothing(
    engine: str, tmp_path: Path, require: Callable[[bool, str], None]
) -> None:
    require(shutil.which("patch") is not None, "the program patch")
    file = tmp_path / NAME_OF[engine]
    file.write_text(BEFORE[engine].rstrip("\n"))  # the hard case: no end of the last line
    original = file.read_bytes()
    before = tree(tmp_path)
    shown = invoke(engine, "--file", str(file), "--set-as-default", "--dry-run")
    assert tree(tmp_path) == before
    assert "\x1b" not in shown.stdout
    subprocess.run(["patch", "-s", str(file)], input=shown.stdout, text=True, check=True)
    patched = file.read_bytes()
    file.write_bytes(original)
    assert invoke(engine, "--file", str(file), "--set-as-default").exit_code == 0
    assert file.read_bytes() == patched
    undo = invoke(engine, "--file", str(file), "--undo", "--dry-run", color=True)
    assert "\x1b[31m\x1b[22m-" in undo.stdout
    assert file.read_bytes() == patched


def test_dry_run_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "no/daemon.json"
    shown = invoke("docker", "--file", str(file), "--dry-run")
    assert shown.stdout.startswith(f"--- /dev/null\n+++ {file}\n")
    assert not file.parent.exists()


def test_json(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    done = invoke("docker", "--file", str(file), "--json")
    document = json.loads(done.stdout)
    assert document.pop("diff").startswith("--- /dev/null\n")
    assert document == {
        "engine": "docker",
        "file": str(file),
        "action": "created",
        "dry_run": False,
        "restart": "systemctl restart docker",
        "warnings": [],
    }
    again = json.loads(invoke("docker", "--file", str(file), "--json").stdout)
    assert (again["action"], again["diff"]) == ("none", "")


def test_symbolic_link_stays_and_its_target_keeps_mode_and_owner(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.write_text("{}")
    target.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(target, 12, 34)
    owner = (target.stat().st_uid, target.stat().st_gid)
    (tmp_path / "etc").mkdir()
    link = tmp_path / "etc/daemon.json"
    link.symlink_to("../target.json")
    assert invoke("docker", "--file", str(link)).exit_code == 0
    assert link.is_symlink()
    status = target.stat()
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert (status.st_uid, status.st_gid) == owner
    assert "nvhook-runtime" in target.read_text()
    assert invoke("docker", "--file", str(link), "--undo").exit_code == 0
    assert link.is_symlink()
    assert target.read_text() == "{}"


def test_link_to_nothing_is_written_through_and_left_as_it_was(tmp_path: Path) -> None:
    link = tmp_path / "daemon.json"
    link.symlink_to("deep/target.json")
    assert invoke("docker", "--file", str(link)).exit_code == 0
    assert (tmp_path / "deep/target.json").is_file()
    assert invoke("docker", "--file", str(link), "--undo").exit_code == 0
    assert link.is_symlink()
    assert not link.exists()


def test_new_file_can_be_read_by_all_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        invoke("docker", "--file", str(tmp_path / "daemon.json"))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "daemon.json").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{\n"a": }', "FILE line 2: expecting value"),
        (b'{\n\n"a": "\xff"}', "FILE line 3: not UTF-8"),
        (b" " * (4 << 20) + b"{}", "FILE is larger than 4194304 bytes"),
    ],
)
def test_file_that_is_not_understood_is_left_alone(
    content: bytes, line: str, tmp_path: Path
) -> None:
    file = tmp_path / "daemon.json"
    file.write_bytes(content)
    before = tree(tmp_path)
    for option in ("--dry-run", "--undo", "--set-as-default"):
        done = invoke("docker", "--file", str(file), option)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == f"nvhook: {line.replace('FILE', str(file))}\n"
    assert tree(tmp_path) == before


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    done = invoke("docker", "--file", str(tmp_path / "fifo"))
    assert done.stderr == f"nvhook: {tmp_path}/fifo is not a regular file\n"
    done = invoke("docker", "--file", str(tmp_path))
    assert done.stderr == f"nvhook: {tmp_path} is not a regular file\n"
    (tmp_path / "file").touch()
    done = invoke("docker", "--file", str(tmp_path / "file/daemon.json"))
    assert done.stderr == f"nvhook: can't read {tmp_path}/file/daemon.json: Not a directory\n"


def test_failed_write_leaves_the_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_text("old")
    before = tree(tmp_path)

    def fail(_fd: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        ConfigError, match=r"can't write .*/f: Operation not permitted \(hint: run it"
    ):
        write_text(str(file), "new")
    assert tree(tmp_path) == before


def test_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str, _flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        ConfigError, match=r"can't read /f: Permission denied \(hint: run it as root"
    ):
        read_text("/f")


@pytest.mark.parametrize("engine", ENGINES)
def test_runtime_must_be_there_unless_it_is_a_dry_run(
    engine: str, tmp_path: Path, program: Path
) -> None:
    file = tmp_path / "f" / NAME_OF[engine]
    program.chmod(0o644)
    done = invoke(engine, "--file", str(file))
    assert done.exit_code == 1
    assert done.stderr.startswith(
        f"nvhook: {program} is not executable (hint: chmod +x {program}, or"
    )
    done = invoke(engine, "--file", str(file), "--runtime-path", str(tmp_path))
    assert done.stderr == f"nvhook: {tmp_path} is not a file (hint: name it with --runtime-path)\n"
    assert not file.exists()
    done = invoke(engine, "--file", str(file), "--runtime-path", "/no/where", "--dry-run")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "/no/where" in done.stdout


def test_runtime_is_looked_for_beside_the_launcher_or_among_the_scripts(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sysconfig

    options = ["docker", "--file", str(tmp_path / "x"), "--dry-run"]
    assert str(program) in invoke(*options).stdout
    # What scripts/install-hook.sh makes: the launcher is not where its names are.
    monkeypatch.setenv("NVHOOK_LAUNCHER", f"{tmp_path}/lib/nvhook/bin/nvhook")
    assert str(program) in invoke(*options).stdout
    monkeypatch.delenv("NVHOOK_LAUNCHER")
    assert f"{sysconfig.get_path('scripts')}/nvhook-runtime" in invoke(*options).stdout


def test_undo_says_that_a_runtime_is_there_that_nvhook_did_not_write(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_text('{"runtimes": {"nvidia": {"path": "/usr/local/bin/nvhook-runtime"}}}')
    done = invoke("docker", "--file", str(file), "--undo")
    assert done.stdout == f"{file}: nothing to undo\n"
    assert done.stderr == (
        f"nvhook: {file} names nvhook without the marks of nvhook configure: edit it yourself\n"
    )


def test_containerd_warns_of_imported_files(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('version = 2\nimports = ["conf.d/*.toml"]\n')
    (tmp_path / "conf.d").mkdir()
    other = tmp_path / "conf.d/99-nvidia.toml"
    other.write_text(
        "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\nruntime_type = 'x'\n"
    )
    done = invoke("containerd", "--file", str(file))
    assert done.stderr == f"nvhook: {other} is imported later and has its own runtime nvidia\n"
    assert done.exit_code == 0
    assert invoke("containerd", "--file", str(file), "--undo").stderr == ""


def test_crio_reads_its_other_files(tmp_path: Path) -> None:
    (tmp_path / "crio.conf").write_text("[crio.runtime.runtimes.crun]\nmonitor_path = '/conmon'\n")
    (tmp_path / "crio.conf.d").mkdir()
    other = tmp_path / "crio.conf.d/99-nvidia.conf"
    other.write_text("[crio.runtime.runtimes.nvidia]\nruntime_path = '/theirs'\n")
    file = tmp_path / "crio.conf.d/99-nvhook.conf"
    done = invoke("crio", "--file", str(file))
    assert (
        done.stderr == f"nvhook: {other} is read later, and wins: its runtime nvidia is /theirs\n"
    )
    assert 'monitor_path = "/conmon"' in file.read_text()
    before = file.read_text()
    assert invoke("crio", "--file", str(file)).stdout.endswith("already configured\n")
    assert file.read_text() == before


def test_podman_hook(tmp_path: Path) -> None:
    file = tmp_path / "hooks.d/oci-nvhook.json"
    done = invoke("podman", "--file", str(file))
    assert done.stdout == f"created {file}\npodman reads it at each start\n"
    assert json.loads(file.read_text())["hook"]["path"] == str(tmp_path / "bin/nvhook")
    nvidia = file.with_name("oci-nvidia-hook.json")
    nvidia.write_text('{"hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}')
    done = invoke("podman", "--file", str(file))
    assert done.stdout == f"{file}: already configured\n"
    assert done.stderr.startswith(f"nvhook: {nvidia} calls nvidia-container-runtime-hook, which")
    assert invoke("podman", "--file", str(file), "--undo").stdout.startswith(f"removed {file}\n")
    assert not file.exists()


def test_podman_runtime(tmp_path: Path, program: Path) -> None:
    file = tmp_path / "99-nvhook.conf"
    arguments = ["podman", "--mode", "runtime", "--file", str(file)]
    assert invoke(*arguments, "--set-as-default").exit_code == 0
    assert file.read_text() == (
        "# file made by nvhook configure\n"
        "[engine]  # by nvhook configure\n"
        '  runtime = "nvidia"  # by nvhook configure\n'
        "[engine.runtimes]  # by nvhook configure\n"
        f'  nvidia = ["{program}"]  # by nvhook configure\n'
    )
    assert invoke(*arguments, "--undo").exit_code == 0
    assert not file.exists()


def test_podman_cdi_says_what_to_run(tmp_path: Path) -> None:
    done = invoke("podman", "--mode", "cdi")
    assert done.stdout.startswith(f"run: nvhook cdi generate --output {tmp_path}/nvidia.yaml\n")
    assert json.loads(invoke("podman", "--mode", "cdi", "--json").stdout)["action"] == "none"
    (tmp_path / "nvidia.yaml").touch()
    assert invoke("podman", "--mode", "cdi").stdout.startswith(f"{tmp_path}/nvidia.yaml is there\n")
    assert invoke("podman", "--mode", "cdi", "--undo").stdout == f"rm {tmp_path}/nvidia.yaml\n"
    assert (tmp_path / "nvidia.yaml").exists()


@pytest.mark.parametrize("option", [["--set-as-default"], ["--runtime-name", "x"]])
def test_podman_hook_has_no_runtime_to_name(option: list[str]) -> None:
    done = invoke("podman", *option)
    assert done.exit_code == 2
    assert done.stderr.startswith("nvhook: --mode hook registers no runtime to name or to set")


def test_engines_have_the_files_that_the_engines_read() -> None:
    assert docker.DEFAULT_FILE == "/etc/docker/daemon.json"
    assert containerd.DEFAULT_FILE == "/etc/containerd/config.toml"
    assert crio.DEFAULT_FILE == "/etc/crio/crio.conf.d/99-nvhook.conf"
    assert podman.HOOK_FILE == "/usr/share/containers/oci/hooks.d/oci-nvhook.json"
    for engine in [*ENGINES, "podman"]:
        text = " ".join(invoke(engine, "--help").stdout.split())
        module = {"docker": docker, "containerd": containerd, "crio": crio}.get(engine)
        assert "Examples:" in text
        assert module is None or module.DEFAULT_FILE in text.replace(" ", "")
