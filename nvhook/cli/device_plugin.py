"""nvhook device-plugin."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nvhook.cli.options import config_option, config_path, load_config
from nvhook.errors import UnsupportedError
from nvhook.kubelet.configuration import Given, read
from nvhook.kubelet.settings import OPTIONS
from nvhook.settings import FLAG_SHAPE, LIST_SHAPE, Setting

if TYPE_CHECKING:
    from nvhook.kubelet.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

_META_KEY = "nvhook.device_plugin"
_FILE = (
    ("config_file", "FILE", "NVIDIA's file of version v1; also a ConfigMap, or its directory."),
    ("config_name", "NAME", "Which configuration of a ConfigMap."),
)


def plugin_options(*options: Setting) -> Callable[[F], F]:
    """Add options, --config-file, --config-name and --config; given() has what is given."""

    def add(function: F) -> F:
        function = config_option(function)
        for name, metavar, text in reversed(_FILE):
            function = _text_option(name, metavar, text)(function)
        for option in reversed(options):
            function = _add(option)(function)
        return function

    return add


def given() -> Given:
    """Return what the command line says."""
    meta = click.get_current_context().meta
    own = config_path()
    return Given(
        meta.get(_META_KEY, {}),
        meta.get(f"{_META_KEY}.config_file", ""),
        meta.get(f"{_META_KEY}.config_name", ""),
        "" if own is None else os.path.abspath(own),
    )


def _text_option(name: str, metavar: str, text: str) -> Callable[[F], F]:
    def remember(ctx: click.Context, _param: click.Parameter, value: str) -> None:
        ctx.meta[f"{_META_KEY}.{name}"] = value

    variable = name.upper()
    return click.option(
        f"--{name.replace('_', '-')}",
        name,
        metavar=metavar,
        envvar=variable,
        default="",
        expose_value=False,
        callback=remember,
        help=f"{text} [{variable}]",
    )


def _add(option: Setting) -> Callable[[F], F]:
    name = option.flags[0]

    def remember(ctx: click.Context, _param: click.Parameter, value: object) -> None:
        if value is None or value == ():
            return
        texts = value if isinstance(value, tuple) else (value,)
        ctx.meta.setdefault(_META_KEY, {})[name] = ",".join(map(str, texts))

    is_flag = option.kind.shape == FLAG_SHAPE
    is_list = option.kind.shape == LIST_SHAPE
    return click.option(
        *option.flags,
        name.lstrip("-").replace("-", "_"),
        metavar="LIST" if is_list else "BOOL" if is_flag else "VALUE",
        multiple=is_list,
        # A flag may have its value behind it, as Go's flags do: --gds-enabled=false.
        is_flag=False,
        flag_value="true" if is_flag else None,
        expose_value=False,
        callback=remember,
        help=f"{option.doc} [{option.variables[0]}]",
    )


@click.command("device-plugin")
@plugin_options(*OPTIONS)
def command() -> None:
    """Tell the kubelet of this node which GPUs there are.

    Flags, variables and the file are those of NVIDIA's plugin: a flag counts before its variable,
    and that before the file.

    \b
    Examples:
      nvhook device-plugin
      nvhook device-plugin --config-file /etc/nvhook/plugin.yaml --mig-strategy mixed
      nvhook device-plugin --device-list-strategy cdi-cri --pass-device-specs
    """
    config = load_config()
    said = given()

    def settings_source() -> tuple[Settings, tuple[str, ...]]:
        return read(said, os.environ)

    settings_source()
    # gRPC's own lines are no JSON, and it looks here when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        daemon = import_module("nvhook.kubelet.daemon")
    except ImportError as error:
        raise UnsupportedError(
            f"the device plugin lacks the module {error.name}", "pip install 'nvhook[kubelet]'"
        ) from None
    daemon.run(settings_source, config)
