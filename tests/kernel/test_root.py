"""Reading and attaching by descriptor, where the image is not what it seems."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nvhook._native import call, lib
from nvhook.errors import ContainerError
from nvhook.kernel import mounts
from nvhook.kernel.refusals import NoPlaceError
from nvhook.kernel.root import CONTENT, FILE, LINK, MOUNT, Root, Step

pytestmark = pytest.mark.root


@pytest.fixture
def rootfs(tmp_path: Path, root_host: None) -> Iterator[Root]:
    (tmp_path / "etc").mkdir()
    opened = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
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
    rootfs = Root(os.open("/", os.O_PATH | os.O_DIRECTORY))
    try:
        with pytest.raises(ContainerError, match="leads into procfs"):
            rootfs.read("/proc/kpageflags", 100)
    finally:
        rootfs.close()


def test_a_file_of_the_kernel_is_not_read_to_be_given_back(rootfs, tmp_path):
    """Reading /proc/kmsg waits for ever."""
    (tmp_path / "etc/ld.so.cache").touch()
    version = mounts.clone("/proc/version", ("ro",))
    try:
        assert rootfs.attach("/etc/ld.so.cache", version)
        with pytest.raises(ContainerError, match="leads into procfs"):
            rootfs.write("/etc/ld.so.cache", b"new")
    finally:
        rootfs.undo_all()
        os.close(version)


@pytest.fixture
def source(tmp_path_factory: pytest.TempPathFactory, root_host: None) -> Iterator[int]:
    """A detached mount of an empty file."""
    file = tmp_path_factory.mktemp("source") / "file"
    file.touch()
    fd = mounts.clone(str(file), ("ro",))
    yield fd
    os.close(fd)


def test_a_shared_mount_is_refused_unless_there_is_nothing_to_mount(tmp_path, source):
    """Ours would appear on the host, and stay there."""
    (tmp_path / "other").touch()
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    number = call(lib.nvh_mount_id, root)
    table = f"{number} 1 0:1 / / rw shared:7 - ext4 x rw\n".encode()
    opened = Root(root, None, table, b"")
    with pytest.raises(ContainerError, match="/other is on a volume with shared propagation"):
        opened.attach("/other", source)
    (tmp_path / "ours").touch()
    same = mounts.clone(str(tmp_path / "ours"), ("ro",))
    assert opened.attach("/ours", same) is False
    os.close(same)
    opened.close()


@pytest.mark.parametrize("known_to_host", [True, False], ids=["volume", "own-tmpfs"])
def test_whose_a_mount_is_tells_its_device_in_mountinfo(source, known_to_host):
    """Not st_dev, which on btrfs is another number: here the table says so, too."""
    seen = Path("/proc/self/mountinfo").read_bytes()
    line = [each for each in seen.splitlines() if b" /dev/shm " in each][-1]
    device = line.split(b" ")[2]
    table = seen.replace(line, line.replace(b" " + device + b" ", b" 0:99999 ", 1))
    host = table if known_to_host else seen
    directory = Path("/dev/shm") / f"nvhook-test-{os.getpid()}"
    rootfs = Root(os.open("/", os.O_PATH | os.O_DIRECTORY), None, table, host)
    try:
        if known_to_host:
            with pytest.raises(NoPlaceError, match="on a volume of the host"):
                rootfs.attach(str(directory), source)
            assert not directory.exists()
        else:
            assert rootfs.attach(str(directory), source) is True
            assert os.path.samestat(directory.stat(), os.fstat(source))
            rootfs.undo_all()
            assert not directory.exists()
    finally:
        rootfs.close()


def test_mount_points_are_links_to_one_file(tmp_path, root_host):
    """A file made anew costs several times as much."""
    names = "abc"
    sources = []
    for name in names:
        (tmp_path / f"source-{name}").touch()
        sources.append(mounts.clone(str(tmp_path / f"source-{name}"), ("ro",)))
    table = Path("/proc/self/mountinfo").read_bytes()
    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY), None, table, b"")
    try:
        for name, source in zip(names, sources, strict=True):
            assert rootfs.attach(f"/place/{name}", source)
        under = os.open(tmp_path / "place", os.O_PATH)
        # What is below the mounts: a copy of the directory has none of them.
        copy = call(lib.nvh_clone_directory, under, 0, mounts.MS_PRIVATE)
        found = {os.stat(f"/proc/self/fd/{copy}/{name}").st_ino for name in names}
        assert len(found) == 1
        os.close(copy)
        os.close(under)
    finally:
        for source in sources:
            os.close(source)
        rootfs.undo_all()
        rootfs.close()
    assert not (tmp_path / "place").exists()


@pytest.mark.parametrize(
    ("source", "shadowed"),
    [("directory", {"directory"}), ("file", {"file", "socket"}), ("node", {"file", "node"})],
)
def test_only_what_is_alike_is_shadowed(tmp_path, tmp_path_factory, root_host, source, shadowed):
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    os.mknod(tmp_path / "node", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    names = {each.name for each in tmp_path.iterdir()}
    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    other = tmp_path_factory.mktemp("other")
    if source == "directory":
        (other / source).mkdir()
    elif source == "file":
        (other / source).touch()
    else:
        os.mknod(other / source, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    accepted = set()
    try:
        for name in names:
            host = mounts.clone(str(other / source), ("ro",))
            with suppress(ContainerError):
                rootfs.attach(f"/{name}", host)
                accepted.add(name)
            os.close(host)
    finally:
        rootfs.undo_all()
        rootfs.close()
    assert accepted == shadowed
    assert {each.name for each in tmp_path.iterdir()} == names


def test_what_a_container_puts_in_the_place_of_a_new_file_is_not_mounted_on(tmp_path, source):
    """Between the look whether it is there and making it: what is opened counts, here a FIFO."""

    def fast(step):
        if step.kind == FILE and step.path == "/new":
            os.mkfifo(tmp_path / "new")

    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY), recorder=fast)
    with pytest.raises(ContainerError, match="a fifo at /new"):
        rootfs.attach("/new", source)
    rootfs.close()


@pytest.mark.parametrize("readonly", [False, True])
def test_a_link_is_made_replaced_or_there(tmp_path, root_host, readonly):
    """A right one is no failure even where none can be made."""
    (tmp_path / "right").symlink_to("target")
    (tmp_path / "other").symlink_to("elsewhere")
    (tmp_path / "file").write_text("")
    if readonly:
        fd = call(lib.nvh_clone_mount, os.fsencode(tmp_path), 1, 0, mounts.MS_PRIVATE)
    else:
        fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    rootfs = Root(fd)
    try:
        assert rootfs.link("/right", "target") is False
        with pytest.raises(ContainerError, match="a regular file at /file"):
            rootfs.link("/file", "target")
        for name in ("new", "other"):
            if readonly:
                with pytest.raises(NoPlaceError, match="Read-only file system"):
                    rootfs.link(f"/{name}", "target")
            else:
                assert rootfs.link(f"/{name}", "target") is True
                assert os.readlink(tmp_path / name) == "target"
        rootfs.undo_all()
    finally:
        rootfs.close()
    assert sorted(os.listdir(tmp_path)) == ["file", "other", "right"]
    assert os.readlink(tmp_path / "other") == "elsewhere"


def test_a_file_is_replaced_and_given_back_with_its_mode_and_owner(tmp_path, root_host):
    (tmp_path / "file").write_text("old")
    os.chown(tmp_path / "file", 7, 8)
    (tmp_path / "file").chmod(0o4755)
    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))

    rootfs.write("/file", b"new")
    rootfs.write("/other", b"new", 0o600)

    assert (tmp_path / "file").read_bytes() == (tmp_path / "other").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) == 0o600
    rootfs.undo_all()
    rootfs.close()
    assert os.listdir(tmp_path) == ["file"]
    status = (tmp_path / "file").stat()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o4755, 7, 8)


def test_every_step_is_told_before_it_is_taken(tmp_path, source):
    (tmp_path / "old").symlink_to("elsewhere")
    (tmp_path / "file").write_text("old")
    told = []

    def tell(step):
        assert not os.path.lexists(tmp_path / "new")
        assert os.readlink(tmp_path / "old") == "elsewhere"
        assert (tmp_path / "file").read_text() == "old"
        told.append(step)
        raise KeyboardInterrupt

    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY), recorder=tell)
    for change in (
        lambda: rootfs.attach("/new", source),
        lambda: rootfs.attach("/new/below", source),
        lambda: rootfs.attach("/file", source),
        lambda: rootfs.link("/new", "x"),
        lambda: rootfs.link("/old", "x"),
        lambda: rootfs.write("/new", b"x"),
        lambda: rootfs.write("/file", b"x"),
    ):
        with pytest.raises(KeyboardInterrupt):
            change()
    rootfs.close()

    kinds = [FILE, "directory", MOUNT, LINK, LINK, CONTENT, CONTENT]
    assert [step.kind for step in told] == kinds
    assert [step.old for step in told[3:6]] == [None, "elsewhere", None]
    assert told[4].new == told[6].new == b"x"
    assert (told[6].old.data, told[6].old.mode) == (b"old", 0o644)
    assert sorted(os.listdir(tmp_path)) == ["file", "old"]


def test_an_interrupt_before_the_recorder_stops_the_step(tmp_path, source, monkeypatch, capfd):
    """Nothing may be changed, or printed: that would read the container's files."""

    def interrupted(root, step):
        raise KeyboardInterrupt

    monkeypatch.setattr(Root, "_record", interrupted)
    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY), recorder=lambda step: None)
    with pytest.raises(KeyboardInterrupt):
        rootfs.attach("/new", source)
    rootfs.close()

    assert os.listdir(tmp_path) == []
    assert capfd.readouterr() == ("", "")


