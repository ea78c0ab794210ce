"""nvhook list."""

import click

from nvhook.cli.options import config_option, json_option, load_config
from nvhook.core.inventory import Inventory


@click.command("list")
@json_option
@config_option
def command(as_json: bool) -> None:
    """Show the GPUs and the driver of this host.

    \b
    Examples:
      nvhook list
      nvhook list --json
      nvhook list --config DIR/config.toml     a simulated driver, see nvhook sim
    """
    from nvhook import pipeline
    from nvhook.cli import output

    inventory = pipeline.inventory(load_config())
    if as_json:
        output.print_json(document(inventory))
    else:
        _print(inventory)


def document(inventory: Inventory) -> dict[str, object]:
    """Return the object that nvhook list --json prints."""
    return {
        "driver_version": inventory.driver_version,
        "cuda_version": inventory.cuda_version,
        "driver_root": inventory.driver_root,
        "majors": dict(inventory.majors),
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "minor": gpu.minor,
                "pci_bus_id": gpu.pci_bus_id,
                "model": gpu.model,
                "mig_devices": [],
            }
            for gpu in inventory.gpus
        ],
        "libraries": [library.host_path for library in inventory.libraries],
    }


def _print(inventory: Inventory) -> None:
    from rich.markup import escape

    from nvhook.cli import output

    cuda = f", CUDA {inventory.cuda_version}" if inventory.cuda_version else ""
    majors = " ".join(f"{name}={major}" for name, major in inventory.majors.items())
    gpus = output.table("#index", "uuid", "#minor", "pci bus id", "model")
    for gpu in inventory.gpus:
        gpus.add_row(
            str(gpu.index), escape(gpu.uuid), str(gpu.minor), gpu.pci_bus_id, escape(gpu.model)
        )
    output.print_tables(
        f"driver {inventory.driver_version or 'not found'}{cuda}, root {inventory.driver_root}",
        f"majors {majors or 'none'}",
        f"libraries {len(inventory.libraries)} (--json names them)",
        gpus if inventory.gpus else "no GPU",
    )
