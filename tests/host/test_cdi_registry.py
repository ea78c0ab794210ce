"""The CDI devices of a host: which file wins, and what a name resolves to."""

import json
import os
from pathlib import Path

import pytest

from nvhook.errors import HostError, RequestError
from nvhook.formats import cdi_spec
from nvhook.host.cdi_registry import load, resolve

Edits = dict[str, object]


@pytest.fixture
def static(tmp_path: Path) -> Path:
    directory = tmp_path / "etc"
    directory.mkdir()
    return directory


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


def write(file: Path, *names: str, kind: str = "a.com/b", edits: Edits | None = None) -> None:
    """Write a spec whose devices set FILE_NAME=1, and the spec itself FILE=1."""
    devices = [
        {"name": name, "containerEdits": edits or {"env": [f"{file.stem}_{name}=1"]}}
        for name in names
    ]
    document = {"cdiVersion": "1.1.0", "kind": kind, "devices": devices}
    file.write_text(json.dumps(document | {"containerEdits": {"env": [f"{file.stem}=1"]}}))


def env(*names: str, directories: list[Path]) -> tuple[str, ...]:
    return resolve(names, [str(directory) for directory in directories]).env


def refusal(name: str, *directories: Path) -> str:
    with pytest.raises(RequestError) as caught:
        resolve([name], [str(directory) for directory in directories])
    return str(caught.value)


def test_edits_of_a_spec_come_once_and_devices_in_order_each_once(static: Path) -> None:
    write(static / "one.json", "x", "y")
    write(static / "two.json", "z", kind="c.com/d")
    found = env("a.com/b=y", "c.com/d=z", "a.com/b=x", "a.com/b=y", directories=[static])
    assert found == ("one=1", "one_y=1", "two=1", "two_z=1", "one_x=1")


def test_a_later_directory_wins(static: Path, dynamic: Path) -> None:
    write(static / "old.json", "x", "y")
    write(dynamic / "new.json", "x")
    assert env("a.com/b=x", directories=[static, dynamic]) == ("new=1", "new_x=1")
    assert env("a.com/b=y", directories=[static, dynamic]) == ("old=1", "old_y=1")
    assert env("a.com/b=x", directories=[dynamic, static]) == ("old=1", "old_x=1")


def test_a_device_of_two_files_in_one_directory_is_nobodys(static: Path) -> None:
    write(static / "one.json", "x", "y")
    write(static / "two.json", "x")
    assert refusal("a.com/b=x", static) == (
        f"CDI device a.com/b=x is defined by {static}/one.json and {static}/two.json, so none of "
        "them counts (hint: remove one of the files)"
    )
    assert env("a.com/b=y", directories=[static]) == ("one=1", "one_y=1")


def test_a_conflict_below_does_not_matter_where_a_later_directory_decides(
    static: Path, dynamic: Path
) -> None:
    write(static / "one.json", "x")
    write(static / "two.json", "x")
    write(dynamic / "new.json", "x")
    assert env("a.com/b=x", directories=[static, dynamic]) == ("new=1", "new_x=1")
    assert load([str(static), str(dynamic)]).conflicts == {}
    assert "none of them counts" in refusal("a.com/b=x", dynamic, static)


def test_other_names_and_subdirectories_are_not_read(static: Path) -> None:
    write(static / "one.json", "x")
    for name in ("one.json.bak", "one.yml", "README", "json"):
        (static / name).write_text("nonsense")
    (static / "more.json").mkdir()
    write(static / "more.json/two.json", "y")
    found = load([str(static), str(static / "absent")])
    assert list(found.devices) == ["a.com/b=x"]
    assert found.findings == ()


def test_yaml_and_json_lie_side_by_side(static: Path) -> None:
    write(static / "one.json", "x")
    (static / "two.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: c.com/d\ndevices: [{name: 0, containerEdits: {env: [Y=1]}}]\n"
    )
    assert sorted(load([str(static)]).devices) == ["a.com/b=x", "c.com/d=0"]


def test_a_bad_file_is_named_if_it_may_be_the_reason(static: Path) -> None:
    write(static / "bad.json", "x", edits={"env": ["nothing"]})
    write(static / "good.json", "0", "1", kind="good.com/b")
    assert refusal("a.com/b=x", static) == (
        f"unknown CDI device a.com/b=x, but {static}/bad.json: devices[0].containerEdits.env[0]: "
        "'nothing' is not NAME=value (hint: nvhook cdi validate FILE shows all that is wrong with "
        "it)"
    )
    assert "known are good.com/b=0, good.com/b=1" in refusal("good.com/b=7", static)
    assert env("good.com/b=1", directories=[static]) == ("good=1", "good_1=1")


