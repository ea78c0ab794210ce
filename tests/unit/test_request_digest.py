"""A container is known again by a digest of what its GPUs are decided from, and nothing else."""

import copy
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvhook._native import digests, ffi, lib
from nvhook.errors import FormatError
from nvhook.formats import oci
from nvhook.formats.oci import parse_config

CONFIGS = sorted((Path(__file__).parent.parent / "data/oci").glob("*/*/config.json"))
MOUNTS = "/var/run/nvidia-container-devices"
Document = dict[str, object]


def container() -> dict:
    return {
        "process": {
            "args": ["sh"],
            "cwd": "/",
            "user": {"uid": 0, "additionalGids": [1, 2]},
            "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0", "CUDA_VERSION=12", "A=1"],
            "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"]},
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "c1",
        "mounts": [
            {"source": "/dev/null", "destination": f"{MOUNTS}/0"},
            {"source": "proc", "destination": "/proc", "options": ["ro"]},
        ],
        "annotations": {"cdi.k8s.io/a": "nvidia.com/gpu=0", "org.example": "x"},
        "linux": {
            "namespaces": [{"type": "mount"}, {"type": "pid", "path": "/proc/1/ns/pid"}],
            "rootfsPropagation": "rslave",
            "devices": [{"path": "/dev/a", "type": "c", "major": 1, "minor": 3}],
            "resources": {"devices": [{"allow": False}], "memory": {"limit": 1}},
            "cgroupsPath": "/c1",
        },
    }


def digest(document: Document | bytes) -> bytes | None:
    return digests.of_request(
        document if isinstance(document, bytes) else json.dumps(document).encode()
    )


def changed(change: Callable[[dict], object]) -> dict:
    document = container()
    change(document)
    return document


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["process"]["env"].append("NVIDIA_X=1"),
        lambda d: d["process"]["env"].append("CUDA_VERSION=13"),
        lambda d: d["process"]["env"].append("DOCKER_RESOURCE_GPU=0"),
        lambda d: d["process"]["env"].reverse(),
        lambda d: d["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN"),
        lambda d: d["process"].pop("capabilities"),
        lambda d: d["process"]["user"]["additionalGids"].append(3),
        lambda d: d["process"]["user"].pop("additionalGids"),
        lambda d: d["annotations"].update({"cdi.k8s.io/a": "nvidia.com/gpu=1"}),
        lambda d: d["annotations"].update({"cdi.k8s.io/b": "nvidia.com/gpu=1"}),
        lambda d: d["mounts"][0].update(source="/dev/zero"),
        lambda d: d["mounts"][0].pop("source"),
        lambda d: d["mounts"][0].update(destination=f"{MOUNTS}/1"),
        lambda d: d["mounts"][1].update(destination=f"/x{MOUNTS}"),
        lambda d: d["linux"]["namespaces"].append({"type": "user"}),
        lambda d: d["linux"].update(rootfsPropagation="shared"),
        lambda d: d["linux"].update(devices=[]),
        lambda d: d["linux"].pop("devices"),
        lambda d: d["linux"]["resources"].update(devices=[]),
        lambda d: d["linux"].pop("resources"),
    ],
)
def test_what_decides_changes_the_digest(change: Callable[[dict], object]) -> None:
    different = digest(changed(change))
    assert different is not None
    assert different != digest(container())


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["process"]["env"].append("B=NVIDIA_VISIBLE_DEVICES=1"),
        lambda d: d["process"]["env"].pop(0),
        lambda d: d["process"]["env"].append("XNVIDIA_Y=1"),
        lambda d: d["process"].update(args=["NVIDIA_VISIBLE_DEVICES=1", "CUDA_VERSION"]),
        lambda d: d["process"]["user"].update(uid=7),
        lambda d: d["root"].update(path="/var/lib/x", readonly=False),
        lambda d: d.update(hostname="c2", hooks={"prestart": []}),
        lambda d: d["mounts"].pop(1),
        lambda d: d["mounts"][0].update(options=["bind"]),
        lambda d: d["annotations"].update({"x.cdi.k8s.io/": "y"}),
        lambda d: d["linux"]["namespaces"].pop(),
        lambda d: d["linux"].update(cgroupsPath="/c2", seccomp={"a": [1.5e3, None, {"b": True}]}),
        lambda d: d["linux"]["resources"]["memory"].update(limit=2),
    ],
)
def test_what_is_each_containers_own_does_not(change: Callable[[dict], object]) -> None:
    assert digest(changed(change)) == digest(container()) is not None


