"""The command line: what is printed where, exit statuses, and that commands are imported lazily."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import nvhook
from nvhook import config, state
from nvhook.cli.root import COMMANDS, main
from nvhook.core.edits import (
    CachedLibrary,
    CgroupRule,
    DeviceNode,
    LdCacheUpdate,
    Mount,
    Plan,
    Symlink,
    TextFile,
)
from nvhook.core.inventory import Gpu, Inventory, Library
from nvhook.core.request import Request
from nvhook.create import pipeline, preview
from nvhook.errors import HostError

ROOT = nvhook.__file__.rpartition("/nvhook/")[0]
GPU = Gpu(1, "GPU-bbbb", 0, "0000:0a:00.0", "NVIDIA [bold]T4[/bold]")
INVENTORY = Inventory(
    "550.54.14",
    "12.4",
    "/d[b]",
    "/proc",
    {"nvidia": 195, "nvidia-uvm": 511},
    (GPU,),
    (),
    (Library("libcuda.so", "libcuda.so.1", "/lib/libcuda.so.550", "/d/lib/libcuda.so.550", 0, 64),),
    (),
    {},
)
PLAN = Plan(
    (
        DeviceNode("/dev/nvidia0", "/dev/nvidia0", 195, 0),
        CgroupRule("c", 195, 0),
        Mount("/d/lib/libcuda.so.550", "/lib/libcuda.so.550", required=True),
        Symlink("/lib/libcuda.so.1", "libcuda.so.550"),
        TextFile("/proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n"),
        LdCacheUpdate((CachedLibrary("libcuda.so.1", "/lib/libcuda.so.1", 0x303),)),
    )
)
OUTCOME = pipeline.Outcome(Request(("1",), ("compute",), "--gpus"), (GPU,), PLAN)


@pytest.fixture(autouse=True)
def no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the machine's own configuration, cache and driver out of the tests."""
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setattr(config, "DEFAULT_PATH", str(tmp_path / "etc/config.toml"))
    monkeypatch.setattr(pipeline, "inventory", lambda *_arguments: INVENTORY)
    monkeypatch.delenv("NVHOOK_DEBUG", raising=False)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="nvhook")


def process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "nvhook", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_list_json() -> None:
    result = invoke("list", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "driver_version": "550.54.14",
        "cuda_version": "12.4",
        "driver_root": "/d[b]",
        "majors": {"nvidia": 195, "nvidia-uvm": 511},
        "gpus": [
            {
                "index": 1,
                "uuid": "GPU-bbbb",
                "minor": 0,
                "pci_bus_id": "0000:0a:00.0",
                "model": "NVIDIA [bold]T4[/bold]",
                "mig_devices": [],
            }
        ],
        "libraries": ["/d/lib/libcuda.so.550"],
    }


def test_list_for_people() -> None:
    result = invoke("list")
    assert result.exit_code == 0
    assert "driver 550.54.14, CUDA 12.4, root /d[b]" in result.stdout
    row = result.stdout.splitlines()[-1].split("  ")
    cells = [cell.strip() for cell in row if cell.strip()]
    assert cells == ["1", "GPU-bbbb", "0", "0000:0a:00.0", "NVIDIA [bold]T4[/bold]"]


def test_plan_json(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        preview, "plan_for_gpus", lambda *arguments: asked.append(arguments) or OUTCOME
    )
    result = invoke("plan", "--gpus", "1", "--capabilities", "compute", "--json")
    assert result.exit_code == 0
    assert asked == [("1", "compute", config.Config())]
    document = json.loads(result.stdout)
    edits, missed = document.pop("edits"), document.pop("not_found")
    assert document == {
        "gpu_container": True,
        "asked_by": "--gpus",
        "devices": [
            {
                "kind": "gpu",
                "index": 1,
                "uuid": "GPU-bbbb",
                "minor": 0,
                "pci_bus_id": "0000:0a:00.0",
            }
        ],
        "driver_capabilities": ["compute"],
        "requirements": [],
    }
    assert [edit["kind"] for edit in edits] == [
        "device-node",
        "cgroup-rule",
        "mount",
        "symlink",
        "text-file",
        "ld-cache",
    ]
    assert edits[0] == {
        "kind": "device-node",
        "container_path": "/dev/nvidia0",
        "host_path": "/dev/nvidia0",
        "major": 195,
        "minor": 0,
        "mode": 0o666,
        "uid": 0,
        "gid": 0,
        "why": "GPU 1",
    }
    assert edits[2]["why"] == "compute"
    by_name = {each["name"]: each for each in missed}
    assert "libcuda.so" not in by_name
    assert by_name["nvidia-uvm-tools"] == {
        "kind": "node",
        "looked_in": ["/dev"],
        "name": "nvidia-uvm-tools",
        "needed_by": ["compute"],
    }
    compiler = by_name["libnvidia-ptxjitcompiler.so"]
    assert (compiler["kind"], compiler["needed_by"]) == ("library", ["compute"])
    assert {"/d[b]/etc/ld.so.cache", "/d[b]/usr/lib64"} <= {*compiler["looked_in"]}
    assert not any("smi" in name for name in by_name)  # utility was not asked for
    assert edits[5]["libraries"] == [
        {"name": "libcuda.so.1", "container_path": "/lib/libcuda.so.1", "flags": 0x303}
    ]


def test_plan_for_people_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "plan_for_bundle", lambda _bundle, _config, _warnings: OUTCOME)
    result = invoke("plan", "--bundle", "/b")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "GPU 1" in lines["device-node"]
    assert lines["mount"].rstrip().endswith("compute")
    assert "/lib/libcuda.so.1 -> libcuda.so.550" in lines["symlink"]
    assert "libnvidia-ptxjitcompiler.so, " in lines["library"]
    assert "looked in /d[b]/etc/ld.so.cache /d[b]/usr/lib64" in lines["library:"]


