"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from nvhook.core.inventory import MigDevice

if TYPE_CHECKING:
    from rich.table import Table

    from nvhook.core.inventory import Device

WIDE = 250  # columns for a pipe or a file, where nothing should be folded


def print_json(document: object) -> None:
    """Print a value as JSON, never with colours."""
    click.echo(json.dumps(document, indent=2))


def table(*columns: str, title: str = "") -> Table:
    """Return an empty table whose cells are not folded; "#N" is a column of numbers."""
    from rich.table import Table

    result = Table(title=title or None, title_justify="left", box=None, header_style="bold")
    for column in columns:
        right = column.startswith("#")
        name = column.removeprefix("#")
        result.add_column(name, justify="right" if right else "left", overflow="fold")
    return result


def print_tables(*items: Table | str) -> None:
    """Print tables and lines of text to stdout."""
    from rich.console import Console  # not loaded for JSON

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDE)
    for item in items:
        # Names come from the host and from containers: no markup in them.
        if isinstance(item, str):
            console.print(item, markup=False)
        else:
            console.print(item)


def device_document(device: Device) -> dict[str, object]:
    """Return a GPU or MIG device as commands print it."""
    if isinstance(device, MigDevice):
        own: dict[str, object] = {"kind": "mig", "index": device.name}
        gpu = device.gpu
    else:
        own = {"kind": "gpu", "index": device.index}
        gpu = device
    return {
        **own,
        "uuid": device.uuid,
        "minor": gpu.minor,
        "pci_bus_id": gpu.pci_bus_id,
    }
