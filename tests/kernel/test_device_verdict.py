"""Verdicts about devices and trial opens, without a container."""

import errno
import os
import subprocess
import sys

import pytest

from nvhook.errors import ContainerError
from nvhook.kernel import cgroup, device_verdict, features, mountinfo, trial_open
from nvhook.kernel.process import Process

NULL = ("c", 1, 3, "rw")


@pytest.fixture(autouse=True)
def _root(root_host):
    """Everything here needs root."""


def test_a_process_in_the_callers_own_cgroup_is_not_judged():
    with cgroup.find(os.getpid()) as found:
        (verdict,) = device_verdict.verdicts(found, [NULL])
    assert verdict.allowed is None
    assert "shares the cgroup" in verdict.why


@pytest.mark.parametrize(("user", "answer"), [(0, 0), (65534, errno.EACCES)])
def test_nodes_are_opened_as_the_processs_user(tmp_path, user, answer):
    closed = tmp_path / "closed"
    closed.touch()
    closed.chmod(0o600)
    nodes = [os.open(path, os.O_PATH) for path in ("/dev/null", closed)]
    with subprocess.Popen(["sleep", "60"], user=user, extra_groups=[]) as process:
        try:
            with cgroup.find(process.pid) as found:
                answers = trial_open.try_open(Process(process.pid), found, nodes)
        finally:
            process.kill()
            for fd in nodes:
                os.close(fd)
    assert answers == (0, answer)


def test_a_cgroup_that_can_not_be_entered_is_an_error(tmp_path):
    """Its refusal must not look like a device's."""
    (tmp_path / "cgroup.procs").symlink_to("/dev/full")
    found = cgroup.DeviceCgroup((os.open(tmp_path, os.O_RDONLY),), None)
    node = os.open("/dev/null", os.O_PATH)
    try:
        with found, pytest.raises(ContainerError, match="can't enter the container's cgroup"):
            trial_open.try_open(Process(os.getpid()), found, [node])
    finally:
        os.close(node)


def test_a_node_that_does_not_come_back_is_given_up(monkeypatch):
    monkeypatch.setattr(trial_open, "TIMEOUT", 0.2)
    monkeypatch.setattr(trial_open, "_errno_of_open", hang)
    with (
        cgroup.find(os.getpid()) as found,
        pytest.raises(ContainerError, match="did not come back"),
    ):
        trial_open.try_open(Process(os.getpid()), found, [0])


def hang(_node: int) -> int:
    import time

    time.sleep(60)
    return 0


def test_probing_features_leaves_no_descriptor_and_no_program(pure_v2_view):
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]);"
        "from nvhook.kernel import features, programs;"
        "d = os.open('/sys/fs/cgroup', os.O_RDONLY);"
        "before = os.listdir('/proc/self/fd'), programs.attached(d);"
        "print(features.missing('/sys/fs/cgroup'));"
        "after = os.listdir('/proc/self/fd'), programs.attached(d);"
        "print(before == after)"
    )
    site = os.path.dirname(os.path.dirname(os.path.dirname(features.__file__)))
    done = pure_v2_view.run(sys.executable, "-I", "-c", code, site)
    assert done.stdout.splitlines() == ["{}", "True"], done.stderr


def test_a_kernel_without_replacement_is_told(monkeypatch):
    """Older kernels answer EINVAL to the flag: as this one does to a flag that no kernel knows."""
    place = next(m.mount_point for m in mountinfo.read() if m.fs_type == "cgroup2")
    monkeypatch.setattr(features.programs, "REPLACE", 1 << 20)
    missing = features.missing(place)
    assert missing == {"replacing device programs (Linux 5.6)": "Invalid argument"}
