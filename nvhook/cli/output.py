"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from nvhook.core.inventory import MigDevice
from nvhook.errors import one_line

if TYPE_CHECKING:
    from nvhook.cli.table import Table
    from nvhook.core.inventory import Device

WIDE = 250  # columns for a pipe or a file, where little should be folded
MAX_TEXT = 10_000


def print_json(document: object) -> None:
    """Print a value as JSON, never with colours."""
    click.echo(json.dumps(document, indent=2))


def print_tables(*items: Table | str) -> None:
    """Print tables and lines of text to stdout."""
    width = WIDE
    if sys.stdout.isatty():
        from shutil import get_terminal_size

        width = get_terminal_size().columns
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    for item in items:
        for line in [one_line(item, MAX_TEXT)] if isinstance(item, str) else item.lines(width):
            click.echo(line, color=False if plain else None)


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
