"""State and config.json as engines and runtimes really write them, and as they never should."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.errors import FormatError
from nvhook.formats.oci import ContainerConfig, State, parse_config, parse_state

DATA = Path(__file__).parent.parent / "data" / "oci"
CASES = sorted(str(path.parent.relative_to(DATA)) for path in DATA.glob("*/*/config.json"))
STATES = sorted(str(path.relative_to(DATA)) for path in DATA.glob("*/*/state*.json"))
BUNDLE = "/run/bundles/c1"
MOUNTS = "/var/run/nvidia-container-devices"


def expectations() -> dict[str, list[str]]:
    lines = (DATA / "EXPECTED.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return {row[0]: row[1:] for row in rows}


def test_every_sample_has_an_expectation() -> None:
    assert len(CASES) > 100
    assert sorted(expectations()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_config_of_a_real_engine(case: str) -> None:
    visible, privileged, user_namespace, root = expectations()[case]
    config = parse_config((DATA / case / "config.json").read_bytes(), BUNDLE)
    assert config.env.get("NVIDIA_VISIBLE_DEVICES", "-") == visible
    assert config.privileged == (privileged == "privileged")
    assert config.user_namespace == (user_namespace == "userns")
    assert config.root_path == root.replace("BUNDLE", BUNDLE)


# Stages at which the container's first process has a host pid; state.json is prestart's.
HOST_PID_STAGES = ("state", "state-2", "state-prestart", "state-createRuntime", "state-poststart")


@pytest.mark.parametrize("name", STATES)
def test_state_of_a_real_runtime(name: str) -> None:
    path = DATA / name
    data = path.read_bytes()
    engine = name.partition("/")[0]
    if path.stem in HOST_PID_STAGES:
        state = parse_state(data)
        assert state.pid > 1
        if path.stem != "state-poststart":
            # crun says "created" where runc says "creating"; docker and podman use either.
            assert state.status in {"creating", "created"}
    else:
        with pytest.raises(FormatError, match="the container is not being created"):
            parse_state(data)
        state = parse_state(data, need_pid=False)
        assert state.pid <= 1
    assert state.bundle.startswith("/")
    assert not state.bundle.endswith("/") or path.stem == "state-startContainer"
    if engine.startswith("crun"):
        assert state.root == "rootfs"
    document = json.loads(data)
    assert state.id == document["id"]
    assert state.annotations == document.get("annotations", {})


def test_crun_writes_more_than_runc() -> None:
    data = (
        DATA / "crun-1.28-cgroupv2/hooks-run-bundle-symlink/state-createRuntime.json"
    ).read_bytes()
    assert b"\\/" in data  # crun 1.28 escapes slashes: never grep, parse
    assert parse_state(data) == State(
        "c1", 24007, "/var/lib/bundle", "created", {"a.b/c": "d", "nvhook.test": "é"}, "rootfs"
    )


def state(**changes: object) -> bytes:
    document = {
        "ociVersion": "1.0.2",
        "id": "c1",
        "pid": 42,
        "bundle": BUNDLE,
        "status": "creating",
    }
    document.update(changes)  # type: ignore[arg-type]
    return json.dumps({k: v for k, v in document.items() if v != "absent"}).encode()


def test_state_of_docker_before_17_06() -> None:
    old = state(bundle="absent", bundlePath="/run/docker/x/", status="absent")
    assert parse_state(old) == State("c1", 42, "/run/docker/x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (state(pid="absent"), "state has no pid: the container is not being created"),
        (state(pid=None), "state has no pid"),
        (state(pid=0), "state has no pid"),
        (state(pid=1), "state has pid 1: the container is not being created"),
        (state(pid=-1), "state: pid is not a process number"),
        (state(pid=1 << 31), "state: pid is not a process number"),
        (state(pid=True), "state: pid is not a process number"),
        (state(pid="42"), "state: pid is not a process number"),
        (state(pid=42.0), "state: pid is not a process number"),
        (state(bundle="absent"), "state has no bundle"),
        (state(bundle="bundle"), "state: bundle 'bundle' is not an absolute path"),
        (state(bundle=["/x"]), "state: bundle is not a string"),
        (state(bundle="/x\0y"), "state: bundle has a zero byte"),
        (state(id="absent"), "state has no id"),
        (state(id=7), "state: id is not a string"),
        (state(annotations=[]), "state: annotations is not an object"),
        (state(annotations={"a": 1}), "state: annotations: a is not a string"),
        (b"[]", "state is not an object"),
        (b"", "state is empty"),
        (state()[:-20], "state is not JSON"),
        (b" " * ((1 << 20) + 1), "state is larger than 1048576 bytes"),
    ],
)
def test_bad_state(data: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_state(data)
    assert message in str(caught.value)


def config(**changes: object) -> bytes:
    document: dict[str, object] = {
        "ociVersion": "1.0.2",
        "process": {"args": ["sh"], "env": ["A=1"]},
        "root": {"path": "rootfs"},
        "linux": {},
    }
    document.update(changes)
    return json.dumps({k: v for k, v in document.items() if v != "absent"}).encode()


def test_smallest_config() -> None:
    parsed = parse_config(config(process={}, linux="absent"), BUNDLE)
    assert parsed == ContainerConfig({}, f"{BUNDLE}/rootfs")


def test_last_value_of_a_variable_wins_and_moves_to_its_place() -> None:
    entries = ["A=1", "B=x=y", "EMPTY=", "A=2", "novalue", "NL=a\nb"]
    env = [f"NVIDIA_{entry}" for entry in entries]
    parsed = parse_config(config(process={"env": env}), BUNDLE)
    assert [(name.removeprefix("NVIDIA_"), value) for name, value in parsed.env.items()] == [
        ("B", "x=y"),
        ("EMPTY", ""),
        ("A", "2"),
        ("NL", "a\nb"),
    ]


def test_what_is_not_observed_is_not_there() -> None:
    env = ["PATH=/bin", "NVIDIA_X=1", "XNVIDIA_=", "CUDA_VERSION=", "DOCKER_RESOURCE_A="]
    mounts = (("/dev/null", "/var/run/nvidia-container-devices/0"), ("/a", "/var/run/nvidia"))
    document = {
        "process": {"env": env},
        "root": {"path": "/"},
        "mounts": [{"source": source, "destination": place} for source, place in mounts],
        "annotations": {"cdi.k8s.io/x": "", "x.cdi.k8s.io/": ""},
    }
    made = parse_config(json.dumps(document).encode(), BUNDLE)
    assert list(made.env) == ["NVIDIA_X", "CUDA_VERSION", "DOCKER_RESOURCE_A"]
    assert made.mounts == mounts[:1]
    assert made.annotations == {"cdi.k8s.io/x": ""}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("rootfs", f"{BUNDLE}/rootfs"),
        ("./rootfs/", f"{BUNDLE}/rootfs"),
        (".", BUNDLE),
        ("../c2/rootfs", f"{BUNDLE}/../c2/rootfs"),
        ("/var//lib/x/", "/var/lib/x"),
    ],
)
def test_root_path(path: str, expected: str) -> None:
    assert parse_config(config(root={"path": path}), BUNDLE).root_path == expected


@pytest.mark.parametrize(
    ("capabilities", "privileged"),
    [
        (None, False),
        ({}, False),
        ({"bounding": None}, False),
        ({"bounding": ["CAP_KILL", "CAP_SYS_ADMIN"]}, True),
        ({"effective": ["CAP_SYS_ADMIN"], "permitted": ["CAP_SYS_ADMIN"]}, False),
        ({"bounding": ["CAP_SYS_ADMIN_NOT"]}, False),
        (["CAP_SYS_ADMIN"], True),  # before OCI 1.0.0-rc5
    ],
)
def test_privileged_is_sys_admin_in_the_bounding_set(
    capabilities: object, privileged: bool
) -> None:
    document = config(process={"capabilities": capabilities})
    assert parse_config(document, BUNDLE).privileged == privileged


def test_mounts_namespaces_and_propagation() -> None:
    document = config(
        mounts=[{"destination": f"{MOUNTS}/0", "source": "/dev/null"}, {"destination": MOUNTS}],
        linux={"namespaces": [{"type": "mount"}, {"type": "user"}], "rootfsPropagation": "rslave"},
        annotations={"cdi.k8s.io/a": "b"},
    )
    parsed = parse_config(document, BUNDLE)
    assert parsed.mounts == (("/dev/null", f"{MOUNTS}/0"), ("", MOUNTS))
    assert parsed.user_namespace
    assert parsed.rootfs_propagation == "rslave"
    assert parsed.annotations == {"cdi.k8s.io/a": "b"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (config(process="absent"), "config.json has no process"),
        (config(root=None), "config.json has no root"),
        (config(root={}), "config.json has no root.path"),
        (config(root=[]), "config.json: root is not an object"),
        (config(root={"path": "a\0b"}), "config.json: root.path has a zero byte"),
        (config(process=[]), "config.json: process is not an object"),
        (config(process={"env": "A=1"}), "config.json: process.env is not a list"),
        (config(process={"env": [1]}), "process.env has an entry that is not a string"),
        (config(process={"capabilities": "x"}), "process.capabilities is not an object"),
        (config(process={"capabilities": {"bounding": "x"}}), "bounding is not a list"),
        (config(mounts={}), "config.json.mounts is not a list"),
        (config(mounts=["x"]), "config.json: a mount is not an object"),
        (config(mounts=[{}]), "config.json has a mount without destination"),
        (config(linux=3), "config.json: linux is not an object"),
        (config(linux={"namespaces": {}}), "linux.namespaces is not a list"),
        (config(linux={"namespaces": ["user"]}), "a namespace is not an object"),
        (config()[:-3], "config.json is not JSON: it ends too early"),
        (b'"text"', "config.json is not an object"),
        (b" " * ((16 << 20) + 1), "config.json is larger than 16777216 bytes"),
    ],
)
def test_bad_config(data: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_config(data, BUNDLE)
    assert message in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
KEYS = ("process", "root", "linux", "mounts", "annotations", "pid", "bundle", "id", "status")


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_document_raises_only_format_errors(document: dict[str, object]) -> None:
    data = json.dumps(document).encode()
    try:
        parsed = parse_config(data, BUNDLE)
    except FormatError:
        pass
    else:
        assert parsed.root_path.startswith("/")
    with contextlib.suppress(FormatError):
        assert parse_state(data).pid > 1
