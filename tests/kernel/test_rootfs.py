"""Reading and attaching by descriptor, where the image is not what it seems."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nvhook._native import call
from nvhook.errors import ContainerError
from nvhook.kernel import mounts
from nvhook.kernel import rootfs as rootfs_module
from nvhook.kernel.live_root import LiveRoot
from nvhook.kernel.refusals import NoPlaceError
from nvhook.kernel.rootfs import Rootfs

pytestmark = pytest.mark.root


@pytest.fixture
def rootfs(tmp_path: Path, root_host: None) -> Iterator[Rootfs]:
    (tmp_path / "etc").mkdir()
    opened = Rootfs(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    yield opened
    opened.close()


def test_a_device_is_not_opened_to_find_out_that_it_is_one(rootfs, tmp_path):
    """No driver has this number: if it were opened, the error would be another."""
    os.mknod(tmp_path / "etc/ld.so.cache", stat.S_IFCHR | 0o666, os.makedev(254, 7777))

    with pytest.raises(ContainerError, match="the image has a character device"):
        rootfs.read("/etc/ld.so.cache", 100)


@pytest.mark.parametrize("size", [101, 1 << 40])
def test_no_more_is_read_than_the_limit(rootfs, tmp_path, size):
    with (tmp_path / "etc/ld.so.cache").open("wb") as file:
        file.truncate(size)

    with pytest.raises(ContainerError, match="larger than 100 bytes"):
        rootfs.read("/etc/ld.so.cache", 100)


def test_up_to_the_limit_all_is_read(rootfs, tmp_path):
    (tmp_path / "etc/ld.so.cache").write_bytes(b"x" * 100)

    assert rootfs.read("/etc/ld.so.cache", 100) == b"x" * 100
    assert rootfs.read("/etc/absent", 100) is None


def test_files_of_the_kernel_are_not_read(root_host):
    """Their size is no bound, and reading some of them changes the host."""
    rootfs = Rootfs(os.open("/", os.O_PATH | os.O_DIRECTORY))
    try:
        with pytest.raises(ContainerError, match="leads into procfs"):
            rootfs.read("/proc/kpageflags", 100)
    finally:
        rootfs.close()


def test_a_shared_mount_is_refused_unless_there_is_nothing_to_mount(tmp_path, root_host):
    ours, other = tmp_path / "ours", tmp_path / "other"
    ours.touch()
    other.touch()
    mount = mounts.clone(str(ours), ("ro",))
    for path in (ours, other):
        target = os.open(path, os.O_PATH)
        shared = frozenset([call("mount_id", target)])
        if path is ours:
            assert mounts.attach(mount, target, shared, "/x") is False
        else:
            with pytest.raises(ContainerError, match="shared propagation"):
                mounts.attach(mount, target, shared, "/x")
        os.close(target)
    os.close(mount)


@pytest.mark.parametrize("known_to_host", [True, False], ids=["volume", "own-tmpfs"])
def test_whose_a_mount_is_tells_its_device_in_mountinfo(root_host, known_to_host):
    """Not st_dev, which on btrfs is another number: here the table says so, too."""
    mounts = Path("/proc/self/mountinfo").read_bytes()
    line = [each for each in mounts.splitlines() if b" /dev/shm " in each][-1]
    device = line.split(b" ")[2]
    table = mounts.replace(line, line.replace(b" " + device + b" ", b" 0:99999 ", 1))
    host = table if known_to_host else mounts
    directory = Path("/dev/shm") / f"nvhook-test-{os.getpid()}"
    rootfs = Rootfs(os.open("/", os.O_PATH | os.O_DIRECTORY), None, table, host)
    source = os.open("/", os.O_PATH)
    try:
        if known_to_host:
            with pytest.raises(NoPlaceError, match="on a volume of the host"):
                rootfs.mount_target(str(directory), source)
            assert not directory.exists()
        else:
            os.close(rootfs.mount_target(str(directory), source))
            assert directory.is_dir()
            rootfs.take_back()
            assert not directory.exists()
    finally:
        os.close(source)
        rootfs.close()


def test_mount_points_are_links_to_one_file_on_each_mount(tmp_path, root_host):
    """Across mounts the kernel refuses a link; a file made anew costs several times as much."""
    table = Path("/proc/self/mountinfo").read_bytes()
    other = Path("/dev/shm") / f"nvhook-test-{os.getpid()}"
    rootfs = Rootfs(os.open("/", os.O_PATH | os.O_DIRECTORY), None, table, b"")
    places = [directory / name for directory in (tmp_path, other) for name in "abc"]
    source = os.open(__file__, os.O_PATH)
    try:
        for place in places:
            os.close(rootfs.mount_target(str(place), source))
        assert len({(place.stat().st_dev, place.stat().st_ino) for place in places}) == 2
    finally:
        os.close(source)
        rootfs.take_back()
        rootfs.close()
    assert not other.exists()


@pytest.mark.parametrize(
    ("source", "shadowed"),
    [("directory", {"directory"}), ("file", {"file", "socket"}), ("node", {"file", "node"})],
)
def test_only_what_is_alike_is_shadowed(tmp_path, root_host, source, shadowed):
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    os.mknod(tmp_path / "node", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    names = {each.name for each in tmp_path.iterdir()}
    rootfs = Rootfs(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    host = os.open(tmp_path / source, os.O_PATH)
    accepted = set()
    try:
        for name in names:
            with suppress(ContainerError):
                os.close(rootfs.mount_target(f"/{name}", host))
                accepted.add(name)
    finally:
        os.close(host)
        rootfs.close()
    assert accepted == shadowed
    assert {each.name for each in tmp_path.iterdir()} == names


def test_what_a_container_puts_in_the_place_of_a_new_file_is_not_mounted_on(
    tmp_path, root_host, monkeypatch
):
    """Between making it and opening it: the kernel opens what is there, here a FIFO."""

    def slow(name, *arguments):
        if name == "mount_target":
            os.close(call(name, *arguments))  # makes the file
            (tmp_path / "new").unlink()
            os.mkfifo(tmp_path / "new")
            made = arguments[-1]
            fd = call(name, *arguments)
            made[0] = 1
            return fd
        return call(name, *arguments)

    rootfs = Rootfs(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    source = os.open(__file__, os.O_PATH)
    monkeypatch.setattr(rootfs_module, "call", slow)
    try:
        with pytest.raises(ContainerError, match="a fifo at /new"):
            rootfs.mount_target("/new", source)
        monkeypatch.undo()
        os.close(rootfs.mount_target("/next", source))
    finally:
        os.close(source)
        rootfs.close()
    assert (tmp_path / "next").is_file()


@pytest.mark.parametrize("refusal", [None, errno.EROFS, errno.EACCES])
def test_a_link_is_made_replaced_or_there(tmp_path, root_host, monkeypatch, refusal):
    """A right one is no failure even where none can be made: on NFS that is said before EEXIST."""
    (tmp_path / "right").symlink_to("target")
    (tmp_path / "other").symlink_to("elsewhere")
    (tmp_path / "file").write_text("")
    if refusal:

        def symlink(*_, **__):
            raise OSError(refusal, os.strerror(refusal))

        monkeypatch.setattr("posix.symlink", symlink)
    rootfs = Rootfs(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    try:
        assert rootfs.symlink("/right", "target") is False
        with pytest.raises(ContainerError, match="a regular file at /file"):
            rootfs.symlink("/file", "target")
        for name in ("new", "other"):
            if refusal:
                with pytest.raises(ContainerError, match=os.strerror(refusal)):
                    rootfs.symlink(f"/{name}", "target")
            else:
                assert rootfs.symlink(f"/{name}", "target") is True
                assert os.readlink(tmp_path / name) == "target"
        rootfs.take_back()
    finally:
        rootfs.close()
    assert sorted(os.listdir(tmp_path)) == ["file", "other", "right"]
    assert os.readlink(tmp_path / "other") == "elsewhere"


class _Swapped(LiveRoot):
    """A root whose container renames another file over each one that is opened."""

    def open_file(self, path):
        fd = super().open_file(path)
        os.rename(f"/proc/self/fd/{self.fd}/other", f"/proc/self/fd/{self.fd}{path}")
        return fd


def test_an_old_file_is_kept_with_its_own_mode_and_owner(tmp_path):
    """Never one file's bytes under another's owner: a volume may have files of the host's root."""
    for name, mode in (("file", 0o600), ("other", 0o4755)):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    announced = []
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    swapped = _Swapped(root, None, b"", b"", lambda *step: announced.append(step))

    swapped.write("/file", b"new")

    swapped.close()
    [(_, _, _, old)] = announced
    assert (old.data, old.mode) == (b"file", 0o600)
