"""nvhook config show, nvhook config default."""

import click

from nvhook import config
from nvhook.cli.options import config_option, config_path, json_option


@click.group("config")
@config_option
def command() -> None:
    """Show nvhook's settings and where they come from."""


@command.command()
@json_option
@config_option
def show(as_json: bool) -> None:
    """Print every setting, its value and where the value comes from.

    \b
    Examples:
      nvhook config show
      nvhook config show --config DIR/config.toml
    """
    path = config_path()
    explicit = config.explicit_values(path)
    values = config.Config(**explicit)
    rows = {
        setting.key: (
            getattr(values, setting.attribute),
            (path or config.DEFAULT_PATH) if setting.attribute in explicit else "default",
        )
        for setting in config.SETTINGS
    }
    if as_json:
        from nvhook.cli import output

        output.print_json({k: {"value": v, "origin": origin} for k, (v, origin) in rows.items()})
        return
    lines = {key: f"{key} = {_toml(value)}" for key, (value, _) in rows.items()}
    width = max(len(line) for line in lines.values() if len(line) < 60)
    for key, (_, origin) in rows.items():
        click.echo(f"{lines[key]:<{width}}  # {origin}")


@command.command()
@config_option
def default() -> None:
    """Print a configuration file with every setting at its default.

    \b
    Example:
      nvhook config default > /etc/nvhook/config.toml
    """
    for setting in config.SETTINGS:
        click.echo(f"# {setting.doc}\n{setting.key} = {_toml(setting.default)}\n")


def _toml(value: object) -> str:
    import json

    # TOML's strings, booleans and lists are written as in JSON.
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
