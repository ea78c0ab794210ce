"""Tables for people: rows of cells, folded where they do not fit the terminal.

A library for this takes longer to load and to draw one than nvhook takes to give a container a GPU.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    # A text, or a text and arguments of click.style.
    Cell: TypeAlias = str | tuple[str, dict[str, object]]

LEAST = 8  # characters a column keeps


class Table:
    """A table with a header; the cells of a column that is called "#N" stand at the right."""

    def __init__(self, *columns: str) -> None:
        self._right = [name.startswith("#") for name in columns]
        header = [name.removeprefix("#") for name in columns]
        self._rows: list[list[Cell]] = [[(name, {"bold": True}) for name in header]]

    def add_row(self, *cells: Cell) -> None:
        """Add a row; names in it may be a container's, and are made printable."""
        self._rows.append([*cells])

    def lines(self, width: int) -> Iterator[str]:
        """Return the lines of the table, of at most so many columns."""
        rows = [[_text(cell) for cell in row] for row in self._rows]
        longest = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths = _shrunk(longest, width - 2 * len(longest))
        for cells, texts in zip(self._rows, rows, strict=True):
            folded = [_folded(text, room) for text, room in zip(texts, widths, strict=True)]
            for number in range(max(map(len, folded))):
                parts = [lines[number] if number < len(lines) else "" for lines in folded]
                yield self._line(parts, cells, widths)

    def _line(self, parts: list[str], cells: list[Cell], widths: list[int]) -> str:
        line, blank = "", 0
        for part, cell, width, right in zip(parts, cells, widths, self._right, strict=True):
            before = width - len(part) if right else 0
            if part:
                styled = part if isinstance(cell, str) else click.style(part, **cell[1])  # type: ignore[arg-type]
                line += " " * (blank + 1 + before) + styled
                blank = 1 + (0 if right else width - len(part))
            else:
                blank += width + 2
        return line


def _text(cell: Cell) -> str:
    text = cell if isinstance(cell, str) else cell[0]
    return "".join(c if c.isprintable() else " " for c in text)


def _folded(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _shrunk(widths: list[int], room: int) -> list[int]:
    """Return widths that fit: the widest columns give first, as far as the next."""
    widths = [*widths]
    while (excess := sum(widths) - room) > 0 and max(widths) > LEAST:
        widest = max(widths)
        those = [index for index, width in enumerate(widths) if width == widest]
        second = max([width for width in widths if width < widest] + [LEAST])
        less = max(1, min(widest - second, -(-excess // len(those))))
        for index in those:
            widths[index] -= less
    return widths
