"""nvhook cdi generate, list, validate."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from nvhook.cdi import specs
from nvhook.cli.options import config_option, config_path, json_option, load_config
from nvhook.core.cdi_render import STRATEGIES
from nvhook.formats.cdi_reader import EXTENSIONS
from nvhook.formats.cdi_rules import is_kind
from nvhook.host import cdi_registry

if TYPE_CHECKING:
    from nvhook.formats.cdi_reader import Finding

DEFAULT_STRATEGIES = ("index", "uuid")


@click.group("cdi")
@config_option
def command() -> None:
    """Make, list and check CDI specs."""


@command.command()
@click.option(
    "--mode", type=click.Choice(specs.MODES), default="auto", help="What to offer; auto: the GPUs."
)
@click.option(
    "--device-id",
    "device_ids",
    metavar="LIST",
    multiple=True,
    help="Devices, as in NVIDIA_VISIBLE_DEVICES: all (default), 0,2, GPU-...; channels with imex.",
)
@click.option(
    "--device-name-strategy",
    "strategies",
    type=click.Choice(STRATEGIES),
    multiple=True,
    help="What GPUs are called: 0, GPU-..., gpu0; by default index and uuid.",
)
@click.option("--all-device/--no-all-device", default=True, help="Offer all of them as one, too.")
@click.option("--vendor", default="", help="By default nvidia.com.")
@click.option("--class", "device_class", default="", help="By default gpu, or as the mode.")
@click.option(
    "--capabilities",
    metavar="LIST",
    default="all",
    help="As NVIDIA_DRIVER_CAPABILITIES; by default all that the configuration allows.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["yaml", "json"]),
    help="By default as --output is called, or yaml.",
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="File to replace, for instance /etc/cdi/nvidia.yaml; by default standard output.",
)
@click.option("--hook-path", metavar="FILE", type=click.Path(), help="nvhook's launcher.")
@config_option
def generate(
    mode: str,
    device_ids: tuple[str, ...],
    strategies: tuple[str, ...],
    all_device: bool,
    vendor: str,
    device_class: str,
    capabilities: str,
    form: str | None,
    output: str | None,
    hook_path: str | None,
) -> None:
    """Make a CDI spec of this host's GPUs, for engines that read CDI.

    Nothing is written unless every device node of the spec exists with its numbers; a file that
    says the same already is left alone.

    \b
    Examples:
      nvhook cdi generate --output /etc/cdi/nvidia.yaml
      podman run --device nvidia.com/gpu=0 IMAGE
      nvhook cdi generate --mode gds --output /etc/cdi/nvidia-gds.yaml
      nvhook cdi generate --device-id 0,1 --capabilities compute,utility --format json
    """
    form = _form(form, output)
    config_file = config_path()
    wanted = specs.Wanted(
        launcher=os.path.abspath(hook_path or specs.launcher()),
        mode=mode,
        devices=",".join(device_ids or ("all",)),
        capabilities=capabilities,
        strategies=strategies or DEFAULT_STRATEGIES,
        all_device=all_device,
        vendor=vendor,
        device_class=device_class,
        config_path=None if config_file is None else os.path.abspath(config_file),
    )
    if not is_kind(wanted.kind):
        raise click.UsageError(f"{wanted.kind!r} is not a vendor and a class like nvidia.com/gpu")
    spec = specs.generate(wanted, load_config())
    specs.verify(spec)

    from nvhook.formats.cdi_writer import dump_json, dump_yaml

    text = dump_json(spec) if form == "json" else dump_yaml(spec)
    if output is None:
        click.echo(text, nl=False)
    elif specs.write(output, text):
        click.echo(f"{output}: {len(spec.devices)} devices of {spec.kind}")
    else:
        click.echo(f"{output}: unchanged")


@command.command("list")
@click.option(
    "--spec-dir",
    "directories",
    metavar="DIR",
    multiple=True,
    type=click.Path(),
    help="Where specs are, the last one wins; by default /etc/cdi and /var/run/cdi.",
)
@json_option
@config_option
def list_command(directories: tuple[str, ...], as_json: bool) -> None:
    """Show the CDI devices of this host, of every vendor, and the file each is from.

    Files that are not valid and devices that two files define are named on standard error.

    \b
    Examples:
      nvhook cdi list
      nvhook cdi list --spec-dir /etc/cdi --json
    """
    from nvhook.cli import output

    found = cdi_registry.load(directories or load_config().cdi_spec_directories)
    for finding in found.findings:
        click.echo(f"nvhook: left out: {finding}", err=True)
    for name, files in found.conflicts.items():
        click.echo(f"nvhook: left out: {name} is defined by {' and '.join(files)}", err=True)
    if as_json:
        output.print_json(
            {
                "directories": list(found.directories),
                "devices": [{"name": n, "file": e.file} for n, e in sorted(found.devices.items())],
                "conflicts": {name: list(files) for name, files in found.conflicts.items()},
                "findings": _findings(found.findings),
            }
        )
        return
    if not found.devices:
        click.echo(f"no CDI device in {', '.join(found.directories)}")
        return
    from rich.markup import escape

    table = output.table("device", "file")
    for name, entry in sorted(found.devices.items()):
        table.add_row(escape(name), escape(entry.file))
    output.print_tables(table)


@command.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@json_option
@config_option
def validate(files: tuple[str, ...], as_json: bool) -> int:
    """Check CDI specs by the rules of engines, and show everything that is wrong.

    Exit status 1 if anything is.

    \b
    Examples:
      nvhook cdi validate /etc/cdi/*.yaml
      nvhook cdi validate vendor.json --json
    """
    from nvhook.cli import output
    from nvhook.errors import one_line

    findings = [finding for file in files for finding in cdi_registry.read_spec(file)[1]]
    if as_json:
        output.print_json({"valid": not findings, "findings": _findings(findings)})
    else:
        bad = {finding.file for finding in findings}
        for file in files:
            if file not in bad:
                click.echo(f"{file}: valid")
        for finding in findings:
            click.echo(one_line(str(finding)))
    return 1 if findings else 0


def _findings(findings: Iterable[Finding]) -> list[dict[str, str]]:
    return [{"file": f.file, "path": f.path, "reason": f.reason} for f in findings]


def _form(form: str | None, output: str | None) -> str:
    """Return yaml or json: engines go by the file's name."""
    if output is None:
        return form or "yaml"
    extension = os.path.splitext(output)[1]
    if extension not in EXTENSIONS:
        raise click.UsageError(f"engines read no {output}: its name must end with .yaml or .json")
    if form is not None and f".{form}" != extension:
        raise click.UsageError(f"--format {form} does not go with the name {output}")
    return extension[1:]
