"""nvhook device-plugin."""

import os
from importlib import import_module

import click

from nvhook.cli.options import config_option, config_path, load_config
from nvhook.errors import UnsupportedError
from nvhook.kubelet.configuration import Given, read
from nvhook.kubelet.options import OPTIONS, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from nvhook.kubelet.settings import Settings

    F = TypeVar("F", bound=Callable[..., Any])

_META_KEY = "nvhook.device_plugin"


def plugin_options(function: "F") -> "F":
    """Add every option of the plugin; what is given is in plugin_flags()."""
    for option in reversed(OPTIONS):
        function = _add(option)(function)
    return function


def plugin_flags() -> dict[str, str]:
    """Return the plugin's flags that were given, by name."""
    found: dict[str, str] = click.get_current_context().meta.get(_META_KEY, {})
    return found


def _add(option: Option) -> "Callable[[F], F]":
    name = option.flags[0]

    def remember(ctx: click.Context, _param: click.Parameter, value: object) -> None:
        if value is None or value == ():
            return
        texts = value if isinstance(value, tuple) else (value,)
        ctx.meta.setdefault(_META_KEY, {})[name] = ",".join(map(str, texts))

    is_flag = option.kind == "flag"
    is_list = option.kind in {"choices", "channels", "selectors"}
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
        help=f"{option.help} [{option.variables[0]}]",
    )


@click.command("device-plugin")
@plugin_options
@click.option(
    "--config-file",
    metavar="FILE",
    envvar="CONFIG_FILE",
    default="",
    help="The plugin's own file, NVIDIA's version v1; also a ConfigMap, or its directory.",
)
@click.option(
    "--config-name",
    metavar="NAME",
    envvar="CONFIG_NAME",
    default="",
    help="Which configuration of a ConfigMap.",
)
@config_option
def command(config_file: str, config_name: str) -> None:
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
    own = config_path()
    own = "" if own is None else os.path.abspath(own)
    given = Given(plugin_flags(), config_file, config_name, own)

    def settings_source() -> "tuple[Settings, tuple[str, ...]]":
        return read(given, os.environ)

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
