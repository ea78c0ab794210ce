"""Device rules of a container whose processes do not stay where they were."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook._native import call, lib
from nvhook.errors import ContainerError
from nvhook.kernel import bpf, programs
from nvhook.kernel.cgroup import covers
from nvhook.kernel.container_cgroups import Directory, _top
from nvhook.kernel.device_access import DeviceAccess
from nvhook.kernel.device_rules import DeviceRule
from nvhook.kernel.live_process import PinnedProcess

DEVICES = Path("/sys/fs/cgroup/devices")
RULE: DeviceRule = ("c", 195, 1, "rw")
UNIFIED = Path("/sys/fs/cgroup/unified")
ALLOW_ALL = bytes.fromhex("b700000001000000 9500000000000000")
DENY_ALL = bytes.fromhex("b700000000000000 9500000000000000")
DENY = bpf.prologue([("c", 195, 1, "")]) + ALLOW_ALL
pytestmark = pytest.mark.root
Given = tuple[Directory, tuple[DeviceRule, ...], tuple[DeviceRule, ...]]


@pytest.fixture(autouse=True)
def hierarchy(require: Callable[[bool, str], None], root_host: None) -> None:
    require(DEVICES.is_dir(), f"needs cgroup v1 at {DEVICES}")


def _access(pid: int) -> DeviceAccess:
    process = PinnedProcess(pid)
    try:
        return DeviceAccess(process, process)
    finally:
        process.close()


def test_rules_are_revoked_where_they_were_given(process_in: Callable[[Path], int]) -> None:
    """Wherever its processes are now: the directory is named by the journal."""
    place, elsewhere = DEVICES / "nvhook-test-given", DEVICES / "nvhook-test-moved"
    process_in(elsewhere)  # first: the other one moves there, and must have ended before
    pid = process_in(place)
    (place / "devices.deny").write_text("a *:* rwm")
    given: list[Given] = []
    access = _access(pid)
    access.grant([RULE], lambda *step: given.append(step))
    [(directory, rules, before)] = given
    access.close()
    assert "c 195:1 rw" in (place / "devices.list").read_text()
    (elsewhere / "cgroup.procs").write_text(str(pid))

    access = _access(pid)
    access.take_back(rules, before, directory.path, directory.version)

    assert (place / "devices.list").read_text() == ""
    assert access.grant_again(rules, directory.path, directory.version)
    access.take_back(rules, (), f"{directory.path}-gone", 1)
    access.close()
    assert "c 195:1 rw" in (place / "devices.list").read_text()


@pytest.mark.parametrize(
    ("listed", "below"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param(["c 195:1 r", "c 1:3 rwm"], None, id="less access"),
        pytest.param(["c 195:1 m", "c 1:3 rwm"], None, id="no access but making it"),
        pytest.param(["c 1:3 rwm", "c 195:* r"], None, id="less of all"),
        pytest.param(["c 195:* r", "c 195:1 w"], None, id="each by another line"),
        pytest.param(["c 195:1 r"], ["c 195:1 r"], id="less access below, too"),
        pytest.param(["c 195:* r"], ["c 195:1 r"], id="a line below of its own"),
        pytest.param(["c 195:* rw"], ["c 195:2 rw", "c 195:1 r"], id="missing below only"),
    ],
)
def test_a_v1_list_is_what_it_was_after_rules_are_taken_back(
    process_in: Callable[[Path], int], listed: list[str], below: list[str] | None
) -> None:
    """Whatever others have allowed of the same device before."""
    place = DEVICES / "nvhook-test-before"
    lists = {place: listed} | ({} if below is None else {place / "below": below})
    pids = []
    for directory, lines in lists.items():  # each is made with the list above it
        pids.append(process_in(directory))
        copied = (directory / "devices.list").read_text().splitlines()
        for line in copied:
            (directory / "devices.deny").write_text(line)
        for line in lines:
            (directory / "devices.allow").write_text(line)
    given: list[Given] = []
    access = _access(pids[0])
    try:
        access.grant([RULE], lambda *step: given.append(step))
        after = [(directory / "devices.list").read_text() for directory in lists]
        for directory, rules, before in given:
            access.take_back(rules, before, directory.path, directory.version)
    finally:
        access.close()

    assert all(covers(text.splitlines(), RULE) for text in after)
    for directory, lines in lists.items():
        assert (directory / "devices.list").read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("own", "opens"),
    [
        pytest.param(bpf.prologue([("c", 195, 1, "r")]) + DENY_ALL, True, id="reading allowed"),
        pytest.param(bpf.prologue([("c", 195, 1, "")]) + ALLOW_ALL, False, id="denied by nvhook"),
    ],
)
def test_v2_programs_are_what_they_were_after_rules_are_taken_back(
    process_in: Callable[[Path], int], require: Callable[[bool, str], None], own: bytes, opens: bool
) -> None:
    """Also one that denies by nvhook's own doing, and one that would not agree to all."""
    require(UNIFIED.is_dir(), f"needs cgroup v2 at {UNIFIED}")
    place = UNIFIED / "nvhook-test-before"
    pid = process_in(place)
    if opens:  # not by nvhook: another tool's program
        own = own[2 * bpf.INSN :]  # without the mark
    _attach(place, own)
    given: list[Given] = []
    access = _access(pid)
    try:
        assert access.openable([RULE[:3]]) == ({RULE[:3]} if opens else set())
        access.grant([RULE], lambda *step: given.append(step))
        [(directory, rules, before)] = given
        assert not access.missing(directory, (RULE,))
        access.take_back(rules, before, directory.path, directory.version)

        assert _attached(place) == [own]
        access.revoke([RULE])
        assert access.openable([RULE[:3]]) == set()
    finally:
        access.close()