def test_names_are_bytes(tmp_path, root_host):
    """An image's need not be UTF-8, which must hold up neither reading nor an undo."""
    name, target = os.fsdecode(b"lib\xff.so"), os.fsdecode(b"else\xffwhere")
    (tmp_path / name).symlink_to(target)
    (tmp_path / target).write_text("read")
    steps: list[Step] = []
    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY), recorder=steps.append)
    try:
        assert rootfs.names("/") == sorted([name, target])
        reader = rootfs.reader(f"/{name}")
        assert reader is not None
        with reader as read:
            assert read(0, 9) == b"read"

        assert rootfs.link(f"/{name}", "target")
        assert os.readlink(tmp_path / name) == "target"
        assert rootfs.undo(steps[0]) == ""
        assert os.readlink(tmp_path / name) == target
    finally:
        rootfs.close()


def test_undo_stays_in_the_working_directory(tmp_path, source):
    table = Path("/proc/self/mountinfo").read_bytes()
    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY), None, table, b"")
    before = os.getcwd()
    rootfs.attach("/usr/bin/tool", source)
    rootfs.undo_all()
    rootfs.close()
    assert not (tmp_path / "usr").exists()
    assert os.getcwd() == before


@pytest.mark.parametrize("place", ["image", "own-tmpfs"])
def test_host_roots_rights_make_what_an_image_lacks_and_nothing_on_other_mounts(
    tmp_path, source, place
):
    """A directory that the container's root may not write to: host root has made the image.

    On a mount that the container has there, it is somebody's will.
    """
    seen = Path("/proc/self/mountinfo").read_bytes()
    line = [each for each in seen.splitlines() if b" /dev/shm " in each][-1]
    device = line.split(b" ")[2]
    table = seen.replace(line, line.replace(b" " + device + b" ", b" 0:99999 ", 1))
    top, inside = tmp_path, tmp_path
    if place == "own-tmpfs":
        top, inside = Path("/"), Path("/dev/shm") / f"nvhook-test-{os.getpid()}"
        inside.mkdir()
    closed = inside / "closed"
    closed.mkdir(mode=0o700)
    rootfs = Root(os.open(top, os.O_PATH | os.O_DIRECTORY), (1234, 1234), table, seen)
    path = f"/{closed.relative_to(top)}"
    ways = {
        "mounted": lambda path: rootfs.attach(path, source),
        "linked": lambda path: rootfs.link(path, "target"),
        "written": lambda path: rootfs.write(path, b"text"),
        "directory/linked": lambda path: rootfs.link(path, "target"),
    }
    made = set()
    try:
        for name, make in ways.items():
            with suppress(ContainerError):
                make(f"{path}/{name}")
            made |= {name} if os.path.lexists(closed / name) else set()
        assert made == (set(ways) if place == "image" else set())
        assert place == "image" or not [*closed.iterdir()]
    finally:
        rootfs.undo_all()
        rootfs.close()
        closed.rmdir()
        if place == "own-tmpfs":
            inside.rmdir()
