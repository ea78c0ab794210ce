"""nvhook sim: make a simulated driver."""

import click

from nvhook.cli.options import config_option
from nvhook.sim.driver import DEFAULT_MODEL, DEFAULT_VERSION, create
from nvhook.sim.features import FEATURES


@click.group()
def sim() -> None:
    """Simulate a driver on a machine without a GPU."""


@sim.command("create")
@click.argument("directory", type=click.Path())
@click.option("--gpus", type=int, default=4, show_default=True, help="How many GPUs, 0 to 64.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="The GPUs' model name.")
@click.option("--driver-version", default=DEFAULT_VERSION, show_default=True, metavar="VERSION")
@click.option(
    "--minors",
    metavar="N,...",
    help="The N of /dev/nvidiaN for each GPU in PCI order (default: 0,1,...).",
)
@click.option(
    "--feature",
    "features",
    metavar="NAME,...",
    default="",
    help=f"Nodes and files of these, too: {', '.join(FEATURES)}.",
)
@config_option
def create_command(
    directory: str,
    gpus: int,
    model: str,
    driver_version: str,
    minors: str | None,
    features: str,
) -> None:
    """Make a simulated driver in DIRECTORY, or rebuild one, and print its config.toml."""
    chosen = None if minors is None else _numbers(minors)
    names = [name.strip() for name in features.split(",") if name.strip()]
    click.echo(create(directory, gpus, model, driver_version, chosen, features=names))


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        raise click.BadParameter("give numbers with commas between them", param_hint="--minors")
    return tuple(int(part) for part in parts)
