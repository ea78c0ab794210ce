"""Options that every command takes."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from nvhook import config

F = TypeVar("F", bound=Callable[..., Any])

_META_KEY = "nvhook.config_path"


def config_option(function: F) -> F:
    """Add --config FILE; the last one on the command line counts."""
    return click.option(
        "--config",
        metavar="FILE",
        type=click.Path(),
        expose_value=False,
        callback=_remember,
        help=f"Configuration file, by default {config.DEFAULT_PATH} if it exists.",
    )(function)


def json_option(function: F) -> F:
    """Add --json, passed as as_json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def config_path() -> str | None:
    """Return the file that --config names, None if it is not given."""
    path = click.get_current_context().meta.get(_META_KEY)
    return None if path is None else str(path)


def load_config() -> config.Config:
    """Return the configuration that --config asks for.

    Raises: ConfigError.
    """
    return config.load(config_path())


def _remember(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_META_KEY] = value
