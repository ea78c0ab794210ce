"""Readers of /proc against a fake one: what a process of another kind of host would show."""

from collections.abc import Iterator

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem
from pyfakefs.fake_filesystem_unittest import Patcher
from pyfakefs.fake_os import FakeOsModule

from nvhook.errors import ContainerError, FormatError
from nvhook.kernel import cgroup, mountinfo

HYBRID = """\
12:devices:/system.slice/docker-abc.scope
11:memory,cpu:/system.slice/docker-abc.scope
1:name=systemd:/system.slice/docker-abc.scope
0::/system.slice/docker-abc.scope
"""


@pytest.fixture
def fs() -> Iterator[FakeFilesystem]:
    """What nvhook reads with: os, because os costs a hook a millisecond."""
    with Patcher(modules_to_patch={"os": FakeOsModule}) as patcher:
        assert patcher.fs is not None
        yield patcher.fs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(HYBRID, ("/system.slice/docker-abc.scope",) * 2, id="hybrid"),
        pytest.param("0::/kubepods.slice/pod1\n", ("", "/kubepods.slice/pod1"), id="v2"),
        pytest.param("3:cpu,devices:/a:b\n", ("/a:b", ""), id="v1-joined-colon-in-name"),
        pytest.param("5:devices_not:/x\n0::/\n", ("", "/"), id="similar-controller"),
    ],
)
def test_memberships(fs: FakeFilesystem, text: str, expected: tuple[str, str]) -> None:
    fs.create_file("/fake/proc/42/cgroup", contents=text)

    assert cgroup.memberships("/fake/proc", 42) == expected


@pytest.mark.parametrize("text", ["nonsense\n", "1:devices\n", "0::relative\n"])
def test_a_line_that_is_not_a_membership(fs: FakeFilesystem, text: str) -> None:
    fs.create_file("/fake/proc/42/cgroup", contents=text)

    with pytest.raises(FormatError, match="not understood"):
        cgroup.memberships("/fake/proc", 42)


def test_a_process_outside_of_the_cgroup_namespace(fs: FakeFilesystem) -> None:
    fs.create_file("/fake/proc/42/cgroup", contents="0::/../other\n")

    with pytest.raises(ContainerError, match="outside of nvhook's cgroup namespace"):
        cgroup.memberships("/fake/proc", 42)


def test_a_process_that_has_gone(fs: FakeFilesystem) -> None:
    with pytest.raises(ContainerError, match="has the process ended"):
        cgroup.memberships("/fake/proc", 42)
    with pytest.raises(ContainerError, match="has the process ended"):
        mountinfo.read("/fake/proc", 42)


def test_mountinfo_with_odd_names_and_fields(fs: FakeFilesystem) -> None:
    fs.create_file(
        "/fake/proc/42/mountinfo",
        contents="36 35 98:0 /mnt1 /with\\040blank rw,noatime master:1 shared:7 - ext3 /dev/r rw\n"
        "37 36 0:5 / /dev rw - devtmpfs udev rw,size=10k\n",
    )

    first, second = mountinfo.read("/fake/proc", 42)

    assert (first.mount_id, first.mount_point, first.shared) == (36, "/with blank", 7)
    assert (second.mount_id, second.fs_type, second.shared) == (37, "devtmpfs", None)