@pytest.mark.parametrize("kind", ["fifo", "device", "link to a directory"])
def test_what_is_no_file_is_reported_and_never_waited_for(static: Path, kind: str, require) -> None:
    path = static / "odd.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        require(os.geteuid() == 0, "needs root: mknod")
        os.mknod(path, 0o020600, os.makedev(1, 3))
    else:
        path.symlink_to(static)
    found = load([str(static)])
    expected = [] if kind.startswith("link") else [f"{path}: can't be read: not a regular file"]
    assert [str(finding) for finding in found.findings] == expected


def test_unknown_names_say_what_there_is(static: Path) -> None:
    write(static / "one.json", "GPU-aa", "GPU-ab", "0", "1", "2", "3", "4")
    assert refusal("a.com/b=GPU-ac", static) == (
        "unknown CDI device a.com/b=GPU-ac (hint: known are a.com/b=GPU-aa, a.com/b=GPU-ab; "
        "nvhook cdi list shows all)"
    )
    assert "known are a.com/b=0, a.com/b=1, a.com/b=2, a.com/b=3;" in refusal("a.com/b=zz", static)
    assert "known are a.com/b=0" in refusal("other.org/thing=9", static)
    assert "write vendor/class=device" in refusal("0", static)


def test_no_spec_at_all_says_where_was_looked(static: Path, dynamic: Path) -> None:
    assert refusal("nvidia.com/gpu=0", static, dynamic) == (
        f"unknown CDI device nvidia.com/gpu=0 (hint: {static}, {dynamic} have no spec with a "
        "device; nvhook cdi generate makes one for NVIDIA GPUs)"
    )


# ---- device nodes


def nodes(static: Path, *wanted: Edits) -> tuple[cdi_spec.CdiDeviceNode, ...]:
    write(static / "n.json", "x", edits={"deviceNodes": list(wanted)})
    return resolve(["a.com/b=x"], [str(static)]).device_nodes


def test_a_node_gets_type_numbers_and_mode_from_the_host(static: Path) -> None:
    (found,) = nodes(static, {"path": "/dev/in", "hostPath": "/dev/null"})
    mode = os.stat("/dev/null").st_mode & 0o7777
    assert found == cdi_spec.CdiDeviceNode("/dev/in", "/dev/null", "c", 1, 3, mode)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": "c", "major": 7, "minor": 9}, ("c", 7, 9)),
        ({"type": "u", "major": 7, "minor": 9}, ("u", 7, 9)),
        ({"type": "c"}, ("c", 1, 3)),
        ({"type": "u"}, ("c", 1, 3)),
        ({"major": 7, "minor": 9}, ("c", 7, 9)),
    ],
)
def test_what_a_spec_says_itself_stays(
    static: Path, fields: Edits, expected: tuple[str, int, int]
) -> None:
    (found,) = nodes(static, {"path": "/dev/null", "fileMode": 0o600, "gid": 4, **fields})
    assert (found.type, found.major, found.minor) == expected
    assert (found.file_mode, found.gid, found.permissions) == (0o600, 4, "")


def test_a_complete_node_need_not_be_on_the_host(static: Path) -> None:
    wanted = {"path": "/dev/absent", "type": "c", "major": 7, "minor": 9}
    assert nodes(static, wanted) == (cdi_spec.CdiDeviceNode("/dev/absent", "", "c", 7, 9),)


def test_a_fifo_has_no_numbers(static: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o640)
    path = str(tmp_path / "fifo")
    (found,) = nodes(static, {"path": path})
    assert found == cdi_spec.CdiDeviceNode(path, "", "p", 0, 0, 0o640)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"path": "/dev/absent"}, "CDI device node /dev/absent: No such file or directory"),
        ({"path": "/dev/pts"}, "/dev/pts is not a device node, but"),
        ({"path": "/dev/null", "type": "b"}, "device node /dev/null has type c, not b as in"),
    ],
)
def test_a_node_that_the_host_does_not_have(static: Path, wanted: Edits, reason: str) -> None:
    with pytest.raises(HostError) as caught:
        nodes(static, wanted)
    assert reason in str(caught.value)
    assert f"{static}/n.json is out of date or for another host" in str(caught.value)
