"""/proc/PID/mountinfo: what a line says, and what a broken one raises."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.errors import ContainerError, FormatError
from nvhook.kernel import mountinfo

LINES = (
    b"36 35 98:0 /mnt1 /mnt2 rw,noatime shared:12 master:1 - ext3 /dev/root rw,errors=continue\n"
    b"31 23 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices\n"
    rb"37 36 0:40 /a\040b /with\134slash\011tab\012line\043 ro - fuse.x my\040disk rw" + b"\n"
)


def test_every_field():
    mount = mountinfo.parse(LINES)[0]
    assert (mount.mount_id, mount.parent_id, mount.device) == (36, 35, "98:0")
    assert (mount.root, mount.mount_point) == ("/mnt1", "/mnt2")
    assert mount.options == ("rw", "noatime")
    assert mount.optional == ("shared:12", "master:1")
    assert mount.shared == 12
    assert (mount.fs_type, mount.source) == ("ext3", "/dev/root")
    assert mount.super_options == ("rw", "errors=continue")


def test_no_optional_fields():
    mount = mountinfo.parse(LINES)[1]
    assert mount.optional == ()
    assert mount.shared is None
    assert mount.super_options == ("rw", "devices")


def test_octal_escapes():
    mount = mountinfo.parse(LINES)[2]
    assert mount.root == "/a b"
    assert mount.mount_point == "/with\\slash\ttab\nline#"
    assert mount.source == "my disk"


def test_skips_lines_without_the_wanted_text():
    assert [m.fs_type for m in mountinfo.parse(LINES, b" - cgroup")] == ["cgroup"]
    assert len(mountinfo.parse(LINES)) == 3


def test_a_name_that_is_not_utf8_survives():
    (mount,) = mountinfo.parse(b"1 0 0:1 / /\xff\xfe rw - tmpfs t rw\n")
    assert os.fsencode(mount.mount_point) == b"/\xff\xfe"


@pytest.mark.parametrize(
    "line",
    [
        b"x 35 98:0 / / rw - ext3 /dev/root rw",
        b"36 35 98:0 / / rw ext3 /dev/root rw",
        b"36 35 98:0 / / rw - ext3 /dev/root",
        b"36 35 98:0 / - ext3 /dev/root rw",
        b"36",
    ],
)
def test_a_broken_line_is_an_error(line):
    with pytest.raises(FormatError, match="not understood"):
        mountinfo.parse(line)


def test_a_process_that_has_gone(tmp_path):
    with pytest.raises(ContainerError, match="ended"):
        mountinfo.read(str(tmp_path), 4711)


def test_our_own_root_is_listed():
    mounts = mountinfo.read()
    root = [mount for mount in mounts if mount.mount_point == "/"][-1]
    device = os.stat("/").st_dev
    assert root.device.split(":")[0].isdigit()
    if root.fs_type in {"ext4", "tmpfs", "xfs"}:
        assert root.device == f"{os.major(device)}:{os.minor(device)}"


@given(st.binary(max_size=200))
def test_unescape_undoes_the_kernels_escaping(name):
    escaped = b"".join(
        b"\\%03o" % byte if bytes((byte,)) in b" \t\n\\#" else bytes((byte,)) for byte in name
    )
    assert mountinfo.unescape(escaped) == name


@given(st.binary(max_size=300))
def test_any_bytes_give_mounts_or_a_format_error(data):
    try:
        mounts = mountinfo.parse(data)
    except FormatError:
        return
    assert len(mounts) == len([line for line in data.split(b"\n") if line])
