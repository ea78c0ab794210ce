"""A process that is not the container as its runtime has made it: nothing is changed for it."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.expectations import ALLOWED, DENIED
from tests.runtime.live import Live

CHANGED_ROOT = "has changed its root directory since it was started"


def tree(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for path in directory.rglob("*"):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (status.st_mode, status.st_uid, content)
    return found


def waits(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def with_volume(bundle, volume: Path, mode: str) -> None:
    (bundle.seen_root / "vol").mkdir()
    bundle.config["mounts"].append(
        {"destination": "/vol", "type": "bind", "source": str(volume), "options": ["bind", mode]}
    )


@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_an_init_that_has_called_chroot_into_a_volume_is_refused(live, place, mode):
    """Its root would be a directory of the host, and nvhook would write there, as root."""
    volume = place / "volume"
    (volume / "sub/bin").mkdir(parents=True)
    (volume / "sub/etc").mkdir()
    shutil.copy("/bin/busybox", volume / "sub/bin/busybox")

    def change(bundle):
        with_volume(bundle, volume, mode)
        bundle.args("/bin/busybox", "chroot", "/vol/sub", "/bin/busybox", "sleep", "1000")

    container: Live = live(change=change)
    waits(lambda: os.readlink(f"/proc/{container.pid}/root").endswith("/sub"))
    before = tree(volume)

    done = container.nvhook("inject", "--gpus", "1")

    assert done.returncode == 1
    assert CHANGED_ROOT in done.stderr
    assert tree(volume) == before


def test_what_another_root_had_is_not_given_back_into_this_one(live, place):
    """Bytes and mode of the container's choice would stand on a read-only volume of the host."""
    volume = place / "volume"
    (volume / "victim/etc").mkdir(parents=True)
    (volume / "victim/etc/ld.so.cache").write_text("the victim's own")
    (volume / "victim/bin").mkdir()
    shutil.copy("/bin/busybox", volume / "victim/bin/busybox")
    script = (
        "while [ ! -e /go ]; do usleep 20000; done; exec chroot /vol/victim /bin/busybox sleep 1000"
    )

    def change(bundle):
        with_volume(bundle, volume, "ro")
        bundle.put("/etc/ld.so.cache", b"")
        bundle.args("/bin/busybox", "sh", "-c", script)

    container: Live = live(change=change)
    assert container.nvhook("inject", "--gpus", "1").returncode == 0
    before = tree(volume)
    container.bundle.put("/go")
    waits(lambda: os.readlink(f"/proc/{container.pid}/root").endswith("/victim"))

    done = container.nvhook("eject")

    assert tree(volume) == before
    assert CHANGED_ROOT in done.stdout + done.stderr
    listed = container.nvhook("list", "--containers")
    assert "yes" not in listed.stdout.split("access")[-1] or listed.returncode == 0


@pytest.mark.parametrize("options", [(), ("-m",), ("-r", "-m")], ids=["", "mounts", "root"])
def test_an_init_in_a_user_namespace_of_its_own_making_is_refused(live, options):
    """Who is root there is nobody outside: nvhook would write for it as root of the host."""

    def change(bundle):
        bundle.config["process"]["user"] = {"uid": 1000, "gid": 1000}
        bundle.config["process"].pop("capabilities", None)
        bundle.put("/etc/ld.so.cache", b"")
        bundle.args("/bin/busybox", "unshare", "-U", *options, "/bin/busybox", "sleep", "1000")

    container: Live = live(change=change)
    ours = os.readlink("/proc/self/ns/user")
    waits(lambda: os.readlink(f"/proc/{container.pid}/ns/user") != ours)
    cache = container.bundle.root / "etc/ld.so.cache"
    before = cache.read_bytes(), cache.stat().st_uid

    done = container.nvhook("inject", "--gpus", "1")

    assert done.returncode == 1
    assert "is in a user namespace that no runtime of this host has made" in done.stderr
    assert (cache.read_bytes(), cache.stat().st_uid) == before


def test_access_is_revoked_where_no_journal_can_be_written(live, place):
    """What can't be written down can't be undone, but that is no reason to leave the GPU open."""
    container: Live = live()
    run = container.engine.view.run
    directory = place / "small"
    directory.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", directory)
    try:
        lines = container.bundle.settings.read_text().splitlines()
        kept = [line for line in lines if not line.startswith("state-directory")]
        kept.append(f'state-directory = "{directory}"')
        container.bundle.settings.write_text("\n".join([*kept, ""]))
        container.inject("1")
        run("sh", "-c", f"cat /dev/zero >{directory}/full || :", check=False)
        assert container.opens(1) == [ALLOWED]

        done = container.nvhook("eject")

        assert done.returncode == 1
        assert "access is revoked, but files stay in the container" in done.stderr
        assert container.opens(1, at="nodes") == [DENIED]
        run("rm", directory / "full")
        container.eject()
    finally:
        run("umount", directory)


def test_a_cgroup_mount_of_a_namespace_in_the_container_leads_nowhere(live):
    """Its root is the container's own cgroup, which then had no name below it: none was revoked."""
    container: Live = live()
    container.inject("1")
    version = 1 if container.rules() else 2
    cgroup = container.cgroup(version)
    assert cgroup is not None
    place = f"/{cgroup.parent.relative_to(container.engine.view.path(Path('/')))}"
    kind = "cgroup -o devices" if version == 1 else "cgroup2"
    inside = f"umount -R {place}; mount -t {kind} hostile {place} && echo ready && exec sleep 100"
    words = "unshare --mount --cgroup --pid --kill-child --fork sh -c"
    script = f"echo $$ >{place}/{cgroup.name}/cgroup.procs && exec {words} '{inside}'"
    prefix = container.engine.view.prefix
    with subprocess.Popen([*prefix, "sh", "-c", script], stdout=subprocess.PIPE) as hostile:
        try:
            assert hostile.stdout is not None
            assert hostile.stdout.readline() == b"ready\n"

            done = container.eject()

            assert done["revoked"]
            assert container.opens(1, at="nodes") == [DENIED]
        finally:
            hostile.kill()


def test_a_volume_in_the_place_of_a_user_namespaces_root_is_not_written(live, place):
    """Who may mount there may put any mount in the root's place: it looks as a runtime made it."""
    volume = place / "volume"
    for name in ("bin", "etc", "proc", "dev", "usr/lib64"):
        (volume / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", volume / "bin/busybox")
    volume.chmod(0o755)
    enter = "exec /bin/busybox nsenter --mount=/proc/self/ns/mnt /bin/busybox sleep 1000"

    def change(bundle):
        with_volume(bundle, volume, "ro")
        for each in bundle.config["process"]["capabilities"].values():
            each += ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE"]
        bundle.args("/bin/sh", "-c", f"mount --bind /vol / && {enter}")

    container: Live = live(user="own-image", change=change)
    words = Path(f"/proc/{container.pid}/cmdline")
    waits(lambda: words.read_bytes() == b"/bin/busybox\0sleep\x001000\0")
    before = tree(volume)

    done = container.nvhook("inject", "--gpus", "1")

    assert done.returncode == 1
    assert tree(volume) == before
