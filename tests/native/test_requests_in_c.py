"""What the launcher reads, it reads as Python does; what it is not sure of, it leaves to Python."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvhook.config import Config
from nvhook.core.oci_render import gave_cdi, is_gpu_hook
from nvhook.core.rare_requests import may_ask
from nvhook.core.request import from_container
from nvhook.errors import FormatError, NvhookError
from nvhook.formats.oci import parse_config, parse_state
from tests.native import core

DATA = Path(__file__).parents[1] / "data"
CONFIGS = sorted(DATA.glob("oci/*/*/config.json"))
STATES = sorted(DATA.glob("oci/*/*/state*.json"))
REQUESTS = sorted(DATA.glob("requests/*.txt"))
MOUNTS = "/var/run/nvidia-container-devices"
FLAGS = ("accept_envvar_when_unprivileged", "accept_volume_mounts", "accept_cdi_annotations")
SWARM = ("DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_")
CONFIGURATIONS = [
    Config(**dict(zip(FLAGS, flags, strict=True)), swarm_resource=swarm)
    for flags in itertools.product([False, True], repeat=len(FLAGS))
    for swarm in ((), SWARM)
]


def name_of(path: Path) -> str:
    return "/".join(path.parts[-3:])


def is_pythons(data: bytes) -> bool:
    """Tell whether Python would have something to do, or to say, under any configuration."""
    container = parse_config(data, "/b")
    for configuration in CONFIGURATIONS:
        warnings: list[str] = []
        try:
            asked = from_container(container, configuration, warnings)
        except NvhookError:
            return True
        if asked is not None or warnings:
            return True
    return may_ask(container)


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_the_requests_of_real_engines(path: Path) -> None:
    data = path.read_bytes()
    read, container = core.read_request(data), parse_config(data, "/b")
    assert read.wanted == is_pythons(data)
    assert read.understood
    assert read.repeatable
    assert read.user_namespace == container.user_namespace
    root = read.root_path if read.root_path.startswith("/") else f"/b/{read.root_path}"
    assert parse_config(document([], root=root), "/").root_path == container.root_path
    hooks = json.loads(data).get("hooks") or {}
    assert read.gpu_hooks >= any(is_gpu_hook(hook) for each in hooks.values() for hook in each)


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
def test_the_variables_of_real_images(path: Path) -> None:
    data = document(path.read_text().splitlines())
    assert core.read_request(data).wanted == is_pythons(data)


def document(env: list[str], root: str = "r", **rest: object) -> bytes:
    return json.dumps({"process": {"env": env}, "root": {"path": root}, **rest}).encode()


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (document(["NVIDIA_VISIBLE_DEVICES=all"]), True),
        (document(["NVIDIA_VISIBLE_DEVICES="]), False),
        (document(["NVIDIA_VISIBLE_DEVICES=void"]), False),
        (document(["NVIDIA_VISIBLE_DEVICES"]), False),
        (document(["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"]), False),
        (document(["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=0"]), True),
        (document(["NVIDIA_VISIBLE_DEVICES=void", "CUDA_VERSION=12.4"]), False),
        (document(["NVIDIA_VISIBLE_DEVICES=void", "DOCKER_RESOURCE_GPU=0"]), True),
        (document(["CUDA_VERSION=9.0"]), True),
        (document(["CUDA_VERSION="]), False),
        (document(["CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"]), False),
        (document(["NVIDIA_REQUIRE_CUDA=x", "NVIDIA_REQUIRE_CUDA=", "CUDA_VERSION=9"]), True),
        (document(["A=NVIDIA_VISIBLE_DEVICES=all"], hostname="CUDA_VERSION"), False),
        (document([], annotations={"cdi.k8s.io/x": "y"}), True),
        (document([], annotations={"x": "cdi.k8s.io/x"}), False),
        (document([], mounts=[{"destination": f"{MOUNTS}/0"}]), True),
        (document([], mounts=[{"destination": "/x", "source": MOUNTS}]), False),
        # Spelled with escapes.
        (document([]).replace(b"[]", b'["\\u004eVIDIA_VISIBLE\\u005fDEVICES=0"]'), True),
        (document([]).replace(b"[]", b'["NVIDIA_VISIBLE_DEVICES\\u003d0"]'), True),
        (document([]).replace(b"[]", b'["NVIDIA_VISIBLE_DEVICES\\u003dvoi\\u0064"]'), False),
        (document([]).replace(b"[]", b'["CUDA\\u005fVERSION=9"]'), True),
        (document([]).replace(b"[]", b'["DOCKER\\u005fRESOURCE=9"]'), True),
        (document([], annotations={"cdi.k8s.io/": ""}).replace(b"io/", b"io\\/"), True),
        (document([], annotations={"cdi.k8s.io/": ""}).replace(b"io/", b"io\\u002f"), True),
        (document([], annotations={"cdi.k8s.io/": ""}).replace(b".k8", b"\\u002ek\\u0038"), True),
        (document([], mounts=[{"destination": MOUNTS}]).replace(b"/", b"\\/"), True),
        (document(["NVIDIA_VISIBLE_DEVICES=0"]).replace(b'"env"', b'"e\\u006ev"'), True),
        # Not understood: whatever could spell a request is left to Python.
        (b"", False),
        (b"null", False),
        (b'{"a": 1', False),
        (document(["A=1"])[:-1], False),
        (document(["NVIDIA_VISIBLE_DEVICES=void"])[:-1], False),
        (document(["NVIDIA_VISIBLE_DEVICES=0"])[:-1], True),
        (document(["CUDA_VERSION=9"])[:-1], True),
        (document(["A=\\u003c\\u0026"])[:-1], False),
        (document([])[:-1] + b"\\u0043", True),
        (document([])[:-1] + b"cdi.k8s.io\\/", True),
        (b'{"process": {"env": {"a": "NVIDIA_VISIBLE_DEVICES=0"}}}', True),
        (b'{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0", 1]}}', True),
        (b'{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}, "process": {}}', True),
    ],
    ids=str,
)
def test_what_may_be_a_gpu_container(data: bytes, wanted: bool) -> None:
    assert core.read_request(data).wanted is wanted


NAMES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA", "DOCKER_RESOURCE_GPU")
NAMES += ("NVIDIA_IMEX_CHANNELS", "PATH", "\u00e9")
VALUES = ("", "void", "all", "0", "x", "9.0", " void", "void,0", MOUNTS, "\u00e9<")
VARIABLES = st.builds(
    lambda name, equals, value: name + equals + value,
    st.sampled_from(NAMES),
    st.sampled_from(["=", "=", "=", ""]),
    st.sampled_from(VALUES),
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "process": st.fixed_dictionaries({"env": st.lists(VARIABLES, max_size=4) | st.none()}),
        "root": st.just({"path": "r"}),
    },
    optional={
        "annotations": st.dictionaries(
            st.sampled_from(["cdi.k8s.io/x", "cdi.k8s.io", "a"]), st.sampled_from(["", "a/b=c"])
        ),
        "mounts": st.lists(
            st.fixed_dictionaries(
                {"destination": st.sampled_from([MOUNTS, f"{MOUNTS}/0", "/a", f"/a{MOUNTS}/b"])},
                optional={"source": st.sampled_from(["/dev/null", "a", None])},
            ),
            max_size=2,
        ),
    },
)


def escaped(text: str, places: list[int]) -> str:
    """Spell capitals and slashes, which stand in strings only, otherwise."""
    letters = [at for at, letter in enumerate(text) if "A" <= letter <= "Z" or letter == "/"]
    for at in sorted({letters[place % len(letters)] for place in places if letters}, reverse=True):
        spelled = "\\/" if text[at] == "/" and at % 2 else f"\\u{ord(text[at]):04x}"
        text = text[:at] + spelled + text[at + 1 :]
    return text


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, st.lists(st.integers(0, 1000), max_size=3))
def test_no_request_is_lost(value: dict, places: list[int]) -> None:
    text = json.dumps(value)
    data = escaped(text, places).encode()
    wanted = core.read_request(data).wanted
    assert wanted >= is_pythons(data)
    if " void" not in text and "void,0" not in text:  # lists, which Python alone reads
        assert wanted == is_pythons(data)


@pytest.mark.parametrize(
    ("hooks", "is_there"),
    [
        ('{"prestart": [{"path": "/usr/bin/nvhook"}]}', True),
        ('{"prestart": [{"path": "/usr/bin/nvidia-container-toolkit"}]}', True),
        ('{"createRuntime": [{"path": "/usr/bin/nvh\\u006fok"}]}', True),
        ('{"createRuntime": [{"path": "/usr/bin/other", "args": ["a\\u003cb"]}]}', False),
        ("null", False),
        ("{}", False),
    ],
)
def test_hooks_that_python_would_replace(hooks: str, is_there: bool) -> None:
    text = document([]).decode()[:-1] + f', "hooks": {hooks}}}'
    assert core.read_request(text.encode()).gpu_hooks is is_there
    parsed = json.loads(hooks) or {}
    assert is_there >= gave_cdi({"hooks": parsed})


@pytest.mark.parametrize("path", STATES, ids=name_of)
def test_the_states_of_real_runtimes(path: Path) -> None:
    data = path.read_bytes()
    understood, identifier, pid, bundle = core.read_state(data)
    state = parse_state(data, need_pid=False)
    assert identifier == state.id
    assert (bundle.rstrip("/") or "/") == state.bundle
    assert pid == (state.pid if state.pid > 1 else 0)
    assert understood == (state.pid > 1)


STATE = {"id": "c1", "pid": 42, "bundle": "/run/b", "status": "creating", "annotations": {"a": "b"}}


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({}, (True, "c1", 42, "/run/b")),
        ({"bundle": None, "bundlePath": "/old/"}, (True, "c1", 42, "/old/")),
        ({"pid": 1}, (False, "c1", 0, "/run/b")),
        ({"pid": (1 << 31) - 1}, (True, "c1", (1 << 31) - 1, "/run/b")),
        ({"pid": 1 << 31}, (False, "c1", 0, "/run/b")),
        ({"pid": 10**30}, (False, "c1", 0, "/run/b")),
        ({"pid": -42}, (False, "c1", 0, "/run/b")),
        ({"pid": 42.0}, (False, "c1", 0, "/run/b")),
        ({"pid": "42"}, (False, "c1", 0, "/run/b")),
        ({"pid": None}, (False, "c1", 0, "/run/b")),
        ({"id": 1}, (False, "", 42, "/run/b")),
        ({"id": "x" * 256}, (False, "x" * 255, 42, "/run/b")),
        ({"bundle": "relative"}, (False, "c1", 42, "")),
        ({"bundle": ["/b"]}, (False, "c1", 42, "")),
        ({"bundle": "/" + "x" * 4095}, (False, "c1", 42, "")),
        ({"bundle": "/\u00e9\\\"'"}, (False, "c1", 42, "")),  # \\u00e9: only plain escapes
        ({"bundle": "/\\\"'"}, (True, "c1", 42, "/\\\"'")),
        ({"status": 1}, (False, "c1", 42, "/run/b")),
        ({"annotations": {"a": 1}}, (False, "c1", 42, "/run/b")),
        ({"annotations": []}, (False, "c1", 42, "/run/b")),
    ],
    ids=str,
)
def test_states(changes: dict, read: tuple) -> None:
    data = json.dumps({**STATE, **changes}).encode()
    assert core.read_state(data) == read
    try:
        state = parse_state(data)
    except FormatError:
        assert not read[0]
    else:
        assert not read[0] or (state.id, state.pid) == read[1:3]


@pytest.mark.parametrize(
    "text",
    [
        '{"id": "a", "pid": 42, "bundle": "/b", "bundle": "/c"}',
        '{"id": "a", "id": "a", "pid": 42, "bundle": "/b"}',
        '{"id": "a", "p\\u0069d": 42, "bundle": "/b"}',
        '{"id": "a", "pid": 42, "bundle": "/b"} x',
        '{"id": "a", "pid": 42, "bundle": "/b"',
        "[]",
        "",
    ],
)
def test_states_that_are_not_understood(text: str) -> None:
    assert not core.read_state(text.encode())[0]


def test_a_bundle_with_a_slash_that_is_escaped() -> None:
    text = json.dumps(STATE).replace("/", "\\/")
    assert core.read_state(text.encode()) == (True, "c1", 42, "/run/b")
