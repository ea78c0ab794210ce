"""CDI specs: what is refused and where, the version a spec needs, and text there and back."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nvhook.errors import FormatError
from nvhook.formats import cdi_spec, yaml_text
from nvhook.formats.cdi_reader import parse, read
from nvhook.formats.cdi_rules import is_device_name, is_kind, split_name, violations
from nvhook.formats.cdi_writer import dump_json, dump_yaml
from nvhook.record import replace
from tests.cdi.cases import DATA, DOCUMENTS, ENV, SAMPLES, YAML, spec


def places(data: bytes, file: str) -> list[str]:
    return [finding.path for finding in read(data, file)[1]]


def test_every_sample_has_a_verdict() -> None:
    assert sorted(SAMPLES) == sorted(path.name for path in DATA.iterdir())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_wrong_at_its_places_only(name: str) -> None:
    assert places((DATA / name).read_bytes(), name) == SAMPLES[name]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_wrong_at_its_places_only(name: str) -> None:
    document, expected = DOCUMENTS[name]
    if not isinstance(document, dict):
        expected = [""]
    found = places(json.dumps(document).encode(), "case.json")
    assert sorted(set(found)) == sorted(set(expected))


@pytest.mark.parametrize("name", YAML)
def test_yaml_is_wrong_at_its_places_only(name: str) -> None:
    text, expected = YAML[name]
    assert places(text.encode(), "case.yaml") == expected


def test_values_of_a_real_spec() -> None:
    name = "nvidia-0.8.0-dynamic_mig.yaml"
    found = parse((DATA / name).read_bytes(), name)
    assert (found.version, found.kind) == ("0.8.0", "k8s.device-plugin.nvidia.com/dynamic-mig")
    assert found.edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert found.edits.hooks[0].hook_name == "createContainer"
    assert found.edits.hooks[0].args[:2] == ("nvidia-cdi-hook", "create-symlinks")
    assert [device.name for device in found.devices] == ["mig-0123abcd"]
    nodes = found.devices[0].edits.device_nodes
    assert nodes[1] == cdi_spec.CdiDeviceNode("/dev/nvidia-caps/nvidia-cap42")


def test_numbers_of_yaml_in_every_base() -> None:
    text, _ = YAML["numbers of every base"]
    node = parse(text.encode(), "case.yaml").devices[0].edits.device_nodes[0]
    assert (node.major, node.minor, node.file_mode) == (16, 15, 0o660)


def test_an_error_names_file_place_and_reason_and_counts_the_rest() -> None:
    document = json.dumps(spec({"env": ["x"], "mounts": [{}]})).encode()
    with pytest.raises(FormatError) as caught:
        parse(document, "/etc/cdi/a.json")
    assert str(caught.value) == (
        "/etc/cdi/a.json: devices[0].containerEdits.env[0]: 'x' is not NAME=value (and 2 more) "
        "(hint: nvhook cdi validate FILE shows all)"
    )


@pytest.mark.parametrize(
    ("data", "file", "reason"),
    [
        (b'{"a": 1, "a": 2}', "a.json", "is not JSON: duplicate key 'a'"),
        (b"a: 1\na: 2\n", "a.yaml", "line 2: duplicate key 'a'"),
        (b"a: [", "a.yaml", "is not YAML: line "),
        (b"a: \xff", "a.yaml", "is not UTF-8: bad byte at offset 3"),
        (b"a: \x01", "a.yaml", "is not YAML"),
        (b"", "a.yaml", "is empty"),
        (b" ", "a.json", "is empty"),
        (b"x" * (cdi_spec.MAX_SIZE + 1), "a.yaml", f"is larger than {cdi_spec.MAX_SIZE} bytes"),
        (b"x" * (cdi_spec.MAX_SIZE + 1), "a.json", f"is larger than {cdi_spec.MAX_SIZE} bytes"),
        (b"[" * 100, "a.yaml", "line 1: nested more than 64 deep"),
        (b"[" * 100_000, "a.yaml", "line 1: "),
        (b"[" * 100_000, "a.json", "nested too deeply"),
        (b"a: &a [x]\nb: &b [*a, *c]\n", "a.yaml", "line 2: the anchor of alias *c"),
        (b"? [a]\n: b\n", "a.yaml", "line 1: a key is not a text"),
        (b"kind: a/b\n", "a.yml", "is neither .json nor .yaml by its name"),
    ],
)
def test_a_file_that_can_not_be_read_at_all(data: bytes, file: str, reason: str) -> None:
    ((finding,)) = read(data, file)[1]
    assert (finding.file, finding.path) == (file, "")
    assert reason in finding.reason


def test_aliases_can_not_make_a_small_file_large() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(FormatError, match="more than 200000 values"):
        yaml_text.parse("\n".join(lines).encode(), "bomb.yaml", 1 << 20)


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("nvidia.com/gpu", True), ("nvidia.com", False), ("/gpu", False), ("a/b=c", False)],
)
def test_kinds(kind: str, verdict: bool) -> None:
    assert is_kind(kind) is verdict


def test_qualified_names() -> None:
    assert split_name("nvidia.com/gpu=GPU-1:2") == ("nvidia.com/gpu", "GPU-1:2")
    for name in ("nvidia.com/gpu", "nvidia.com/gpu=", "gpu=0", "=0", "a/b=c=d", "a/b=c/d", ""):
        assert split_name(name) is None
    assert is_device_name("0")


def test_joined_edits_keep_their_order_and_the_last_rdt() -> None:
    first = cdi_spec.ContainerEdits(
        env=("A=1",), intel_rdt=cdi_spec.IntelRdt("x"), additional_gids=(1,)
    )
    second = cdi_spec.ContainerEdits(env=("A=2",), mounts=(cdi_spec.CdiMount("/a", "/b"),))
    third = cdi_spec.ContainerEdits(intel_rdt=cdi_spec.IntelRdt("y"), additional_gids=(2,))
    assert cdi_spec.join((first, second, third)) == cdi_spec.ContainerEdits(
        env=("A=1", "A=2"),
        mounts=(cdi_spec.CdiMount("/a", "/b"),),
        intel_rdt=cdi_spec.IntelRdt("y"),
        additional_gids=(1, 2),
    )


# ---- any bytes, any values


@given(st.binary(), st.sampled_from(["a.json", "a.yaml"]))
def test_any_bytes_give_findings_or_a_spec(data: bytes, file: str) -> None:
    read(data, file)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
NAMES = st.sampled_from(
    ["name", "containerEdits", "env", "deviceNodes", "path", "mounts", "hooks", "intelRdt"]
)
SHAPES = st.recursive(
    JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


@given(SHAPES, SHAPES)
def test_any_document_gives_findings_or_a_spec(devices: object, edits: object) -> None:
    document = spec(ENV) | {"devices": devices, "containerEdits": edits}
    found, findings = read(json.dumps(document).encode(), "a.json")
    if not findings:
        assert parse(dump_json(found).encode(), "b.json") == found


TEXT = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=8
)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
ENTRIES = st.lists(TEXT.map(lambda value: f"A={value}"), max_size=3).map(tuple)
IDS = st.none() | st.integers(0, (1 << 32) - 1)
NUMBERS = st.integers(0, 1 << 40)
LETTERS = st.text("abcXYZ019", min_size=1, max_size=5)
NODES = st.builds(
    cdi_spec.CdiDeviceNode,
    TEXT,
    st.just("") | TEXT,
    st.sampled_from(["", "b", "c", "u", "p"]),
    NUMBERS,
    NUMBERS,
    IDS,
    st.sampled_from(["", "none", "rw", "rwm"]),
    IDS,
    IDS,
)
HOOKS = st.builds(
    cdi_spec.Hook, st.sampled_from(cdi_spec.HOOK_NAMES), TEXT, TEXTS, ENTRIES, st.none() | NUMBERS
)
MOUNTS = st.builds(cdi_spec.CdiMount, TEXT, TEXT, TEXTS, st.just("") | TEXT)
RDTS = st.builds(cdi_spec.IntelRdt, LETTERS, LETTERS, LETTERS, st.none() | TEXTS, st.booleans())
NETS = st.lists(TEXT, unique=True, max_size=3).map(
    lambda names: tuple(cdi_spec.NetDevice(name, name) for name in names)
)


def some(items: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, max_size=2).map(tuple)


EDITS = st.builds(
    cdi_spec.ContainerEdits,
    ENTRIES,
    some(NODES),
    NETS,
    some(HOOKS),
    some(MOUNTS),
    st.none() | RDTS,
    st.lists(st.integers(0, (1 << 32) - 1), max_size=3).map(tuple),
)
ANNOTATIONS = st.dictionaries(LETTERS, TEXT, max_size=2)
DEVICES = st.builds(
    cdi_spec.CdiDevice, LETTERS, EDITS.filter(lambda edits: edits != cdi_spec.NO_EDITS), ANNOTATIONS
)
SPECS = st.builds(
    cdi_spec.Spec,
    st.just("1.1.0"),
    st.sampled_from(["a.b/c", "a/c.d"]),
    st.lists(DEVICES, min_size=1, max_size=3, unique_by=lambda device: device.name).map(tuple),
    EDITS,
    ANNOTATIONS,
)


@given(SPECS)
def test_text_there_and_back(original: cdi_spec.Spec) -> None:
    assert list(violations(original)) == []
    assert parse(dump_json(original).encode(), "a.json") == original
    assert parse(dump_yaml(original).encode(), "a.yaml") == original


@given(SPECS)
def test_libyaml_writes_the_same_bytes(original: cdi_spec.Spec) -> None:
    document = json.loads(dump_json(original))
    expected = yaml.safe_dump(document, sort_keys=False, width=1000, explicit_start=True)
    assert dump_yaml(original) == expected


@given(SPECS)
def test_the_minimum_version_is_one_that_the_rules_take(original: cdi_spec.Spec) -> None:
    lowest = cdi_spec.minimum_version(original)
    versions = [version for version, _ in cdi_spec.VERSIONS]
    assert list(violations(replace(original, version=lowest))) == []
    for older in versions[versions.index(lowest) + 1 :]:
        assert [path for path, _ in violations(replace(original, version=older))] == ["cdiVersion"]
