"""The group of all commands: what the command line is once click has been loaded."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, NoReturn

import click

from nvhook import __version__
from nvhook.cli.options import config_option
from nvhook.errors import NvhookError, one_line

# name -> (module:object, one line of help): the module is imported when the command is run.
COMMANDS = {
    "list": ("nvhook.cli.list:command", "Show the GPUs, MIG devices and driver of this host."),
    "plan": ("nvhook.cli.plan:command", "Show what a container would get, edit by edit."),
    "inject": ("nvhook.cli.inject:command", "Give a running container a GPU."),
    "eject": ("nvhook.cli.eject:command", "Take a GPU from a running container."),
    "reconcile": (
        "nvhook.cli.reconcile:command",
        "Give running containers back what something else took.",
    ),
    "doctor": (
        "nvhook.cli.doctor:command",
        "Check this host or one container, or explain an error.",
    ),
    "cdi": ("nvhook.cli.cdi:command", "Make, list and check CDI specs."),
    "configure": ("nvhook.cli.configure:command", "Register nvhook with a container engine."),
    "device-plugin": (
        "nvhook.cli.device_plugin:command",
        "Tell the kubelet of this node which GPUs there are.",
    ),
    "node-labels": (
        "nvhook.cli.node_labels:command",
        "Write labels that tell which GPUs this node has.",
    ),
    "config": ("nvhook.cli.config:command", "Show nvhook's settings and where they come from."),
    "hook": ("nvhook.cli.hook:hook", "Give a created container its GPU (called by OCI runtimes)."),
    "sim": ("nvhook.cli.sim:sim", "Simulate a driver on a machine without a GPU."),
}


class Root(click.Group):
    """The group of all commands, imported one by one, with nvhook's form of errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; errors become one line, and the exit status 1 or, for usage, 2."""
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except NvhookError as error:
            if _debug():
                raise
            _fail(str(error), 1)
        except click.UsageError as error:
            _fail_usage(error)
        except click.ClickException as error:
            _fail(_lower(error.format_message()), error.exit_code)
        except click.Abort:
            _fail("interrupted", 1)
        except OSError as error:
            if _debug():
                raise
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror}", 1)
        sys.exit(status if isinstance(status, int) else 0)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="nvhook %(version)s")
@config_option
def main() -> None:
    """Give containers NVIDIA GPUs."""


def run() -> NoReturn:
    """Run the command line of this process."""
    if not _debug():
        sys.excepthook = _report_bug
    sys.exit(main(prog_name="nvhook"))


def _debug() -> bool:
    return os.environ.get("NVHOOK_DEBUG") == "1"


def _fail(line: str, status: int) -> NoReturn:
    click.echo(f"nvhook: {one_line(line)}", err=True)
    sys.exit(status)


def _fail_usage(error: click.UsageError) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and newer: the message is the help
        error.show()
        sys.exit(error.exit_code)
    hint = f" (hint: {error.ctx.command_path} --help)" if error.ctx else ""
    _fail(_lower(error.format_message()).rstrip(".") + hint, error.exit_code)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _report_bug(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    line = one_line(f"internal error: {kind.__name__}: {error}")
    click.echo(f"nvhook: {line} (hint: NVHOOK_DEBUG=1 shows where)", err=True)
