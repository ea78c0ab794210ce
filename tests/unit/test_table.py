"""Tables: columns stand one below the other, what is too long is folded, names are printable."""

import click
from hypothesis import given
from hypothesis import strategies as st

from nvhook.cli.table import Table


def plain(table: Table, width: int) -> list[str]:
    return [click.unstyle(line) for line in table.lines(width)]


def test_columns_and_numbers() -> None:
    table = Table("#index", "model", "")
    table.add_row("0", "A", "x")
    table.add_row("10", "B C", ("y", {"fg": "red"}))
    assert plain(table, 80) == [
        " index  model",
        "     0  A      x",
        "    10  B C    y",
    ]


def test_a_style_is_around_the_text_alone() -> None:
    table = Table("a", "b")
    table.add_row(("ok", {"fg": "green"}), "x")
    assert [*table.lines(80)] == [" \x1b[1ma\x1b[0m   \x1b[1mb\x1b[0m", " \x1b[32mok\x1b[0m  x"]


def test_the_widest_column_is_folded_at_words_or_else_anywhere() -> None:
    table = Table("kind", "what")
    table.add_row("mount", "one two three " + "x" * 20)
    assert plain(table, 24) == [
        " kind   what",
        " mount  one two three x",
        "        " + "x" * 15,
        "        " + "x" * 4,
    ]


def test_control_characters_reach_no_terminal() -> None:
    table = Table("a")
    table.add_row("x\x1b[31m\ny")
    assert plain(table, 80)[1] == " x [31m y"


CELLS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4), st.integers(30, 120))
def test_no_line_is_too_long_and_nothing_is_lost(rows: list[tuple[str, str]], width: int) -> None:
    table = Table("a", "#b")
    for row in rows:
        table.add_row(*row)
    lines = plain(table, width)
    assert max(map(len, lines)) <= width
    assert sorted("".join(lines).replace(" ", "")) == sorted(
        "ab" + "".join("".join(row) for row in rows)
    )
