"""Engines are asked for a container's process; programs of these names play them."""

from pathlib import Path

import click
import pytest

from nvhook.cli.container import Chosen
from nvhook.errors import ContainerError, HostError

TASKS = """TASK    PID      STATUS
web     4711     RUNNING
webber  4712     RUNNING
old     4713     STOPPED
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a program that prints something; its arguments are in the file NAME.asked."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(name: str, output: str, error: str = "", status: int = 0) -> Path:
        program = tmp_path / name
        (tmp_path / "output").write_text(output)
        asked = tmp_path / f"{name}.asked"
        program.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$@" >{asked}\ncat {tmp_path}/output\n'
            f"echo '{error}' >&2\nexit {status}\n"
        )
        program.chmod(0o755)
        return asked

    return make


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_inspect(engine, name):
    asked = engine(name, "4711\n")

    chosen = Chosen(None, *(("web", None) if name == "docker" else (None, "web")), None)

    assert chosen.pid == 4711
    words = asked.read_text().split()
    assert words == ["inspect", "--type", "container", "--format", "{{.State.Pid}}", "web"]
    assert chosen.with_variable("A", "b") == f"{name} exec -e A=b web COMMAND"
    assert chosen.with_group(44) == f"{name} exec --user 0:44 web COMMAND"


def test_containerd(engine):
    asked = engine("ctr", TASKS)

    assert Chosen(None, None, None, "k8s.io/web").pid == 4711
    assert asked.read_text().split() == ["-n", "k8s.io", "tasks", "ls"]


@pytest.mark.parametrize(
    ("name", "message"), [("k8s.io/old", "is stopped"), ("k8s.io/none", "has no task none")]
)
def test_containerd_without_such_a_running_task(engine, name, message):
    engine("ctr", TASKS)
    with pytest.raises(ContainerError, match=message):
        Chosen(None, None, None, name)


@pytest.mark.parametrize("name", ["web", "/web", "ns/", "-x/web"])
def test_a_containerd_name_needs_its_namespace(name):
    with pytest.raises(click.UsageError, match="NS/ID"):
        Chosen(None, None, None, name)


def test_a_container_that_is_not_running(engine):
    engine("docker", "0\n")
    with pytest.raises(ContainerError, match="web is not running"):
        Chosen(None, "web", None, None)


def test_what_the_engine_says_is_passed_on(engine):
    engine("docker", "", "Error: No such container: web", 1)
    with pytest.raises(ContainerError, match="No such container: web"):
        Chosen(None, "web", None, None)


def test_a_name_is_no_option():
    with pytest.raises(click.UsageError, match="--help is not"):
        Chosen(None, "--help", None, None)


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="podman is not installed"):
        Chosen(None, None, "web", None)


def test_exactly_one_name():
    for names in ((None, None, None, None), (1, "web", None, None)):
        with pytest.raises(click.UsageError, match="give one of"):
            Chosen(*names)


def test_lines_for_a_process():
    chosen = Chosen(4711, None, None, None)
    assert chosen.with_variable("A", "b") == "nsenter -a -t 4711 env A=b COMMAND"
    assert chosen.with_group(44) == "nsenter -a -t 4711 --setgid 44 COMMAND"