@pytest.mark.parametrize("name", ["", "X", "_A"])
def test_python_observes_the_variables_annotations_and_mounts_that_are_in_the_digest(name) -> None:
    for beginning in oci.OBSERVED_VARIABLES:
        document = changed(lambda d: d["process"]["env"].append(f"{beginning}{name}=x"))  # noqa: B023
        assert digest(document) != digest(container())
    document = changed(lambda d: d["annotations"].update({oci.OBSERVED_ANNOTATIONS + name: "x"}))
    assert digest(document) != digest(container())
    document = changed(lambda d: d["mounts"].append({"destination": oci.OBSERVED_MOUNTS + name}))
    assert digest(document) != digest(container())


PIECES = st.sampled_from(
    ["NVIDIA_", "NVIDIA", "CUDA_VERSION", "DOCKER_RESOURCE", "A", "=", "\u00e9", "&", '"', "/"]
)
TEXTS = st.lists(PIECES, max_size=4).map("".join)
KEYS = st.sampled_from(["cdi.k8s.io/", "cdi.k8s.io", "x", "", "\u00e9"])
PLACES = st.lists(st.sampled_from([MOUNTS, "/0", "/", "a"]), min_size=1, max_size=3).map("".join)
NAMESPACES = st.lists(st.fixed_dictionaries({"type": st.sampled_from(["user", "mount"])}))
DOCUMENTS = st.builds(
    lambda env, bounding, mounts, annotations, linux, device: {
        "process": {"env": env, "capabilities": {"bounding": bounding}},
        "root": {"path": "rootfs"},
        "mounts": [{"source": source, "destination": place} for source, place in mounts],
        "annotations": annotations,
        "linux": {
            **linux,
            "devices": [{"type": "c", "path": "/dev/x", "major": 1, "minor": device}],
        },
    },
    st.lists(TEXTS, max_size=4),
    st.lists(st.sampled_from(["CAP_KILL", "CAP_SYS_ADMIN"]), max_size=1),
    st.lists(st.tuples(st.sampled_from(["/dev/null", "", "b"]), PLACES), max_size=2),
    st.dictionaries(KEYS.flatmap(lambda key: TEXTS.map(lambda text: key + text)), TEXTS),
    st.fixed_dictionaries(
        {},
        optional={"namespaces": NAMESPACES, "rootfsPropagation": st.sampled_from(["", "shared"])},
    ),
    st.integers(0, 1),
)


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, DOCUMENTS, st.data())
def test_equal_digests_mean_equal_containers(one: dict, other: dict, data: st.DataObject) -> None:
    """Two documents, and the first with one part of the second."""
    mixed = copy.deepcopy(one)
    part = data.draw(st.sampled_from(["process", "mounts", "annotations", "linux"]))
    mixed[part] = other[part]
    for first, second in ((one, other), (one, mixed)):
        if digest(first) == digest(second) is not None:
            texts = [json.dumps(document).encode() for document in (first, second)]
            assert parse_config(texts[0], "/b") == parse_config(texts[1], "/b")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_the_container_of_a_real_engine_can_be_known_again(path: Path) -> None:
    assert digest(path.read_bytes()) is not None


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[]",
        b"null",
        b'{"root": {"path": "r"}}',
        b'{"process": null, "root": {"path": "r"}}',
        b'{"process": {}}',
        b'{"process": {}, "root": {"path": ""}}',
        b'{"process": {}, "root": {"path": "\\u0041"}}',
        b'{"process": {}, "root": {"path": "r"}} x',
        b'{"process": {}, "root": {"path": "r"},}',
        b'{"process": {}, "root": {"path": "r"}, "x": "\xff"}',
        b'{"process": {}, "root": {"path": "r"}, "x": "\xed\xa0\x80"}',
        b'{"process": {}, "root": {"path": "r"}, "x": NaN}',
        b'{"process": {}, "root": {"path": "r"}, "x": t rue}',
        b'{"process": {}, "root": {"path": "r"}, "x": 01}',
        b'{"process": {}, "root": {"path": "r"}, "x": "\t"}',
        b'{"process": {}, "root": {"path": "r"}, "x": "\\x"}',
        b'{"process": {}, "process": {}, "root": {"path": "r"}}',
        b'{"process": {"env": {}}, "root": {"path": "r"}}',
        b'{"process": {"env": [null]}, "root": {"path": "r"}}',
        b'{"process": {"env": [], "env": []}, "root": {"path": "r"}}',
        b'{"process": {}, "root": {"path": "r"}, "mounts": [{}]}',
        b'{"process": {}, "root": {"path": "r"}, "mounts": [null]}',
        b'{"process": {}, "root": {"path": "r"}, "annotations": {"a": 1}}',
        b'{"process": {}, "root": {"path": "r"}, "linux": {"namespaces": ["user"]}}',
        b'{"process": {}, "root": {"path": "r"}, "x": ' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"process": {}, "root": {"path": "r"}}' + b" " * (16 << 20),
    ],
    ids=lambda text: text[-60:].decode("latin-1").strip(),
)
def test_what_python_refuses_or_could_read_otherwise_has_no_digest(broken: bytes) -> None:
    assert digest(broken) is None


