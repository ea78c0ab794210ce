"""What the launcher adds to a config.json is byte for byte what Python adds."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvhook.formats.json_splice import Splice, encode
from tests.native import core

CONFIGS = sorted((Path(__file__).parents[1] / "data/oci").glob("*/*/config.json"))
# In the order in which formats/oci_edit.py appends.
PATHS = (
    ("linux", "devices"),
    ("process", "env"),
    ("linux", "resources", "devices"),
    ("mounts",),
    ("process", "user", "additionalGids"),
    ("hooks", "createRuntime"),
)
EVERYTHING = [
    [{"path": "/dev/x"}],
    ["A=b", "C=\u00e9"],
    [{"allow": True}],
    [{}, {}],
    [7],
    [{"a": 1}],
]


def in_python(text: str, values: list[list]) -> bytes:
    change = Splice(text)
    for path, items in zip(PATHS, values, strict=True):
        change.append(path, items)
    return change.result().encode()


def in_c(text: str, values: list[list]) -> bytes | None:
    return core.splice(text.encode(), [encode(items)[1:-1] for items in values])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_additions_to_the_files_of_real_engines(path: Path) -> None:
    text = path.read_text()
    assert in_c(text, EVERYTHING) == in_python(text, EVERYTHING)
    for number, items in enumerate(EVERYTHING):
        one = [items if at == number else [] for at in range(len(EVERYTHING))]
        assert in_c(text, one) == in_python(text, one)
    assert in_c(text, [[]] * len(PATHS)) == text.encode()


ITEM = st.sampled_from([{"a": [1]}, "\u00e9\u2028", 7, {}])
# Of what is read, only the variables' type counts; the rest is there to be skipped.
LISTS = {path: st.lists(ITEM, max_size=2) for path in PATHS}
LISTS["process", "env"] = st.lists(st.sampled_from(["A=b", "\u00e9"]), max_size=2)
LISTS["mounts",] = st.lists(st.just({"destination": "/x", "options": []}), max_size=2)


def objects(*path: str) -> st.SearchStrategy[dict]:
    """Objects with some of the members that PATHS go through, in any order, and others."""
    members: dict[str, st.SearchStrategy] = {"x": ITEM, "\u00e9": st.none()}
    for whole in PATHS:
        if whole[: len(path)] == path:
            inner = whole[: len(path) + 1]
            members[inner[-1]] = LISTS[whole] if inner == whole else objects(*inner)
    filled = st.fixed_dictionaries({}, optional=members)
    return st.tuples(filled, st.randoms()).map(shuffled)


def shuffled(pair: tuple) -> dict:
    members, random = pair
    names = list(members)
    random.shuffle(names)
    return {name: members[name] for name in names}


@settings(max_examples=500, deadline=None)
@given(
    objects(),
    st.tuples(*[st.lists(ITEM, max_size=2) for _ in PATHS]),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
def test_additions_to_any_file(document, values, indent, ascii_only) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    assert in_c(text, list(values)) == in_python(text, list(values))


@pytest.mark.parametrize(
    "text",
    [
        '{"hooks": null}',
        '{"hooks": {"createRuntime": null}}',
        '{"hooks": []}',
        '{"hooks": {}, "hooks": {}}',
        "null",
        "",
        "{",
    ],
)
def test_what_is_left_to_python(text: str) -> None:
    values = [*[[]] * 5, [1]]
    assert in_c(text, values) is None


def test_null_where_nothing_is_added() -> None:
    text = '{"hooks": null, "mounts": []}'
    values = [[], [], [], [1], [], []]
    assert in_c(text, values) == b'{"hooks": null, "mounts": [1]}'
