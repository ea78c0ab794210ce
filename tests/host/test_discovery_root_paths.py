"""Paths inside a root, on real directories."""

import os

import pytest

from nvhook.host.root_paths import join_root, list_directory, open_file, resolve
from tests.descriptors import open_here


@pytest.fixture
def root(tmp_path):
    """A root with /usr/lib/x, /lib -> usr/lib, and secrets next to it."""
    (tmp_path / "secret").write_text("outside")
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/x").write_text("inside")
    (root / "lib").symlink_to("usr/lib")
    return root


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/usr/lib/x", "/usr/lib/x"),
        ("/lib/x", "/usr/lib/x"),
        ("lib//./x", "/usr/lib/x"),
        ("/lib/../lib/x", "/usr/lib/x"),
        ("/../../usr/lib/x", "/usr/lib/x"),
        ("/", "/"),
        ("/../secret", None),
        ("/usr/lib/x/y", None),
        ("/usr/lib/absent", None),
        ("/usr/lib/\0", None),
    ],
)
def test_resolve(root, path: str, resolved: str | None) -> None:
    assert resolve(str(root), path) == resolved


@pytest.mark.parametrize(
    ("target", "resolved"),
    [
        ("/usr/lib/x", "/usr/lib/x"),
        ("/lib/x", "/usr/lib/x"),
        ("../../../../lib/x", "/usr/lib/x"),
        ("x", "/usr/lib/x"),
        ("../../secret", None),
        ("link", None),
        ("absent", None),
    ],
)
def test_resolve_link(root, target: str, resolved: str | None) -> None:
    (root / "usr/lib/link").symlink_to(target)
    assert resolve(str(root), "/lib/link") == resolved


def test_absolute_link_to_a_host_path_stays_inside(root, tmp_path) -> None:
    (root / "link").symlink_to(tmp_path / "secret")
    assert resolve(str(root), "/link") is None
    assert open_file(str(root), "/link") is None


@pytest.mark.parametrize(("links", "resolved"), [(40, "/usr/lib/x"), (41, None)])
def test_chain_of_links_has_the_kernels_limit(root, links: int, resolved: str | None) -> None:
    (root / "link1").symlink_to("usr/lib/x")
    for number in range(2, links + 1):
        (root / f"link{number}").symlink_to(f"link{number - 1}")
    assert resolve(str(root), f"/link{links}") == resolved


def test_open_file_reads_the_file_inside(root) -> None:
    fd, resolved = open_file(str(root), "/lib/x")
    try:
        assert (os.read(fd, 100), resolved) == (b"inside", "/usr/lib/x")
    finally:
        os.close(fd)


def test_open_file_takes_regular_files_only(root) -> None:
    os.mkfifo(root / "fifo")
    assert open_file(str(root), "/fifo") is None
    assert open_file(str(root), "/usr") is None


def test_list_directory(root) -> None:
    (root / "usr/lib/a").write_text("")
    assert list_directory(str(root), "/lib") == (["a", "x"], "/usr/lib")
    assert list_directory(str(root), "/lib/x") is None


def test_no_descriptor_is_left_open(root) -> None:
    (root / "loop").symlink_to("loop")
    before = open_here()
    for path in ("/lib/x", "/loop", "/lib/absent", "/usr/lib/../../lib/x"):
        resolve(str(root), path)
        open_file(str(root), path + "/not-a-directory")
        list_directory(str(root), path)
    assert open_here() - before == set()


def test_join_root() -> None:
    assert join_root("/", "/usr/lib/x") == "/usr/lib/x"
    assert join_root("/run/nvidia/driver/", "/usr/lib/x") == "/run/nvidia/driver/usr/lib/x"
    assert resolve("/", "/proc/../proc/devices") == "/proc/devices"
