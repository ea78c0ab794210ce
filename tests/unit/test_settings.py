"""Kinds of settings: what they take from a file, a flag or a variable, and what they call it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook import settings
from nvhook.config import DEFAULTS, SETTINGS
from nvhook.kubelet.options import ADDRESS, CHANNELS, DURATION, PLACE, SELECTORS, some_of
from nvhook.kubelet.settings import LABEL_OPTIONS, OPTIONS
from nvhook.settings import FILE, FLAG, PATH, PATHS, TEXT, Kind, list_of, one_of

SOME = some_of(("a", "b"))
ONE = one_of(("a", "b"))
KINDS = [*{each.kind for each in (*SETTINGS, *OPTIONS, *LABEL_OPTIONS)}]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (FLAG, True, True),
        (FLAG, False, False),
        (FLAG, 1, None),
        (FLAG, "true", None),
        (TEXT, "", ""),
        (TEXT, 1, None),
        (TEXT, "a\0", None),
        (PATH, "/a//", "/a"),
        (PATH, "//", "/"),
        (PATH, "", None),
        (FILE, "", ""),
        (FILE, "a", None),
        (PLACE, "/a/", "/a/"),
        (PLACE, "", ""),
        (PATHS, ["/a/", "/"], ("/a", "/")),
        (PATHS, ["/a", "b"], None),
        (PATHS, "/a", None),
        (PATHS, ["/\0"], None),
        (ONE, "b", "b"),
        (ONE, "c", None),
        (ONE, ["a"], None),
        (SOME, ["b", "a"], ("b", "a")),
        (SOME, ["b", "b"], ("b",)),
        (SOME, [], None),
        (SOME, ["c"], None),
        (SELECTORS, ["0", "0", "A100*"], ("0", "A100*")),
        (CHANNELS, [], ()),
        (CHANNELS, ["0"], (0,)),
        (CHANNELS, ["1"], None),
        (ADDRESS, ":65535", ":65535"),
        (ADDRESS, ":65536", None),
        (DURATION, "1m", 60.0),
    ],
)
def test_a_value_of_a_file(kind: Kind, value: object, expected: object) -> None:
    assert kind.of(value) == expected


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (FLAG, "T", True),
        (FLAG, "0", False),
        (FLAG, "yes", None),
        (FLAG, "", None),
        (PATHS, "/a/, /b,", ("/a", "/b")),
        (SOME, "a, b", ("a", "b")),
        (SOME, " ", None),
        (CHANNELS, "", ()),
        (TEXT, " a ", " a "),
    ],
)
def test_a_value_of_a_flag_or_variable(kind: Kind, text: str, expected: object) -> None:
    assert kind.of_text(text) == expected


def test_a_list_may_need_some_items() -> None:
    kind = list_of(lambda item: item or None, "two", 2)
    assert kind.of(["a", "b"]) == ("a", "b")
    assert (kind.of(["a"]), kind.of(["a", ""])) == (None, None)


def test_every_default_is_of_its_kind() -> None:
    for each in SETTINGS:
        default = getattr(DEFAULTS, each.attribute)
        assert each.kind.of(default) == default


@given(st.sampled_from(KINDS), st.text() | st.integers() | st.lists(st.text()) | st.none())
def test_any_value_is_taken_or_not(kind: Kind, value: object) -> None:
    kind.of(value)
    kind.of_text(str(value))


def test_did_you_mean() -> None:
    known = {"driver-root", "dev-root"}
    assert settings.did_you_mean("drver-root", known) == "did you mean driver-root?"
    assert settings.did_you_mean("x", known) == ""
