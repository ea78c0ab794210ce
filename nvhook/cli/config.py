"""nvhook config show, nvhook config default, nvhook config import."""

import json

import click

from nvhook import config, config_file
from nvhook.cli.options import config_option, config_path, json_option
from nvhook.engines import nvidia_config
from nvhook.errors import ConfigError
from nvhook.record import replace


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
    values = replace(config.DEFAULTS, **explicit)
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
        value = getattr(config.DEFAULTS, setting.attribute)
        click.echo(f"# {setting.doc}\n{setting.key} = {_toml(value)}\n")


@command.command("import")
@click.argument("file", type=click.Path(), default=nvidia_config.PATH)
@click.option(
    "--output", metavar="FILE", type=click.Path(), help="Write a new file, not standard output."
)
@config_option
def import_(file: str, output: str | None) -> None:
    """Translate NVIDIA's config.toml into nvhook's; what has no equivalent is said.

    FILE is /etc/nvidia-container-runtime/config.toml if not given.

    \b
    Examples:
      nvhook config import
      nvhook config import OLD.toml --output /etc/nvhook/config.toml
    """
    try:
        with open(file, encoding="utf-8") as stream:
            text = stream.read(config.MAX_SIZE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"can't read {file}: {reason}", "name NVIDIA's config.toml") from None
    values, notes = nvidia_config.translate(text, file)
    config_file.check(values, file)
    lines = [f"# Translated by nvhook config import from {file}\n"]
    lines += [f"{key} = {_toml(value)}\n" for key, value in values.items()]
    for note in notes:
        click.echo(f"nvhook: {note}", err=True)
    if output is None:
        click.echo("".join(lines), nl=False)
        return
    try:
        # x: a configuration that somebody wrote is not lost.
        with open(output, "x", encoding="utf-8") as stream:
            stream.writelines(lines)
    except OSError as error:
        hint = "move it away first" if isinstance(error, FileExistsError) else ""
        raise ConfigError(f"can't write {output}: {error.strerror}", hint) from None


def _toml(value: object) -> str:
    # TOML's strings, booleans and lists are written as in JSON.
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
