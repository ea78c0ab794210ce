"""nvhook configure: register nvhook with a container engine, or take it back."""

import functools
import os
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from glob import escape, glob
from typing import Any

import click

from nvhook.cli.engine_file import diff, read_others, read_text, write_text
from nvhook.cli.options import config_option, json_option
from nvhook.engines import containerd, crio, docker, podman
from nvhook.engines.registration import DEFAULT_NAME, Registration
from nvhook.errors import HostError

Register = Callable[[str | None], str]
Unregister = Callable[[str, str], str | None]
Warnings = Callable[[str | None], list[str]]

# scripts/install-hook.sh: the launcher lies here below the prefix, its names are in PREFIX/bin.
_INSTALLED = "/lib/nvhook/bin"
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Options:
    """What every engine's command takes; ``file`` is empty for the engine's default."""

    file: str
    runtime_name: str
    runtime_path: str
    set_as_default: bool
    dry_run: bool
    undo: bool
    as_json: bool

    def registration(self, cdi: bool = False) -> Registration:
        """Return what to register.

        Raises: ConfigError, HostError if the runtime can't be executed (unless nothing is written).
        """
        path = self.runtime_path or _beside_launcher("nvhook-runtime")
        if not self.undo and not self.dry_run:
            _check_executable(path, "name it with --runtime-path")
        return Registration(self.runtime_name, path, self.set_as_default, cdi)


