"""Volumes of the host at driver paths: whatever nvhook made there, it would make on the host."""

from pathlib import Path

import pytest

from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches


@pytest.fixture
def volume(place: Path) -> Path:
    """A directory of the host that only the host's root may change."""
    directory = place / "volume"
    directory.mkdir(0o755)
    return directory


def bind(bundle, source: Path, destination: str, *options: str) -> None:
    bundle.config["mounts"].append(
        {
            "destination": destination,
            "type": "bind",
            "source": str(source),
            "options": ["rbind", "rprivate", *options],
        }
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in directory.rglob("*")
    }


def test_nothing_is_made_on_a_volume(each_runtime, bundles, volume):
    bundle = bundles(each_runtime)
    bind(bundle, volume, "/usr/lib64")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    result = each_runtime.run(bundle)

    assert result.returncode != 0
    assert "is on a volume of the host, where nvhook makes nothing" in result.error
    assert contents(volume) == {}


@pytest.mark.parametrize("options", [(), ("ro",)], ids=["rw", "ro"])
@pytest.mark.parametrize("destination", ["/usr/bin", "/run", "/tmp"])
def test_what_is_not_required_is_left_out(each_door, bundles, volume, destination, options):
    """A volume at /tmp is what half of all pods have, and the host may run MPS."""
    bundle = bundles(each_door)
    bind(bundle, volume, destination, *options)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle)

    result = each_door.start(bundle)

    assert_reaches(bundle, result, (1,), COMPUTE)
    assert "left out: " in result.log
    assert f"{destination}/nvidia" in result.log
    assert contents(volume) == {}


def test_files_that_are_there_are_covered(each_runtime, bundles, driver, volume):
    """The volume has every library, empty and with its links: mounts cover them, files stay."""
    libraries = driver.directory / "root/usr/lib/x86_64-linux-gnu"
    for path in libraries.iterdir():
        if path.is_symlink():
            (volume / path.name).symlink_to(path.readlink())
        else:
            (volume / path.name).write_bytes(b"")
    (volume / "libcuda.so").symlink_to("libcuda.so.1")
    before = contents(volume)
    bundle = bundles(each_runtime)
    bind(bundle, volume, "/usr/lib64")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/sh", "-c", "wc -c < /usr/lib64/libcuda.so.1")

    result = each_runtime.start(bundle)

    size = (libraries / "libcuda.so.1").stat().st_size
    assert result.stdout.strip() == str(size)
    assert contents(volume) == before


@pytest.mark.parametrize("mapped", [False, True], ids=["root", "userns"])
def test_links_of_the_image_into_a_volume_write_nothing_there(each_door, bundles, volume, mapped):
    """The image sends /etc and /usr to a directory that the container itself may not change."""
    bundle = bundles(each_door)
    (volume / "ld.so.cache").write_bytes(b"the host's")
    (bundle.root / "etc").rmdir()
    bundle.link("etc", "/volume")
    bundle.link("usr", "/volume")
    (bundle.root / "volume").mkdir()
    bind(bundle, volume, "/volume")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    if mapped:
        bundle.use_user_namespace(owned=False)

    result = each_door.run(bundle)

    assert result.returncode != 0
    assert "is on a volume of the host" in result.error
    assert contents(volume) == {"ld.so.cache": b"the host's"}


def test_the_hosts_own_etc_is_not_changed(each_door, bundles, volume):
    (volume / "ld.so.cache").write_bytes(b"")
    bundle = bundles(each_door)
    bind(bundle, volume, "/etc")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    result = each_door.run(bundle)

    assert result.returncode != 0
    assert "/etc/ld.so.cache is on a volume of the host" in result.error
    assert contents(volume) == {"ld.so.cache": b""}


def test_a_cache_that_is_a_mount_of_its_own_says_so(each_door, bundles, volume):
    (volume / "cache").write_bytes(b"")
    bundle = bundles(each_door)
    bundle.put("/etc/ld.so.cache")
    bind(bundle, volume / "cache", "/etc/ld.so.cache")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    result = each_door.run(bundle)

    assert result.returncode != 0
    assert "it is a mount of its own" in result.error


def test_a_tmpfs_of_the_container_is_its_own(each_runtime, bundles):
    bundle = bundles(each_runtime)
    for destination in ("/run", "/tmp", "/usr/lib64"):
        bundle.config["mounts"].append(
            {"destination": destination, "type": "tmpfs", "source": "tmpfs"}
        )
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/sh", "-c", "ls /run/nvidia-persistenced/socket /usr/lib64/libcuda.so.1")

    result = each_runtime.start(bundle)

    assert result.stdout.split() == ["/run/nvidia-persistenced/socket", "/usr/lib64/libcuda.so.1"]


@pytest.mark.parametrize("place_of", ["/etc", "/var/cache"])
def test_ldconfig_writes_nothing_on_a_volume(each_door, bundles, volume, place_of):
    """A cache nvhook can't read makes ldconfig run, which knows nothing of volumes."""
    (volume / "ldconfig").mkdir()
    bundle = bundles(each_door)
    if place_of == "/etc":
        (volume / "ld.so.cache").write_bytes(b"damaged, and the host's")
    else:
        bundle.put("/etc/ld.so.cache", b"damaged")
    bind(bundle, volume, place_of)
    before = contents(volume)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    result = each_door.run(bundle)

    assert contents(volume) == before
    if place_of == "/etc":
        assert result.returncode != 0
        assert "/etc/ld.so.cache is on a volume of the host" in result.error
    else:
        assert result.returncode == 0, result.log
