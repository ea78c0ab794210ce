"""Device rules of cgroup v1, in the machine's own devices hierarchy."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import nvhook
from nvhook.errors import ContainerError
from nvhook.kernel import cgroup

DENIED = "Operation not permitted"
NO_DRIVER = "No such device or address"  # ENXIO: the cgroup has let it through
DEVICES = Path("/sys/fs/cgroup/devices")
pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def hierarchy(require: Callable[[bool, str], None], root_host: None) -> None:
    require((DEVICES / "devices.allow").parent.is_dir(), f"needs cgroup v1 at {DEVICES}")


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_allows_what_is_asked_and_nothing_else(pure_v1_view, container, runtime):
    box = container(pure_v1_view, runtime)
    assert box.open(195, 1) == DENIED

    assert pure_v1_view.allow(box.pid, [("c", 195, 1, "rw"), ("c", 195, 255, "rw")]) == [
        "v1: 2 rules"
    ]

    assert box.open(195, 1, mode="rw") == NO_DRIVER
    assert box.open(195, 255) == NO_DRIVER
    assert box.open(195, 0) == DENIED
    assert box.open(195, 1, kind="b") == DENIED


def test_second_time_changes_nothing(own_view, container):
    box = container(own_view, "runc")
    own_view.allow(box.pid, [("c", 195, 1, "rw")])
    directory = DEVICES / cgroup.memberships("/proc", box.pid)[0].lstrip("/")
    before = (directory / "devices.list").read_text()

    assert own_view.allow(box.pid, [("c", 195, 1, "rw")]) == ["v1: unchanged"]

    assert (directory / "devices.list").read_text() == before
    assert "c 195:1 rw" in before


def test_adds_only_what_no_listed_rule_allows(own_view, process_in):
    directory = DEVICES / "nvhook-test-listed"
    pid = process_in(directory)
    (directory / "devices.deny").write_text("a *:* rwm")
    (directory / "devices.allow").write_text("c 195:* r")
    (directory / "devices.allow").write_text("c 226:* rwm")
    rules = [("c", 195, 1, "r"), ("c", 226, 128, "rw"), ("c", 195, 2, "rw")]

    assert own_view.allow(pid, rules) == ["v1: 1 rules"]

    listed = (directory / "devices.list").read_text().splitlines()
    assert listed == ["c 195:* r", "c 226:* rwm", "c 195:2 rw"]


def test_leaves_a_cgroup_alone_that_allows_everything(own_view, process_in):
    directory = DEVICES / "nvhook-test-all"
    pid = process_in(directory)
    assert own_view.allow(pid, [("c", 195, 1, "rw")]) == ["v1: everything is allowed already"]
    assert (directory / "devices.list").read_text() == "a *:* rwm\n"


def test_leaves_the_callers_own_cgroup_alone(own_view):
    assert own_view.allow(os.getpid(), [("c", 195, 1, "rw")])[0] == (
        "v1: shares the runtime's own cgroup, left alone"
    )


def test_says_that_a_parent_lacks_the_rule(process_in):
    parent = DEVICES / "nvhook-test-parent"
    process_in(parent)
    (parent / "devices.deny").write_text("a *:* rwm")
    pid = process_in(parent / "child")
    with cgroup.find(pid) as found, pytest.raises(ContainerError, match=r"not permitted.*above it"):
        found.allow([("c", 195, 1, "rw")])
    assert (parent / "devices.list").read_text() == ""


def test_directories_stay_usable_when_the_path_is_hidden(own_view, process_in):
    directory = DEVICES / "nvhook-test-hidden"
    pid = process_in(directory)
    (directory / "devices.deny").write_text("a *:* rwm")
    hide = """
import json, os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from nvhook.kernel import cgroup
found = cgroup.find(int(sys.argv[2]))
subprocess.run(["mount", "-t", "tmpfs", "none", "/sys/fs/cgroup"], check=True)
assert not os.path.exists("/sys/fs/cgroup/devices")
print(found.allow([("c", 195, 1, "rw")])[0])
"""
    private = ["unshare", "--mount", "--propagation", "private"]
    repository = str(Path(nvhook.__file__).resolve().parents[1])
    done = own_view.run(*private, own_view.executable, "-c", hide, repository, str(pid))
    assert done.stdout == "v1: 1 rules\n", done.stderr
    assert (directory / "devices.list").read_text() == "c 195:1 rw\n"


def test_a_mount_of_a_part_of_the_hierarchy(own_view, process_in, tmp_path):
    directory = DEVICES / "nvhook-test-part"
    process_in(directory)
    pid = process_in(directory / "child")
    (directory / "child/devices.deny").write_text("a *:* rwm")
    part = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from nvhook.kernel import cgroup
subprocess.run(["mount", "--bind", sys.argv[3], sys.argv[4]], check=True)
subprocess.run(["umount", "-R", "/sys/fs/cgroup"], check=True)
print(cgroup.find(int(sys.argv[2])).allow([("c", 195, 1, "rw")]))
"""
    private = ["unshare", "--mount", "--propagation", "private", own_view.executable, "-c", part]
    repository = Path(nvhook.__file__).resolve().parents[1]
    done = own_view.run(*private, repository, str(pid), directory, tmp_path)
    assert done.stdout == "('v1: 1 rules',)\n", done.stderr
    assert (directory / "child/devices.list").read_text() == "c 195:1 rw\n"


def test_an_ended_process_is_an_error(own_view, container):
    box = container(own_view, "runc")
    box.remove()
    with pytest.raises(ContainerError, match="has the process ended"):
        cgroup.find(box.pid)