def _attached(place: Path) -> list[bytes]:
    fd = os.open(place, os.O_RDONLY)
    found = []
    for number in programs.attached(fd)[0]:
        program = programs.open_program(number)
        found.append(programs.instructions(program))
        os.close(program)
    os.close(fd)
    return found


def _attach(directory: Path, insns: bytes) -> None:
    fd, program = os.open(directory, os.O_RDONLY), programs.load(insns, b"test")
    call(lib.nvh_bpf_prog_attach, fd, program, programs.ALLOW_MULTI, -1)
    os.close(program)
    os.close(fd)


@pytest.mark.parametrize("own", [b"", ALLOW_ALL], ids=["no program of its own", "an open one"])
def test_a_slice_is_never_opened_for_one_of_its_containers(
    process_in: Callable[[Path], int], require: Callable[[bool, str], None], own: bytes
) -> None:
    require(UNIFIED.is_dir(), f"needs cgroup v2 at {UNIFIED}")
    place = UNIFIED / "nvhook-test.slice"
    process_in(place)
    pid = process_in(place / "box")
    _attach(place, DENY)
    if own:
        _attach(place / "box", own)
    access = _access(pid)
    try:
        with pytest.raises(ContainerError, match="a cgroup above the container's denies"):
            access.grant([RULE], lambda *_: None)

        assert access.openable([RULE[:3]]) == set()
    finally:
        access.close()
    fd = os.open(place, os.O_RDONLY)
    [number] = programs.attached(fd)[0]
    program = programs.open_program(number)
    assert programs.instructions(program) == DENY
    os.close(program)
    os.close(fd)


@pytest.mark.parametrize(
    ("theirs", "first", "inside", "top"),
    [
        ("/docker/1/a", "/docker/1/b", "", "/docker/1"),
        ("/docker/1/a", "/docker/1/init.scope", "/init.scope", "/docker/1"),
        (
            "/machine.slice/x.scope/container",
            "/machine.slice/x.scope/container",
            "",
            "/machine.slice/x.scope",
        ),
        ("/system.slice/x.scope", "/system.slice/y.service", "", "/system.slice/x.scope"),
        ("/system.slice/x.scope", "/docker/1", "", ""),
    ],
)
def test_what_is_taken_for_the_containers_topmost_cgroup(theirs, first, inside, top):
    assert _top(theirs, first, inside) == top
