"""A Jetson's lists of what containers get."""

from hypothesis import given
from hypothesis import strategies as st

from nvhook.formats.tegra_csv import KINDS, Entry, parse


def test_entries_and_what_is_none() -> None:
    text = "dev, /dev/nvmap\n\n lib ,/usr/lib/a b.so \nsym, relative\nfile, /x\nlib\ndir, /a/../b\n"
    assert parse(text) == (
        (Entry("dev", "/dev/nvmap"), Entry("lib", "/usr/lib/a b.so")),
        ("sym, relative", "file, /x", "lib", "dir, /a/../b"),
    )


@given(st.text() | st.lists(st.sampled_from([*KINDS, ",", "/", "..", "\n", " ", "x"])).map("".join))
def test_arbitrary_text_is_entries_or_lines_that_are_none(text: str) -> None:
    entries, wrong = parse(text)
    assert len(entries) + len(wrong) == sum(bool(line.strip()) for line in text.splitlines())
    assert all(entry.path.startswith("/") and entry.kind in KINDS for entry in entries)
