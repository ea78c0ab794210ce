"""What the launcher refuses, Python refuses: whose root it is, whose ids, which device."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvhook import observations
from nvhook.core.edits import DeviceNode
from nvhook.create.recording import SCHEMA
from nvhook.create.sources import open_source
from nvhook.create.target import Target
from nvhook.errors import ContainerError, HostError
from nvhook.kernel.process import Process
from nvhook.log import Log
from tests.native import repeater


@pytest.fixture
def created(require) -> Iterator[int]:
    """A process in a mount namespace of its own, which is not pivoted."""
    require(os.geteuid() == 0, "needs root")
    command = ["unshare", "--mount", "sh", "-c", "echo ready; exec sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_a_root_directory_of_its_own_is_a_containers(created, tmp_path):
    assert repeater.opens_target(created, str(tmp_path))
    Target(created, str(tmp_path)).rootfs.close()


@pytest.mark.parametrize("path", ["/", "/usr/..", "{link}"])
def test_the_hosts_root_is_no_containers(created, tmp_path, path):
    (tmp_path / "link").symlink_to("/")
    path = path.format(link=tmp_path / "link")

    assert not repeater.opens_target(created, path)
    with pytest.raises(ContainerError, match="root is the host's own root directory"):
        Target(created, path)


def test_a_process_of_the_host_is_no_container(tmp_path):
    assert not repeater.opens_target(os.getpid(), str(tmp_path))
    with pytest.raises(ContainerError, match="in the host's mount namespace"):
        Target(os.getpid(), str(tmp_path))


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        ("         0     100000      65536\n", 100000),
        # podman --uidmap: the line of the user who called it comes first.
        ("      1000       1000          1\n         0     200000       1000\n", 200000),
        ("       1 100001 5\n      10 300000 5\n       0 400000 1\n       6 500000 2\n", 400000),
        ("         1     100000      65536\n", -1),
        ("", -1),
    ],
)
def test_the_root_of_a_user_namespace_is_whom_0_is_mapped_to(tmp_path, text, outside):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/uid_map").write_text(text)
    process = Process(7, str(tmp_path))

    assert repeater.root_in_map(tmp_path / "7", "uid_map") == outside
    if outside >= 0:
        assert process._mapped_root("uid_map") == outside
    else:
        with pytest.raises(ContainerError, match="maps no root"):
            process._mapped_root("uid_map")


@pytest.mark.parametrize(
    ("kind", "number", "is_it"),
    [
        (stat.S_IFCHR, (195, 3), True),
        (stat.S_IFCHR, (195, 2), False),
        (stat.S_IFCHR, (1, 3), False),
        (stat.S_IFBLK, (195, 3), False),
        (stat.S_IFREG, (0, 0), False),
        (stat.S_IFLNK, (0, 0), False),
    ],
)
def test_a_node_that_is_another_device_meanwhile_is_not_mounted(
    require, tmp_path, kind, number, is_it
):
    """udev makes it again, or somebody else: the plan and the recording know it by its number."""
    require(os.geteuid() == 0, "needs root")
    path = tmp_path / "nvidia3"
    if kind == stat.S_IFLNK:
        os.mknod(tmp_path / "other", 0o666 | stat.S_IFCHR, os.makedev(195, 3))
        path.symlink_to("other")
    else:
        os.mknod(path, 0o666 | kind, os.makedev(*number))
    edit = DeviceNode("/dev/nvidia3", str(path), 195, 3)

    assert repeater.has_source("device", path, "/dev/nvidia3", 11, 195, 3) == is_it
    if is_it:
        source = open_source(edit, Log(""))
        assert source is not None
        os.close(source)
    else:
        with pytest.raises(HostError, match="is not the device 195:3"):
            open_source(edit, Log(""))


@pytest.mark.parametrize("change", ["none", "content", "replaced", "removed"])
def test_a_file_that_is_another_one_meanwhile_is_not_mounted(require, tmp_path, change):
    require(os.geteuid() == 0, "needs root")
    path = tmp_path / "libcuda.so.550.54.14"
    path.write_text("one")
    status = path.stat()
    if change == "content":
        path.write_text("other")
    elif change == "replaced":
        (tmp_path / "new").write_text("one")
        (tmp_path / "new").rename(path)
    elif change == "removed":
        path.unlink()

    line = ("mount", path, "/lib/x", 7, status.st_dev, status.st_ino)
    assert repeater.has_source(*line) == (change in ("none", "content"))


def held(*looks: tuple[object, ...], root: int = -1) -> bool:
    """Tell whether a recording of some looks holds."""
    lines = [SCHEMA, *["\t".join(map(str, look)) for look in looks], "end", ""]
    return repeater.holds("\n".join(lines).encode(), root)


@pytest.mark.parametrize(
    ("path", "is_read"), [("/etc/passwd", True), ("/proc/version", False), ("/dev/null", False)]
)
def test_only_an_images_own_files_are_read(path, is_read):
    """What the kernel makes up may be without end, or wait for ever: /proc/kmsg does."""
    data = Path(path).read_bytes()[:64]
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        assert held(("bytes", path, "0+64", observations.digest(data)), root=root) == is_read
    finally:
        os.close(root)
