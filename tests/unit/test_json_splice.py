"""JSON texts are changed where they are changed, and nowhere else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.formats.json_splice import Splice, encode

DOCUMENT = '{ "a": [1, 2 ,3],\n "odd": 1.50e+2, "a\\u00e9/": "\\/", "n": null, "o": {"l": [ ] } }\n'


def spliced(text: str, *changes: tuple[Any, ...]) -> str:
    splice = Splice(text)
    for name, *arguments in changes:
        getattr(splice, name)(*arguments)
    return splice.result()


@pytest.mark.parametrize(
    ("changes", "before", "after"),
    [
        ([("append", ("a",), [4, "x"])], "3]", '3,4,"x"]'),
        ([("append", ("a",), [])], "3]", "3]"),
        ([("replace", ("a",), 1, {"k": None})], "2 ,", '{"k":null} ,'),
        ([("remove", ("a",), 0)], "[1, 2 ,3]", "[2 ,3]"),
        ([("remove", ("a",), 1)], "[1, 2 ,3]", "[1 ,3]"),
        ([("remove", ("a",), 2)], "[1, 2 ,3]", "[1, 2]"),
        ([("remove", ("a",), 0), ("remove", ("a",), 1)], "[1, 2 ,3]", "[3]"),
        ([("remove", ("a",), 0), ("remove", ("a",), 2)], "[1, 2 ,3]", "[2]"),
        ([("remove", ("a",), index) for index in range(3)], "[1, 2 ,3]", "[]"),
        (
            [*[("remove", ("a",), index) for index in range(3)], ("append", ("a",), [9])],
            "[1, 2 ,3]",
            "[9]",
        ),
        ([("remove", ("a",), 2), ("append", ("a",), [9])], "[1, 2 ,3]", "[1, 2,9]"),
        ([("append", ("o", "l"), [True])], "[ ]", "[true ]"),
        ([("append", ("n",), [0])], "null", "[0]"),
        ([("append", ("n", "x"), [0]), ("append", ("n", "y"), [1])], "null", '{"x":[0],"y":[1]}'),
        ([("append", ("o", "m"), [0])], "[ ] }", '[ ],"m":[0] }'),
        (
            [("append", ("p", "q", "r"), [1]), ("append", ("p", "s"), [2])],
            "[ ] } }",
            '[ ] },"p":{"q":{"r":[1]},"s":[2]} }',
        ),
    ],
)
def test_only_the_place_of_a_change_is_changed(changes, before, after) -> None:
    assert DOCUMENT.count(before) == 1
    assert spliced(DOCUMENT, *changes) == DOCUMENT.replace(before, after)


def test_an_empty_object_gets_its_first_member() -> None:
    assert spliced("{}", ("append", ("a",), [1])) == '{"a":[1]}'
    assert spliced(" { } ", ("append", ("a", "b"), [1])) == ' {"a":{"b":[1]} } '


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values)
def test_encoding_is_json(value: object) -> None:
    assert json.loads(encode(value)) == value


@given(
    st.dictionaries(st.sampled_from("abcd"), st.lists(json_values, max_size=4) | st.none()),
    st.sets(st.tuples(st.sampled_from("abcd"), st.integers(0, 3))),
    st.dictionaries(st.sampled_from("abcde"), st.lists(json_values, min_size=1, max_size=3)),
    st.sampled_from([None, 1, "\t"]),
)
def test_the_result_means_what_was_asked(document, removed, appended, indent) -> None:
    """Whatever the blanks: the parsed result is the parsed document, changed."""
    splice = Splice(json.dumps(document, indent=indent))
    expected = {name: value if value is None else list(value) for name, value in document.items()}
    for name, index in sorted(removed, reverse=True):
        if index < len(document.get(name) or []):
            splice.remove((name,), index)
            del expected[name][index]
    for name, values in appended.items():
        splice.append((name,), values)
        expected[name] = (expected.get(name) or []) + values
    assert json.loads(splice.result()) == expected
