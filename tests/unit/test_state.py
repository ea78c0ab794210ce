"""Files in the state directory: what is trusted, and that a file is replaced as a whole."""

import os
from pathlib import Path

import pytest

from nvhook import state


def test_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    old_mask = os.umask(0o077)
    try:
        assert state.write(str(path), b"one")
        assert state.write(str(path), b"two")
    finally:
        os.umask(old_mask)
    assert state.read(str(path), 3) == b"two"
    assert path.stat().st_mode & 0o7777 == 0o644
    assert path.parent.stat().st_mode & 0o7777 == 0o755
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_mode_of_an_existing_directory_is_kept(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert state.write(str(tmp_path / "file"), b"x")
    assert tmp_path.stat().st_mode & 0o7777 == 0o700


def test_larger_than_the_limit_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert state.read(str(path), 5) == b"12345"
    assert state.read(str(path), 4) is None


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_writable_by_others_is_ignored(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    path.chmod(mode)
    assert state.read(str(path), 9) is None


def test_links_fifos_and_directories_are_ignored(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"x")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "fifo", 0o644)
    for name in ("link", "fifo", ".", "missing", "target/x"):
        assert state.read(f"{tmp_path}/{name}", 9) is None


def test_owned_by_somebody_else_is_ignored(tmp_path: Path, require) -> None:  # type: ignore[no-untyped-def]
    require(os.geteuid() == 0, "needs root to give a file away")
    path = tmp_path / "file"
    path.write_bytes(b"x")
    assert state.read(str(path), 9) == b"x"
    os.chown(path, 12345, 12345)
    assert state.read(str(path), 9) is None


def test_unwritable_place_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert not state.write(str(tmp_path / "file" / "below"), b"y")
    (tmp_path / "directory").mkdir()
    assert not state.write(str(tmp_path / "directory"), b"y")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["directory", "file"]


def test_link_at_the_target_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep")
    (tmp_path / "file").symlink_to(victim)
    assert state.write(str(tmp_path / "file"), b"new")
    assert victim.read_bytes() == b"keep"
    assert state.read(str(tmp_path / "file"), 9) == b"new"
