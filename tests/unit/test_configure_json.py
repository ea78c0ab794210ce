"""daemon.json: only what is asked for changes, and it can be taken back, whatever the layout."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.engines import docker, json_edit
from nvhook.engines.registration import Registration
from nvhook.errors import ConfigError

PATH = "/opt/nvhook/bin/nvhook-runtime"
PLAIN = Registration("nvidia", PATH)
ALL = Registration("nvidia", PATH, set_as_default=True, cdi=True)

BLANKS = st.text(" \t\r\n", max_size=3)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
)
ENTRIES = st.fixed_dictionaries(
    {}, optional={"path": st.sampled_from([PATH, "runc"]), "args": VALUES}
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "a": VALUES,
        "default-runtime": st.sampled_from(["nvidia", "runc", "x", "nv\u0131dia"]),
        "features": st.dictionaries(st.sampled_from(["cdi", "b"]), st.booleans()),
        "runtimes": st.dictionaries(st.sampled_from(["nvidia", "runc", "c.d"]), ENTRIES),
        "z": VALUES,
    },
)
REGISTRATIONS = st.builds(
    Registration, st.sampled_from(["nvidia", "c.d"]), st.just(PATH), st.booleans(), st.booleans()
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw a daemon.json in any layout a JSON text can have."""

    def write(value: object) -> str:
        before, after = draw(BLANKS), draw(BLANKS)
        if isinstance(value, dict) and value:
            inner = ",".join(f"{write(key)}:{write(item)}" for key, item in value.items())
            text = "{" + inner + "}"
        elif isinstance(value, list) and value:
            text = "[" + ",".join(map(write, value)) + "]"
        elif value in ({}, []):
            text = str(value)[0] + draw(BLANKS) + str(value)[-1]
        else:
            text = json.dumps(value, ensure_ascii=draw(st.booleans()))
        return before + text + after

    layout = draw(st.sampled_from(["any", "any", "indent", "tabs", "compact", "blank"]))
    bom = draw(st.sampled_from(["", "", docker.BOM]))
    if layout == "blank":
        return bom + draw(BLANKS)
    document = draw(DOCUMENTS)
    if layout == "any":
        return bom + write(document)
    indent = {"indent": 2, "tabs": "\t", "compact": None}[layout]
    return bom + json.dumps(document, indent=indent) + draw(BLANKS)


@given(texts(), REGISTRATIONS)
def test_do_and_undo_is_the_identity(text: str, wanted: Registration) -> None:
    after = docker.register(text, wanted, "FILE")
    assert docker.unregister(after, "FILE") == text
    assert docker.register(after, wanted, "FILE") == after


@given(texts(), REGISTRATIONS)
def test_nothing_but_what_is_asked_for_changes(text: str, wanted: Registration) -> None:
    body = text.removeprefix(docker.BOM)
    before = json.loads(body) if body.strip() else {}
    after = json.loads(docker.register(text, wanted, "FILE").removeprefix(docker.BOM))
    if wanted.set_as_default:
        before["default-runtime"] = wanted.runtime_name
    if wanted.cdi:
        before.setdefault("features", {})["cdi"] = True
    entry = after["runtimes"].pop(wanted.runtime_name)
    before.setdefault("runtimes", {}).pop(wanted.runtime_name, None)
    assert entry["path"] == PATH
    assert after == before


@given(texts(), REGISTRATIONS, st.sampled_from([None, 2, "\t"]))
def test_undo_after_another_program_has_rewritten_the_file(
    text: str, wanted: Registration, indent: int | str | None
) -> None:
    body = text.removeprefix(docker.BOM)
    before = json.loads(body) if body.strip() else {}
    after = json.loads(docker.register(text, wanted, "FILE").removeprefix(docker.BOM))
    rewritten = json.dumps({"debug": True, **after, "log-level": "info"}, indent=indent)
    left = docker.unregister(rewritten, "FILE")
    assert left is not None
    assert json.loads(left) == {"debug": True, **before, "log-level": "info"}


def test_undo_takes_only_its_own_when_others_were_added_in_between() -> None:
    after = docker.register(None, ALL, "FILE")
    mine = json_edit.insert(after, ("runtimes", "kata"), '{"path": "kata"}')
    mine = json_edit.insert(mine, ("features", "buildkit"), "true")
    mine = json_edit.insert(mine, ("debug",), "true")
    left = docker.unregister(mine, "FILE")
    assert left is not None
    assert json.loads(left) == {
        "features": {"buildkit": True},
        "runtimes": {"kata": {"path": "kata"}},
        "debug": True,
    }


def test_undo_leaves_a_default_and_a_feature_that_someone_changed_since() -> None:
    after = docker.register('{"default-runtime": "runc"}', ALL, "FILE")
    after = json_edit.replace(after, ("default-runtime",), '"kata"')
    after = json_edit.replace(after, ("features", "cdi"), "false")
    left = docker.unregister(after, "FILE")
    assert left == '{"default-runtime": "kata", "features": {"cdi": false}}'


def test_second_registration_adds_to_the_first() -> None:
    first = docker.register(None, ALL, "FILE")
    assert docker.register(first, PLAIN, "FILE") == first
    plain = docker.register("{}", PLAIN, "FILE")
    both = docker.register(plain, ALL, "FILE")
    assert json.loads(both)["default-runtime"] == "nvidia"
    assert docker.unregister(both, "FILE") == "{}"
    renamed = docker.register(both, Registration("gpu", PATH), "FILE")
    assert [*json.loads(renamed)["runtimes"]] == ["gpu"]
    assert json.loads(renamed)["default-runtime"] == "gpu"


def test_runtime_that_is_there_by_hand_is_left_alone() -> None:
    text = f'{{"runtimes": {{"nvidia": {{"path": "{PATH}", "runtimeArgs": []}}}}}}'
    assert docker.register(text, PLAIN, "FILE") == text
    assert docker.unregister(text, "FILE") == text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[]", "FILE line 1: not a JSON object"),
        ("{\n\n,}", "FILE line 3: expecting property name enclosed in double quotes"),
        ("{} x", "FILE line 1: extra data"),
        ('{"a": NaN}', "FILE: NaN is not a number"),
        ('{"a": 1, "a": 2}', "FILE: the key 'a' stands there twice"),
        ('{"runtimes": []}', "FILE: runtimes is not an object"),
        ('{"features": null}', "FILE: features is not an object"),
        ('{"features": {"cdi": null}}', "FILE: cdi in features is not true or false"),
        ('{"runtimes": {"nvidia": null}}', "FILE: nvidia in runtimes is not an object"),
        ('{"default-runtime": 1}', "FILE: default-runtime is not a string"),
        ("[" * 100000, "FILE: nested too deeply"),
        (f"[{'1' * 5000}]", "FILE: a number has too many digits"),
    ],
)
def test_bad_file_is_refused(text: str, line: str) -> None:
    for function in (
        lambda: docker.register(text, PLAIN, "FILE"),
        lambda: docker.unregister(text, "FILE"),
    ):
        with pytest.raises(ConfigError) as caught:
            function()
        assert str(caught.value).startswith(line)


def test_warnings() -> None:
    assert docker.warnings(None, "FILE") == []
    assert docker.warnings('{"default-runtime": "io.containerd.runsc.v1"}', "FILE") == []
    assert docker.warnings('\ufeff{"default-runtime": "nvidia"}', "FILE") == [
        "FILE begins with a byte order mark: docker before 23.0 refuses it",
        "FILE: the default runtime nvidia is not registered there",
    ]
