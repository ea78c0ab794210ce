"""Device rules of a container whose processes do not stay where they were."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook._native import call
from nvhook.errors import ContainerError
from nvhook.kernel import bpf, programs
from nvhook.kernel.device_access import DeviceAccess, Directory, _top
from nvhook.kernel.device_rules import DeviceRule
from nvhook.kernel.live_process import PinnedProcess

DEVICES = Path("/sys/fs/cgroup/devices")
RULE: DeviceRule = ("c", 195, 1, "rw")
UNIFIED = Path("/sys/fs/cgroup/unified")
ALLOW_ALL = bytes.fromhex("b700000001000000 9500000000000000")
DENY = bpf.prologue([("c", 195, 1, "")]) + ALLOW_ALL
pytestmark = pytest.mark.root


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
    given: list[tuple[Directory, tuple[DeviceRule, ...]]] = []
    access = _access(pid)
    access.grant([RULE], lambda *step: given.append(step))
    [(directory, rules)] = given
    access.close()
    assert "c 195:1 rw" in (place / "devices.list").read_text()
    (elsewhere / "cgroup.procs").write_text(str(pid))

    access = _access(pid)
    access.revoke(rules, directory.path, directory.version)

    assert (place / "devices.list").read_text() == ""
    assert access.grant_again(rules, directory.path, directory.version)
    access.revoke(rules, f"{directory.path}-gone", 1)
    access.close()
    assert "c 195:1 rw" in (place / "devices.list").read_text()


def _attach(directory: Path, insns: bytes) -> None:
    fd, program = os.open(directory, os.O_RDONLY), programs.load(insns, b"test")
    call("bpf_prog_attach", fd, program, programs.ALLOW_MULTI, -1)
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

        assert not access.allows(RULE)
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