@pytest.mark.parametrize(
    ("old", "new", "is_known"),
    [
        ("NVIDIA_VISIBLE_DEVICES=0", "\\u004eVIDIA_VISIBLE_DEVICES=0", False),
        ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES\\u003d0", False),
        ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda\\u003e12", True),
        ("cdi.k8s.io/a", "cdi.k8s.io\\/a", False),
        ("cdi.k8s.io/a", "cdi.k8s.io/\\u0061", False),
        (f"{MOUNTS}/0", f"{MOUNTS}\\/0", False),
        ('"/proc"', '"/a\\u0026b"', True),
        ('"process"', '"p\\u0072ocess"', False),
        ('"rootfs"', '"\\/root\\"fs\\\\"', True),
    ],
)
def test_a_name_with_an_escape_is_left_to_python(old: str, new: str, is_known: bool) -> None:
    text = json.dumps(container())
    assert old in text
    assert (digest(text.replace(old, new).encode()) is not None) is is_known


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"process": {"env": ["NVIDIA_A=1NVIDIA_B=2"]}},
            {"process": {"env": ["NVIDIA_A=1", "NVIDIA_B=2"]}},
        ),
        (
            {"annotations": {"cdi.k8s.io/a": "bc"}},
            {"annotations": {"cdi.k8s.io/ab": "c"}},
        ),
        (
            {"mounts": [{"source": "a", "destination": f"/b{MOUNTS}"}]},
            {"mounts": [{"source": "a/b", "destination": MOUNTS}]},
        ),
        ({"linux": {"devices": []}}, {"linux": {"resources": {"devices": []}}}),
        ({"process": {"capabilities": []}}, {"process": {"user": {"additionalGids": []}}}),
    ],
)
def test_the_same_characters_elsewhere_are_another_container(one: dict, other: dict) -> None:
    usual = {"process": {}, "root": {"path": "r"}}
    assert digest({**usual, **one}) != digest({**usual, **other})


def test_characters_are_those_of_utf_8() -> None:
    """Every first byte, with the second ones at which the table changes, cut off or complete."""
    seconds = [b"", *[bytes([byte]) for byte in b"\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0"]]
    for first, second, rest in itertools.product(
        range(0x80, 0x100), seconds, (b"", b"\x80", b"\x80\x80", b"\xbf\xbf", b"\x80\xc0")
    ):
        character = bytes([first]) + second + rest
        text = b'{"process": {}, "root": {"path": "r"}, "x": "%s"}' % character
        assert (digest(text) is not None) == is_taken(text), character


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(JSON, st.sampled_from([None, 1]), st.booleans(), st.binary(max_size=3), st.integers(0, 400))
def test_what_has_a_digest_is_what_python_takes(value, indent, ascii_only, noise, place) -> None:
    text = json.dumps({**container(), "x": value}, indent=indent, ensure_ascii=ascii_only)
    data = text.encode("utf-8", "surrogatepass")
    assert (digest(data) is not None) == is_taken(data)
    data = data[:place] + noise + data[place + len(noise) :]
    if digest(data) is not None:
        assert is_taken(data)


def is_taken(data: bytes) -> bool:
    try:
        parse_config(data, "/b")
    except FormatError:
        return False
    return True


@given(st.binary(max_size=300))
def test_the_launchers_digest_is_hashlibs(data: bytes) -> None:
    for text in (data, data * 7):
        key = ffi.new("char[65]")
        lib.nvh_recording_key(text, len(text), bytes(32), key)
        expected = hashlib.blake2b(text + bytes(32), digest_size=32).hexdigest()
        assert ffi.string(key).decode() == expected
