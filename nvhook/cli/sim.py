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
@click.option(
    "--mig",
    "profiles",
    metavar="PROFILE,...",
    default="",
    help="Partition each GPU into MIG devices: 1g.10gb,2g.20gb makes 0:0 and 0:1, 1:0 and 1:1, ...",
)
@click.option("--mig-gpus", metavar="N,...", help="Partition only the GPUs with these indices.")
@config_option
def create_command(
    directory: str,
    gpus: int,
    model: str,
    driver_version: str,
    minors: str | None,
    features: str,
    profiles: str,
    mig_gpus: str | None,
) -> None:
    """Make a simulated driver in DIRECTORY, or rebuild one, and print its config.toml.

    \b
    Examples:
      nvhook sim create DIR --gpus 2
      nvhook sim create DIR --model "NVIDIA A100-SXM4-80GB" --mig 3g.40gb,1g.10gb --mig-gpus 0
    """
    path = create(
        directory,
        gpus,
        model,
        driver_version,
        None if minors is None else _numbers(minors, "--minors"),
        features=_words(features),
        mig=_words(profiles),
        mig_gpus=None if mig_gpus is None else _numbers(mig_gpus, "--mig-gpus"),
    )
    click.echo(path)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        raise click.BadParameter("give numbers with commas between them", param_hint=option)
    return tuple(int(part) for part in parts)
