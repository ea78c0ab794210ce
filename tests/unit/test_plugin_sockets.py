"""Where the plugin's sockets are, and what tells of changes there."""

import os
import select
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvhook.errors import HostError
from nvhook.kernel.inotify import DirectoryWatch
from nvhook.kubelet.sockets import MAX_PATH, SocketDirectory, identity
from tests.descriptors import open_here


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nvk-") as name:
        yield Path(name)


def bound(path: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    return server


def test_a_published_socket_is_reached_by_its_name_again_and_again(directory: Path) -> None:
    sockets = SocketDirectory(str(directory))
    sockets.create()
    path = sockets.new_socket()
    name = sockets.link_name("nvidia.com/gpu")
    with bound(path):
        assert sockets.publish(path, name)
        assert not sockets.publish(path, name)
        for _ in range(3):
            (directory / name).unlink()
            assert sockets.publish(path, name)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(directory / name))
    sockets.withdraw(name)
    sockets.withdraw(name)
    sockets.remove()
    assert [*directory.iterdir()] == []


def test_a_name_that_another_file_has_taken_is_taken_back(directory: Path) -> None:
    sockets = SocketDirectory(str(directory))
    sockets.create()
    path, name = sockets.new_socket(), sockets.link_name("nvidia.com/gpu")
    with bound(path):
        (directory / name).write_text("")
        assert sockets.publish(path, name)
        assert (directory / name).is_socket()


def test_names_fit_into_a_socket_address_and_differ(directory: Path) -> None:
    deep = directory / ("d" * (70 - len(str(directory))))
    deep.mkdir()
    sockets = SocketDirectory(str(deep))
    names = {sockets.link_name(f"nvidia.com/{'x' * 50}{end}") for end in ("a", "b", "c")}
    assert len(names) == 3
    assert all(len(f"{deep}/{name}") <= MAX_PATH for name in names)
    assert sockets.link_name("nvidia.com/gpu").startswith("nvhook-gpu-")


def test_a_directory_with_too_long_a_name_is_an_error(directory: Path) -> None:
    deep = directory / ("d" * 100)
    sockets = SocketDirectory(str(deep))
    sockets.create()
    with pytest.raises(HostError, match="too long a name"):
        sockets.new_socket()


def test_a_directory_that_can_not_be_made_is_an_error(directory: Path) -> None:
    (directory / "file").write_text("")
    with pytest.raises(HostError, match="can't use the kubelet's directory"):
        SocketDirectory(str(directory / "file")).create()


def test_a_new_socket_of_the_same_name_is_another(directory: Path) -> None:
    path = str(directory / "kubelet.sock")
    assert identity(path) is None
    Path(path).write_text("")
    assert identity(path) is None, "a file is no socket"
    os.unlink(path)
    with bound(path):
        first = identity(path)
    assert identity(path) == first, "a dead one is still the same"
    os.unlink(path)
    time.sleep(0.02)  # the clock of files ticks every 4 to 10 ms
    with bound(path):
        assert identity(path) not in {first, None}


def test_changes_of_a_directory_are_told_until_it_is_gone(directory: Path) -> None:
    inside = directory / "inside"
    inside.mkdir()
    watch = DirectoryWatch(str(inside))
    try:
        assert not readable(watch)
        (inside / "kubelet.sock").write_text("")
        assert readable(watch)
        assert watch.drain()
        assert not readable(watch)
        (inside / "kubelet.sock").write_text("content is no news")
        assert not readable(watch)
        (inside / "kubelet.sock").unlink()
        assert readable(watch)
        assert watch.drain()
        inside.rmdir()
        assert readable(watch)
        assert not watch.drain()
    finally:
        watch.close()


def test_more_changes_than_the_kernel_remembers_are_still_changes(directory: Path) -> None:
    watch = DirectoryWatch(str(directory))
    try:
        for _ in range(20_000):
            (directory / "x").touch()
            (directory / "x").unlink()
        assert readable(watch)
        assert watch.drain()
        assert not readable(watch)
    finally:
        watch.close()


@pytest.mark.parametrize("name", ["absent", "file"])
def test_what_is_no_directory_is_not_watched(directory: Path, name: str) -> None:
    (directory / "file").write_text("")
    before = open_here()
    with pytest.raises(OSError, match="inotify"):
        DirectoryWatch(str(directory / name))
    assert open_here() - before == set()


def readable(watch: DirectoryWatch) -> bool:
    return bool(select.select([watch], [], [], 0)[0])