def _common(default_file: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of all engines, passed as one Options."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(**given: Any) -> None:
            own = {key: given.pop(key) for key in [*given] if key not in Options.__slots__}
            given["file"] = os.path.abspath(given["file"]) if given["file"] else ""
            function(Options(**given), **own)

        decorated: Callable[..., None] = call
        for option in (
            config_option,
            json_option,
            click.option("--undo", is_flag=True, help="Take back what nvhook configure did."),
            click.option(
                "--dry-run", is_flag=True, help="Show the change as a diff, write nothing."
            ),
            click.option(
                "--set-as-default", is_flag=True, help="Run all containers with this runtime."
            ),
            click.option(
                "--runtime-path",
                metavar="FILE",
                default="",
                help="The runtime's program (default: nvhook-runtime beside nvhook).",
            ),
            click.option("--runtime-name", metavar="NAME", default=DEFAULT_NAME, show_default=True),
            click.option(
                "--file", metavar="FILE", default="", help=f"File to change ({default_file})."
            ),
        ):
            decorated = option(decorated)
        return decorated

    return add


@click.group("configure")
@config_option
def command() -> None:
    """Register nvhook with a container engine.

    Edits the engine's configuration and keeps everything else in it as it is. --undo gives the file
    back byte for byte. Nothing is restarted, and a second run changes nothing.
    """


@command.command("docker")
@_common(docker.DEFAULT_FILE)
@click.option("--cdi", is_flag=True, help="Switch on CDI (features.cdi), for docker 25 and newer.")
def docker_command(options: Options, cdi: bool) -> None:
    """Register the runtime in docker's daemon.json.

    What was there before (a runtime of this name, the default) is kept for --undo in the runtime's
    own entry, as "nvhook-before"; docker passes over it.

    \b
    Examples:
      nvhook configure docker --dry-run
      nvhook configure docker --set-as-default --cdi
      nvhook configure docker --undo
    """
    file = options.file or docker.DEFAULT_FILE
    wanted = options.registration(cdi)
    _run(
        options,
        ("docker", file, "systemctl restart docker"),
        lambda text: docker.register(text, wanted, file),
        docker.unregister,
        lambda text: docker.warnings(text, file),
    )


@command.command("containerd")
@_common(containerd.DEFAULT_FILE)
@click.option("--cdi", is_flag=True, help="Switch on CDI in the CRI plugin.")
def containerd_command(options: Options, cdi: bool) -> None:
    """Register the runtime in containerd's config.toml.

    For the CRI plugin (Kubernetes), in files of version 1 to 4. The settings of runc's entry
    (SystemdCgroup) are copied. The main file is edited, because containerd before 2.1 takes the
    whole CRI section from a drop-in that has one.

    \b
    Examples:
      nvhook configure containerd --dry-run
      nvhook configure containerd --set-as-default --cdi
      nvhook configure containerd --undo
    """
    file = options.file or containerd.DEFAULT_FILE
    wanted = options.registration(cdi)

    def warnings(text: str | None) -> list[str]:
        if text is None or options.undo:
            return []
        found = containerd.warnings(text, file)
        patterns = [os.path.join(os.path.dirname(file), p) for p in containerd.imports(text, file)]
        imported = [other for pattern in patterns for other in sorted(glob(pattern))]
        texts, unread = read_others(imported, file)
        for other, content in texts:
            found += containerd.import_warnings(content, other, wanted)
        return found + unread

    _run(
        options,
        ("containerd", file, "systemctl restart containerd"),
        lambda text: containerd.register(text, wanted, file),
        containerd.unregister,
        warnings,
    )


@command.command("crio")
@_common(crio.DEFAULT_FILE)
def crio_command(options: Options) -> None:
    """Register the runtime with CRI-O, in a drop-in of its own.

    \b
    Examples:
      nvhook configure crio --dry-run
      nvhook configure crio --set-as-default
      nvhook configure crio --undo
    """
    file = options.file or crio.DEFAULT_FILE
    wanted = options.registration()
    files = [crio.MAIN_FILE, *sorted(glob(f"{escape(os.path.dirname(file))}/*"))]
    others, unread = ([], []) if options.undo else read_others(files, file)
    _run(
        options,
        ("crio", file, "systemctl restart crio"),
        lambda text: crio.register(text, wanted, file, others),
        crio.unregister,
        lambda _text: crio.conflicts(others, wanted, file) + unread,
    )


@command.command("podman")
@_common(f"{podman.HOOK_FILE} or {podman.RUNTIME_FILE}")
@click.option(
    "--mode",
    type=click.Choice(["hook", "cdi", "runtime"]),
    default="hook",
    show_default=True,
    help="hook: the container's environment asks; cdi: --device; runtime: --runtime.",
)
def podman_command(options: Options, mode: str) -> None:
    """Register nvhook with podman: as a hook, as a runtime, or by CDI.

    CRI-O reads the hook file, too. With --mode cdi nothing is changed: podman reads /etc/cdi by
    itself, and the command to run is printed.

    \b
    Examples:
      nvhook configure podman
      nvhook configure podman --mode runtime --dry-run
      nvhook configure podman --mode cdi
      nvhook configure podman --undo
    """
    of_runtime = options.set_as_default or options.runtime_path
    if mode != "runtime" and (of_runtime or options.runtime_name != DEFAULT_NAME):
        raise click.UsageError(f"--mode {mode} registers no runtime to name or to set as default")
    if mode == "cdi":
        _say_cdi(options)
    elif mode == "hook":
        _podman_hook(options)
    else:
        file = options.file or podman.RUNTIME_FILE
        wanted = options.registration()
        _run(
            options,
            ("podman", file, ""),
            lambda text: podman.register_runtime(text, wanted, file),
            podman.unregister_runtime,
            lambda _text: [],
        )


def _podman_hook(options: Options) -> None:
    file = options.file or podman.HOOK_FILE
    launcher = _beside_launcher("nvhook")
    if not options.undo and not options.dry_run:
        _check_executable(launcher, "install nvhook: scripts/install-hook.sh")

    def warnings(_text: str | None) -> list[str]:
        if options.undo:
            return []
        directories = dict.fromkeys((*podman.HOOK_DIRECTORIES, os.path.dirname(file)))
        files = [f for d in directories for f in sorted(glob(f"{escape(d)}/*.json"))]
        # Of two files of the same name in different directories podman reads one.
        different = [f for f in files if os.path.basename(f) != os.path.basename(file)]
        texts, unread = read_others(different, file)
        return podman.hook_conflicts(texts) + unread

    _run(
        options,
        ("podman", file, ""),
        lambda text: podman.register_hook(text, launcher, file),
        podman.unregister_hook,
        warnings,
    )


def _say_cdi(options: Options) -> None:
    there = os.path.exists(podman.CDI_FILE)
    command = f"nvhook cdi generate --output {podman.CDI_FILE}"
    if options.undo:
        line = f"rm {podman.CDI_FILE}" if there else f"nothing to undo: no {podman.CDI_FILE}"
    else:
        line = f"{podman.CDI_FILE} is there" if there else f"run: {command}"
    if options.as_json:
        from nvhook.cli import output

        document = {"engine": "podman", "file": podman.CDI_FILE, "action": "none"}
        output.print_json({**document, "command": None if there else command})
        return
    click.echo(line)
    if not options.undo:
        click.echo("podman reads /etc/cdi at each start: podman run --device nvidia.com/gpu=all")


def _run(
    options: Options,
    engine: tuple[str, str, str],
    register: Register,
    unregister: Unregister,
    warnings: Warnings,
) -> None:
    """Change one file, or show the change; engine is its name, the file, and how to restart it."""
    name, file, restart = engine
    before = read_text(file)
    if not options.undo:
        after: str | None = register(before)
    else:
        after = None if before is None else unregister(before, file)
    action = _action(before, after)
    found = warnings(after)
    if options.undo and action == "none" and "nvhook" in (before or ""):
        found.append(f"{file} names nvhook without the marks of nvhook configure: edit it yourself")
    if action != "none" and not options.dry_run:
        write_text(file, after)
    for warning in found:
        click.echo(f"nvhook: {warning}", err=True)
    if options.as_json:
        from nvhook.cli import output

        document = {"engine": name, "file": file, "action": action, "dry_run": options.dry_run}
        lines = "".join(diff(before, after, file))
        output.print_json({**document, "restart": restart, "warnings": found, "diff": lines})
    elif action == "none":
        click.echo(f"{file}: nothing to undo" if options.undo else f"{file}: already configured")
    elif options.dry_run:
        _print_diff(diff(before, after, file))
    else:
        click.echo(f"{action} {file}")
        click.echo(f"then: {restart}" if restart else "podman reads it at each start")


def _action(before: str | None, after: str | None) -> str:
    if before == after:
        return "none"
    if before is None:
        return "created"
    return "removed" if after is None else "changed"


def _print_diff(lines: Iterable[str]) -> None:
    for line in lines:
        colour = None if line.startswith(("+++", "---")) else _COLOURS.get(line[:1])
        click.secho(line, nl=False, fg=colour, bold=line.startswith(("+++", "---")))


def _beside_launcher(name: str) -> str:
    launcher = os.environ.get("NVHOOK_LAUNCHER")
    directory = os.path.dirname(launcher) if launcher else sysconfig.get_path("scripts")
    if directory.endswith(_INSTALLED):
        directory = directory.removesuffix(_INSTALLED) + "/bin"
    return os.path.join(directory, name)


def _check_executable(path: str, hint: str) -> None:
    if not os.path.isfile(path):
        raise HostError(f"{path} is not a file", hint)
    if not os.access(path, os.X_OK):
        raise HostError(f"{path} is not executable", f"chmod +x {path}, or {hint}")
