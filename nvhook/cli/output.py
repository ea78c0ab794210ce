"""What commands print: JSON for programs, tables for people."""

import sys

import click
from rich.console import Console
from rich.table import Table

WIDE = 250  # columns for a pipe or a file, where nothing should be folded


def print_json(document: object) -> None:
    """Print a value as JSON, never with colours."""
    import json

    click.echo(json.dumps(document, indent=2))


def table(*columns: str, title: str = "") -> Table:
    """Return an empty table whose cells are not folded; "#N" is a column of numbers."""
    result = Table(title=title or None, title_justify="left", box=None, header_style="bold")
    for column in columns:
        right = column.startswith("#")
        name = column.removeprefix("#")
        result.add_column(name, justify="right" if right else "left", overflow="fold")
    return result


def print_tables(*items: Table | str) -> None:
    """Print tables and lines of text to stdout."""
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDE)
    for item in items:
        # Names come from the host and from containers: no markup in them.
        if isinstance(item, str):
            console.print(item, markup=False)
        else:
            console.print(item)
