"""Which running container a command is about: a process, or an engine's name for it."""

import shutil
import subprocess
from collections.abc import Callable
from typing import Any, TypeVar

import click

from nvhook.errors import ContainerError, HostError

F = TypeVar("F", bound=Callable[..., Any])

_SECONDS = 30


def container_options(function: F) -> F:
    """Add --pid, --docker, --podman and --containerd."""
    for option in (
        click.option("--containerd", metavar="NS/ID", help="A container of containerd."),
        click.option("--podman", metavar="NAME", help="A container of podman."),
        click.option("--docker", metavar="NAME", help="A container of docker."),
        click.option("--pid", type=int, metavar="PID", help="Any process of the container."),
    ):
        function = option(function)
    return function


class Chosen:
    """A container as a person named it; ``execute`` begins a command line that runs something."""

    def __init__(
        self, pid: int | None, docker: str | None, podman: str | None, containerd: str | None
    ) -> None:
        """Find its process.

        Raises: click.UsageError; HostError; ContainerError.
        """
        if sum(each is not None for each in (pid, docker, podman, containerd)) != 1:
            raise click.UsageError("give one of --pid, --docker, --podman and --containerd")
        if docker is not None:
            self.pid, self.execute = _inspect("docker", docker), f"docker exec {{}}{docker} COMMAND"
        elif podman is not None:
            self.pid, self.execute = _inspect("podman", podman), f"podman exec {{}}{podman} COMMAND"
        elif containerd is not None:
            self.pid = _task(containerd)
            self.execute = f"nsenter -a -t {self.pid} env {{}}COMMAND"
        else:
            assert pid is not None
            self.pid, self.execute = pid, f"nsenter -a -t {pid} env {{}}COMMAND"

    def with_variable(self, name: str, value: str) -> str:
        """Return the command line that runs something with a variable of the environment."""
        option = "" if self.execute.startswith("nsenter") else "-e "
        return self.execute.format(f"{option}{name}={value} ")

    def with_group(self, gid: int) -> str:
        """Return the command line that runs something with a group."""
        if self.execute.startswith("nsenter"):
            return f"nsenter -a -t {self.pid} --setgid {gid} COMMAND"
        return self.execute.format(f"--user 0:{gid} ")


def _inspect(engine: str, name: str) -> int:
    """Return a container's process, by docker inspect or podman inspect."""
    if name.startswith("-"):
        raise click.UsageError(f"{name} is not a container's name")
    text = _ask(engine, "inspect", "--type", "container", "--format", "{{.State.Pid}}", name)
    pid = text.strip()
    if not pid.isdigit() or pid == "0":
        raise ContainerError(f"container {name} is not running", f"{engine} start {name}")
    return int(pid)


def _task(name: str) -> int:
    """Return a task's process: ctr lists name, process and status."""
    namespace, slash, container = name.partition("/")
    if not slash or not namespace or not container or namespace.startswith("-"):
        raise click.UsageError("--containerd needs NS/ID, as in k8s.io/1f2e3d")
    for line in _ask("ctr", "-n", namespace, "tasks", "ls").splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[0] == container:
            if fields[2] != "RUNNING":
                raise ContainerError(f"container {name} is {fields[2].lower()}", "start its task")
            return int(fields[1])
    raise ContainerError(
        f"containerd has no task {container} in namespace {namespace}", "ctr namespaces ls"
    )


def _ask(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise HostError(f"{command[0]} is not installed", "use --pid")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"{command[0]} does not answer", "use --pid") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise ContainerError(f"{command[0]}: {lines[-1]}", f"{command[0]} ps, or use --pid")
    return done.stdout
