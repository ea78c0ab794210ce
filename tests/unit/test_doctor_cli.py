"""nvhook doctor on the command line: what is printed, for whom, and the exit status."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvhook import config, state
from nvhook.cli.root import main
from nvhook.doctor import check, report

CHECKS = (
    check.ok("driver-loaded", "driver 550.54.14"),
    check.warning("podman", "[bold]two[/bold]\x1b[2J hooks", "one", "rm [x]"),
    check.not_applicable("selinux", "not enabled"),
    check.not_checked("log", "needs root"),
)
BAD = check.failed("gpu-nodes", "/dev/nvidia0 is missing", "it", "nvidia-modprobe -c 0")


@pytest.fixture(autouse=True)
def no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the machine's own configuration and cache out of the tests."""
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setattr(config, "DEFAULT_PATH", str(tmp_path / "etc/config.toml"))


def doctor(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments], prog_name="nvhook", input=text)


def found(monkeypatch: pytest.MonkeyPatch, *checks: check.Check) -> None:
    monkeypatch.setattr(report, "of_host", lambda _path: checks)


def test_a_table_for_people(monkeypatch):
    found(monkeypatch, *CHECKS)

    result = doctor()

    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["ok", "driver-loaded", "driver", "550.54.14"] in lines
    assert ["warning", "podman", "[bold]two[/bold]", "[2J", "hooks"] in lines
    assert ["expected", "one"] in lines
    assert ["fix", "rm", "[x]"] in lines
    assert ["not", "applicable", "selinux", "not", "enabled"] in lines
    assert ["not", "checked", "log", "needs", "root"] in lines
    assert "1 ok, 1 warning, 1 not applicable, 1 not checked" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_failed_check_is_exit_status_1(monkeypatch):
    found(monkeypatch, *CHECKS, BAD)
    assert doctor().exit_code == 1
    assert doctor("--json").exit_code == 1


def test_json_has_all_fields_of_all_checks(monkeypatch):
    found(monkeypatch, *CHECKS, BAD)

    document = json.loads(doctor("--json").stdout)

    assert list(document) == ["checks"]
    assert [each["status"] for each in document["checks"]] == [
        "ok",
        "warning",
        "not-applicable",
        "not-checked",
        "failed",
    ]
    assert document["checks"][-1] == {
        "name": "gpu-nodes",
        "status": "failed",
        "saw": "/dev/nvidia0 is missing",
        "expected": "it",
        "fix": "nvidia-modprobe -c 0",
    }


def test_colours_on_a_terminal_only():
    """The real command, once with a terminal and once with a pipe."""
    command = [sys.executable, "-I", "-m", "nvhook", "doctor", "--pid", str(os.getpid())]
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, env=environment, cwd="/") as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    piped = subprocess.run(command, capture_output=True, env=environment, cwd="/", check=False)
    assert process.returncode == piped.returncode == 1
    assert b"\x1b[1;31mfailed\x1b[0m" in shown
    assert b"failed" in piped.stdout
    assert b"\x1b" not in piped.stdout


def test_explain_names_cause_and_remedy():
    result = doctor("--explain", "Failed to initialize NVML: Unknown Error")

    assert result.exit_code == 0
    cause, remedy = result.stdout.splitlines()
    assert cause.startswith("cause:  ")
    assert "daemon-reload" in cause
    assert remedy.startswith("remedy: ")
    assert "/dev/char" in remedy


def test_explain_reads_a_log_from_standard_input():
    log = "line\nnvidia-container-cli: device error: 4: unknown device: unknown.\nline\n"
    result = doctor("--explain", "-", "--json", text=log)

    assert result.exit_code == 0
    (known,) = json.loads(result.stdout)["explanations"]
    assert list(known) == ["name", "cause", "remedy"]
    assert known["name"] == "unknown-device"


@pytest.mark.parametrize("text", ["", "something else went wrong"])
def test_explain_says_what_to_do_about_an_unknown_text(text):
    result = doctor("--explain", text)

    assert result.exit_code == 1
    assert result.stdout.startswith("this text is not known; nvhook doctor checks the host")


@pytest.mark.parametrize(
    "options",
    [
        ("--pid", "1", "--bundle", "/b"),
        ("--pid", "1", "--explain", "x"),
        ("--pid", "0"),
        ("--pid", "self"),
        ("--gpus", "0"),
    ],
)
def test_wrong_usage(options):
    result = doctor(*options)
    assert result.exit_code == 2
    assert result.stderr.startswith("nvhook: ")


def test_a_process_that_does_not_exist():
    result = doctor("--pid", str(2**22 + 1), "--json")

    assert result.exit_code == 1
    checks = {each["name"]: each for each in json.loads(result.stdout)["checks"]}
    assert "can't be opened: No such file or directory" in checks["container-process"]["saw"]


def test_a_bundle_that_does_not_exist(tmp_path):
    result = doctor("--bundle", str(tmp_path))

    assert result.exit_code == 1
    assert result.stderr.startswith(f"nvhook: {tmp_path}/config.json can't be read")


@pytest.mark.parametrize("which", ["--pid", "--bundle"])
def test_a_container_is_not_judged_without_a_valid_configuration(tmp_path, which):
    settings = tmp_path / "config.toml"
    settings.write_text("log-level = 7\n")
    value = "1" if which == "--pid" else str(tmp_path)

    result = doctor(which, value, "--config", str(settings), "--json")

    assert result.exit_code == 1
    statuses = [each["status"] for each in json.loads(result.stdout)["checks"]]
    assert statuses == ["failed", "not-checked"]