def test_plan_of_a_container_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "plan_for_bundle", lambda _bundle, _config, _warnings: None)
    result = invoke("plan", "--bundle", "/b", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "gpu_container": False,
        "asked_by": "",
        "devices": [],
        "driver_capabilities": [],
        "requirements": [],
        "edits": [],
        "not_found": [],
    }
    assert invoke("plan", "--bundle", "/b").stdout == "not a GPU container: nothing to do\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["lst"], "nvhook: no such command 'lst'"),
        (["list", "--foo"], "nvhook: no such option"),
        (["list", "extra"], "nvhook: got unexpected extra argument (extra)"),
        (["plan"], "nvhook: give one of --bundle DIR and --gpus LIST (hint: nvhook plan --help)"),
        (["plan", "--gpus", "0", "--bundle", "/b"], "nvhook: give one of --bundle DIR and --gpus"),
        (
            ["plan", "--bundle", "/b", "--capabilities", "utility"],
            "nvhook: --capabilities goes with",
        ),
    ],
)
def test_usage_errors(arguments: list[str], line: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("config",)])
def test_group_without_command_shows_its_help(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert "Usage: nvhook" in result.output
    assert "Commands:" in result.output


def test_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_config: config.Config) -> Inventory:
        raise HostError("no driver\nhere", "load it")

    monkeypatch.setattr(pipeline, "inventory", fail)
    result = invoke("list", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "nvhook: no driver here (hint: load it)\n"
    monkeypatch.setenv("NVHOOK_DEBUG", "1")
    assert isinstance(invoke("list").exception, HostError)


def test_operating_system_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_config: config.Config) -> Inventory:
        raise PermissionError(13, "Permission denied", "/x")

    monkeypatch.setattr(pipeline, "inventory", fail)
    result = invoke("list")
    assert (result.exit_code, result.stderr) == (1, "nvhook: /x: Permission denied\n")


def test_bug_shows_no_traceback_unless_asked_for() -> None:
    script = "import nvhook.cli.root as c; c.main.callback = lambda: 1 / 0; c.run()"
    command = [sys.executable, "-I", "-c", script, "config", "default"]
    for debug, traceback in (("", False), ("1", True)):
        environment = {**os.environ, "NVHOOK_DEBUG": debug}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert ("Traceback" in done.stderr) == traceback
        assert "ZeroDivisionError" in done.stderr
        assert traceback or done.stderr.count("\n") == 1


@pytest.mark.parametrize("before", [True, False])
def test_config_before_and_after_the_command(tmp_path: Path, before: bool) -> None:
    path = tmp_path / "c.toml"
    path.write_text('driver-root = "/elsewhere"\n')
    option = ["--config", str(path)]
    command = ["config", "show", "--json"]
    result = invoke(*option, *command) if before else invoke(*command, *option)
    shown = json.loads(result.stdout)
    assert shown["driver-root"] == {"value": "/elsewhere", "origin": str(path)}
    assert shown["dev-root"] == {"value": "/dev", "origin": "default"}


def test_every_command_takes_config() -> None:
    def leaves(command: click.Command, name: str) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                assert found is not None
                leaves(found, f"{name} {child}")
        elif "--config" not in [o for p in command.params for o in p.opts]:
            missing.append(name)

    missing: list[str] = []
    leaves(main, "nvhook")
    assert missing == []


def test_missing_config_is_an_error(tmp_path: Path) -> None:
    result = invoke("list", "--config", str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert "does not exist" in result.stderr


def test_default_configuration_can_be_used_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(invoke("config", "default").stdout)
    assert config.load(str(path)) == config.Config()
    path.write_text(invoke("config", "show").stdout)
    assert config.load(str(path)) == config.Config()


def test_help_lists_commands_as_they_describe_themselves() -> None:
    context = click.Context(main)
    for name, (_, text) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == text
        assert text in invoke("--help").stdout


def test_version() -> None:
    for words in (["--version"], ["--config", "/nothing", "--version"]):
        done = process(*words)
        assert (done.returncode, done.stdout) == (0, f"nvhook {nvhook.__version__}\n")


def test_version_loads_no_click() -> None:
    script = "import sys; sys.argv = ['nvhook', '--version']; from nvhook.cli import run; "
    script += "sys.modules['click'] = None; run()"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"nvhook {nvhook.__version__}\n"), done.stderr


def test_version_that_can_not_be_written_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nvhook", "--version"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "nvhook: No space left on device\n")


def test_commands_are_imported_when_needed() -> None:
    script = """
import sys
import nvhook.cli.root as cli
try:
    cli.main(["--help"], prog_name="nvhook")
except SystemExit:
    pass
loaded = [name for name in sys.modules if name.startswith(("nvhook.cli.", "rich", "nvhook.host"))]
print(sorted(loaded), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == "['nvhook.cli.options', 'nvhook.cli.root']\n"


def test_shell_completion() -> None:
    assert "_NVHOOK_COMPLETE" in process(_NVHOOK_COMPLETE="bash_source").stdout
    words = {"COMP_WORDS": "nvhook pl", "COMP_CWORD": "1"}
    done = process(_NVHOOK_COMPLETE="bash_complete", **words)
    assert done.stdout.split() == ["plain,plan"]


def test_json_has_no_colours() -> None:
    for arguments in (["list", "--json"], ["config", "show", "--json"]):
        result = CliRunner(env={"FORCE_COLOR": "1", "TERM": "xterm-256color"}).invoke(
            main, arguments, prog_name="nvhook", color=True
        )
        assert "\x1b" not in result.stdout
        json.loads(result.stdout)
