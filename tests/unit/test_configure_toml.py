"""TOML files: lines are added and replaced; undo is exact, the meaning is what was asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.engines import containerd, crio, podman, toml_edit
from nvhook.engines.registration import Registration
from nvhook.errors import ConfigError

PATH = "/opt/nvhook/bin/nvhook-runtime"
PLAIN = Registration("nvidia", PATH)
ALL = Registration("nvidia", PATH, set_as_default=True, cdi=True)
V2 = 'plugins."io.containerd.grpc.v1.cri"'
V3 = "plugins.'io.containerd.cri.v1.runtime'"
WITH_RUNC = f"""version = 2
[{V2}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "/etc/spec.json"
cni_conf_dir = ""
[{V2}.containerd.runtimes.runc.options]
BinaryName = "/usr/local/sbin/runc"
SystemdCgroup = true
IoUid = 0
"""

KEYS = st.sampled_from(["a", "b-c", '"d.e"', "'f # g'", '"\\u0068"', '"a" . b', "i.j"])
VALUES = st.sampled_from(
    [
        "1",
        "true",
        '"x # y"',
        "'[z]'",
        "[]",
        '[ # first\n  "p", # ] " [\n\n  [1, 2],\n]',
        '"""\n[a]\nk = "v" # no\n"""',
        "'''\n[[b]] ''\n'''",
        '"""four""""',
        '{ q = 1, "r" = [ 2 ] }',
        "1979-05-27T07:32:00Z",
    ]
)
COMMENTS = st.sampled_from(["", "", "  # [a]", "\t# k = 'v\"", " # nvhook"])
PATHS = st.lists(st.sampled_from(["a", "b-c", "d.e", "f # g", "h", "k"]), min_size=1, max_size=3)
NEW_VALUES = st.sampled_from([True, 7, "text \x7f \u2028 \"'\\", ["a", 1], {"k 1": [False]}, 0.5])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw a TOML text from lines that are easy to misread; not every one is valid."""
    lines = []
    for number in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["pair", "pair", "pair", "table", "array", "blank"]))
        indent, comment = draw(st.sampled_from(["", "  ", "\t"])), draw(COMMENTS)
        key = draw(KEYS)
        if kind == "pair":
            lines.append(
                f"{indent}{key}{draw(st.sampled_from(['=', ' = ']))}{draw(VALUES)}{comment}"
            )
        elif kind == "table":
            lines.append(f"{indent}[ {key} . t{number}]{comment}" if number % 2 else f"[{key}]")
        elif kind == "array":
            lines.append(f"[[{key}]]{comment}")
        else:
            lines.append(indent + comment)
    end = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    text = end.join(line.replace("\n", end) for line in lines)
    return text + draw(st.sampled_from(["", end]))


@given(texts(), st.lists(st.tuples(PATHS.map(tuple), NEW_VALUES), min_size=1, max_size=3))
def test_undo_is_exact_and_the_meaning_is_what_was_asked_for(
    text: str, assignments: list[tuple[tuple[str, ...], object]]
) -> None:
    try:
        before = toml_edit.parse(text, "FILE")
        after = toml_edit.assign(text, assignments, "FILE")
    except ConfigError:
        return  # refused as a whole: nothing is written
    assert toml_edit.undo(after) == text
    # On a file with other changes: what is not nvhook's stays, in whatever order.
    more = "# new first line\n" + after + ("" if after.endswith("\n") else "\n") + "# new last\n"
    ends = "" if text.endswith("\n") or not text else "\n"
    left = f"# new first line\n{text}{ends}# new last\n"
    assert toml_edit.undo(more).replace("\r\n", "\n") == left.replace("\r\n", "\n")
    values = toml_edit.parse(after, "FILE")
    final = dict(assignments)
    for keys, value in final.items():
        if not any(other[: len(keys)] == keys for other in final if other != keys):
            assert toml_edit.lookup(values, keys) == value
    touched = {keys[0] for keys in final}
    assert {k: v for k, v in before.items() if k not in touched} == {
        k: v for k, v in values.items() if k not in touched
    }


@given(texts())
def test_statements_are_what_the_parser_sees(text: str) -> None:
    try:
        document = toml_edit.parse(text, "FILE")
    except ConfigError:
        return
    for statement in toml_edit._statements(text):
        value: object = document
        for key in statement.keys:
            # Below an array of tables, only that there is one.
            if key == "[]" or isinstance(value, list):
                break
            assert isinstance(value, dict)
            value = value[key]


@pytest.mark.parametrize(
    "text", ["a = 1", "[t]\nk = 1", "[t]", "a = 1\r\n[t]\r\nk = 2", "[t]\nx = 1"]
)
def test_line_without_an_end_keeps_having_none(text: str) -> None:
    after = toml_edit.assign(text, [(("t", "k"), 3), (("u", "v"), 4)], "FILE")
    assert not after.endswith("\n")
    assert toml_edit.parse(after, "FILE")["t"]["k"] == 3  # type: ignore[index]
    assert toml_edit.undo(after) == text


@pytest.mark.parametrize(
    "text",
    [
        "[t]\nk = 1\n",
        "t.k = [ # ]\n  1,\n]\nx = 1\n",
        "[t]\nk = [\n  1 ]",
        '[ "t" ]\n  k = """\n[t]\nk = 2\n"""\n[u]',
        "[t]\r\n'k' = '''\r\n#'''\r\n",
        "['t'.u]\nk = 1\n[t]\n# k = 2\n",
        "[[v]]\n[v.t]\nk = 1\n[t.u]\n[t]",
        "[t.u]\n",
    ],
)
def test_form_that_must_be_understood(text: str) -> None:
    before = toml_edit.parse(text, "FILE")
    after = toml_edit.assign(text, [(("t", "k"), "new")], "FILE")
    assert toml_edit.undo(after) == text
    values = toml_edit.parse(after, "FILE")
    assert toml_edit.table(values, ("t",)).pop("k") == "new"
    toml_edit.table(before, ("t",)).pop("k", None)
    assert values == {"t": {}, **before}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = ", "FILE line 1: "),
        ("\n\n[a", "FILE line 3: "),
        ("a = 1\na = 2\n", "FILE line 2: cannot overwrite a value"),
        ("t = 1", "FILE: t is not a table"),
        ("t = { x = 1 }", "FILE: t is written in a form that can't be changed (hint: write inline"),
        ("a = " + "[" * 100000, "FILE: nested too deeply"),
    ],
)
def test_bad_file_is_refused(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toml_edit.assign(text, [(("t", "k"), 3)], "FILE")
    assert str(caught.value).startswith(line)


def test_settings_of_runc_are_copied_and_zero_values_are_not() -> None:
    values = toml_edit.parse(containerd.register(WITH_RUNC, PLAIN, "FILE"), "FILE")
    entry = toml_edit.lookup(
        values, ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes", "nvidia")
    )
    assert entry == {
        "runtime_type": "io.containerd.runc.v2",
        "base_runtime_spec": "/etc/spec.json",
        "container_annotations": ["cdi.k8s.io/*"],
        "options": {"BinaryName": PATH, "SystemdCgroup": True},
    }


def test_options_that_runc_has_are_added_to_an_entry_that_is_there() -> None:
    text = f"{WITH_RUNC}[{V2}.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n"
    after = containerd.register(text, PLAIN, "FILE")
    assert "SystemdCgroup = true  # by nvhook configure" in after
    assert "base_runtime_spec" not in after.removeprefix(WITH_RUNC)
    assert containerd.unregister(after, "FILE") == text


def test_entry_of_another_kind_is_refused() -> None:
    text = (
        f"version = 2\n[{V2}.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.kata.v2'\n"
    )
    with pytest.raises(ConfigError, match=r"of another type, io.containerd.kata.v2 \(hint: choose"):
        containerd.register(text, PLAIN, "FILE")


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("root = '/r'\n", "plugins.cri"),
        ("version = 1\n", "plugins.cri"),
        ("version = 2\n", 'plugins."io.containerd.grpc.v1.cri"'),
        ("# nothing\n", 'plugins."io.containerd.grpc.v1.cri"'),
        ("version = 3\n", 'plugins."io.containerd.cri.v1.runtime"'),
        ("version = 4\n", 'plugins."io.containerd.cri.v1.runtime"'),
        # In version 3 this is the plugin with the streaming server only.
        (f"version = 3\n[{V2}]\nx = 1\n", 'plugins."io.containerd.cri.v1.runtime"'),
        (f"version = 2\n[{V2}]\nx = 1\n[{V3}]\ny = 1\n", 'plugins."io.containerd.grpc.v1.cri"'),
        (
            f"version = 2\n[{V2}]\nx = 1\n[{V3}.containerd]\ny = 1\n",
            'plugins."io.containerd.cri.v1.runtime"',
        ),
    ],
)
def test_section_by_version(text: str, section: str) -> None:
    after = containerd.register(text, PLAIN, "FILE")
    assert f"[{section}.containerd.runtimes.nvidia]" in after


@pytest.mark.parametrize("version", ["5", "0", "'2'"])
def test_unknown_version_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match="is not known"):
        containerd.register(f"version = {version}\n", PLAIN, "FILE")


def test_second_registration_adds_to_the_first() -> None:
    base = "version = 2\n"
    first = containerd.register(base, ALL, "FILE")
    assert containerd.register(first, PLAIN, "FILE") == first
    assert containerd.register(containerd.register(base, PLAIN, "FILE"), ALL, "FILE") == first
    moved = containerd.register(first, Registration("nvidia", "/new"), "FILE")
    assert moved == first.replace(PATH, "/new")


def test_containerd_warnings() -> None:
    disabled = 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
    assert containerd.warnings(disabled, "FILE") == [
        "FILE disables the CRI plugin: runtimes are not used until it is enabled"
    ]
    assert containerd.warnings("root = '/r'", "FILE") == [
        "FILE is of version 1, which containerd 2 may ignore"
    ]
    assert containerd.warnings(WITH_RUNC, "FILE") == [
        "FILE has runc at /usr/local/sbin/runc: nvhook-runtime calls its own (NVHOOK_RUNTIME)"
    ]
    other = f"[{V2}.containerd.runtimes.nvidia]\nruntime_type = 'x'\n"
    assert containerd.import_warnings(other, "99.toml", ALL) == [
        "99.toml is imported later and has its own runtime nvidia"
    ]
    default = f"[{V2}.containerd]\ndefault_runtime_name = 'runc'\n"
    assert containerd.import_warnings(default, "99.toml", ALL) == [
        "99.toml is imported later and sets the default runtime runc"
    ]
    assert containerd.import_warnings(default, "99.toml", PLAIN) == [
        "99.toml is imported: containerd before 2.1 takes the CRI section from there alone"
    ]
    assert containerd.import_warnings("root = '/r'", "99.toml", PLAIN) == []


def test_crio_takes_the_path_of_conmon_and_sees_conflicts() -> None:
    runc = "[crio.runtime.runtimes.runc]\nmonitor_path = '/usr/libexec/crio/conmon'\n"
    theirs = "[crio.runtime]\ndefault_runtime = 'crun'\n"
    theirs += "[crio.runtime.runtimes.nvidia]\nruntime_path = '/x'\n"
    others = [("/c/crio.conf", runc), ("/c/d/10-a.conf", theirs), ("/c/d/99-nvidia.conf", theirs)]
    file = "/c/d/99-nvhook.conf"
    assert 'monitor_path = "/usr/libexec/crio/conmon"' in crio.register(None, ALL, file, others)
    assert crio.conflicts(others, ALL, file) == [
        "/c/d/10-a.conf is read earlier, and loses: its runtime nvidia is /x",
        "/c/d/99-nvidia.conf is read later, and wins: its runtime nvidia is /x",
        "/c/d/99-nvidia.conf is read later, and wins: its default runtime is crun",
    ]


def test_podman_hook_is_the_one_that_is_installed() -> None:
    from pathlib import Path

    installed = Path(__file__).parents[2] / "oci/hooks.d/oci-nvhook.json"
    text = podman.hook_text("/usr/local/bin/nvhook")
    assert text == installed.read_text()
    assert podman.register_hook(text, "/opt/bin/nvhook", "FILE") == podman.hook_text(
        "/opt/bin/nvhook"
    )
    podman.unregister_hook(text, "FILE")
    with pytest.raises(ConfigError, match="remove it yourself"):
        podman.unregister_hook(text.replace("true", "false"), "FILE")
    assert podman.hook_conflicts([("OTHER", text), ("BAD", "{")]) == [
        "OTHER calls nvhook, too: remove one of the two",
        "BAD line 1: expecting property name enclosed in double quotes",
    ]


@pytest.mark.parametrize(
    ("name", "path"),
    [("runc", PATH), ("", PATH), ("a b", PATH), ("a\n", PATH), ("nvidia", "x"), ("nvidia", "/x\n")],
)
def test_registration_refuses_what_no_engine_would_take(name: str, path: str) -> None:
    with pytest.raises(ConfigError):
        Registration(name, path)
