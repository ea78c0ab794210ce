"""What a first start leaves behind, and what the next of its kind makes of that."""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvhook import observations
from nvhook.formats.ldcache_splice import splice
from nvhook.sim.elf_writer import ABIS, shared_library
from tests.runtime.expectations import ALLOWED, DENIED
from tests.runtime.simulated import Driver

COMPAT = "/usr/local/cuda/compat"
NOTHING = observations.digest(b"")


def recordings(engine) -> list[Path]:
    found = engine.view.path(Path("/run/nvhook/recordings")).glob("*.[0-9]")
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def is_repeated(bundle) -> bool:
    lines = [line for line in bundle.logged().splitlines() if "msg=injected" in line]
    return "replayed=true" in lines[-1]


def share_settings(bundle, first) -> None:
    """Let a bundle's hook have the configuration of another's: they are of one kind then."""
    bundle.settings, bundle.log = first.settings, first.log
    bundle.config["hooks"] = {"prestart": [bundle.hook()]}


def test_the_second_start_of_a_kind_is_repeated(recorded, bundles):
    first, second = bundles(recorded), bundles(recorded)
    share_settings(second, first)
    time.sleep(0.2)  # younger files may change again without a new time stamp
    for bundle in (first, second):
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        bundle.args("/probe", "open", "/nodes/nvidia3", "open", "/nodes/nvidia0")

        answers = recorded.start(bundle).answers

        assert answers == {"open /nodes/nvidia3": ALLOWED, "open /nodes/nvidia0": DENIED}
        assert is_repeated(bundle) == (bundle is second)
    assert len(recordings(recorded)) == 1


def test_a_name_in_an_image_is_no_line_of_a_recording(recorded, bundles):
    """A line break and a tab in it would make it a look that holds, and a rule for all devices."""
    name = f"libx.so\t\t{NOTHING}\nrule\tc\t*\t*\trwm\nsplice\tx\t350\n"
    made = []
    for _ in range(2):
        bundle = bundles(recorded)
        made.append(bundle)
        share_settings(bundle, made[0])
        image = shared_library(ABIS[os.uname().machine], "libcuda.so.1", "the image's")
        bundle.put(f"{COMPAT}/libcuda.so.590.44.01", image)
        bundle.link(f"{COMPAT}/libcuda.so.1", "libcuda.so.590.44.01")
        bundle.put(f"{COMPAT}/libx.so", image)
        bundle.put(f"{COMPAT}/{name}", image)
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        bundle.args("/probe", "open", "/nodes/nvidia3", "open", "/nodes/nvidia0")
        time.sleep(0.2)

        answers = recorded.start(bundle).answers

        assert answers == {"open /nodes/nvidia3": ALLOWED, "open /nodes/nvidia0": DENIED}
        assert recordings(recorded) == []


@pytest.mark.parametrize("path", ["/etc/ld.so.cache", f"{COMPAT}/libcuda.so.590.44.01"])
def test_a_file_that_leads_into_procfs_is_not_read(recorded, bundles, path):
    """Reading this one waits for ever, and takes from the host's log."""
    first, second = bundles(recorded), bundles(recorded)
    share_settings(second, first)
    image = shared_library(ABIS[os.uname().machine], "libcuda.so.1", "the image's")
    for bundle in (first, second):
        bundle.put(f"{COMPAT}/libcuda.so.590.44.01", image)
        bundle.link(f"{COMPAT}/libcuda.so.1", "libcuda.so.590.44.01")
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    time.sleep(0.2)
    recorded.start(first)
    assert len(recordings(recorded)) == 1
    (second.seen_root / path[1:]).unlink(missing_ok=True)
    second.link(path, "/proc/kmsg")

    if path == "/etc/ld.so.cache":
        assert "leads into procfs" in recorded.fail(second)
    else:
        recorded.start(second)
        assert not is_repeated(second)


def test_what_is_masked_already_is_not_masked_again(recorded, bundles):
    """By a second hook of the same container; the first one's work is repeated."""
    first, second = bundles(recorded), bundles(recorded)
    for bundle in (first, second):
        share_settings(bundle, first)
        bundle.show_proc_driver()
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        bundle.args("/bin/grep", "-c", " /proc/driver/nvidia ", "/proc/self/mountinfo")
    second.config["hooks"]["prestart"].append(second.hook())
    time.sleep(0.2)

    assert [recorded.start(bundle).stdout for bundle in (first, second)] == ["1\n", "1\n"]
    ways = [line for line in second.logged().splitlines() if "msg=injected" in line]
    assert ["replayed=true" in line for line in ways] == [False, True, False]


# ---- what is repeated equals what Python would do, in real containers ----

LIBRARIES = Path(f"root/usr/lib/{os.uname().machine}-linux-gnu")
VERSION = "550.54.14"


def replace(path: Path, data: bytes) -> None:
    new = path.with_name("new")
    new.write_bytes(data)
    new.rename(path)


def remake(path: Path, minor: int) -> None:
    major = os.major(path.stat().st_rdev)
    path.unlink()
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    path.chmod(0o666)


def exchange(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    replace(path, text.replace(old, new).encode())


def on_host(change):
    return lambda directory, bundle: change(directory)


def in_image(change):
    return lambda directory, bundle: change(bundle)


def with_compat(bundle) -> None:
    image = shared_library(ABIS[os.uname().machine], "libcuda.so.1", "the image's")
    bundle.put(f"{COMPAT}/libcuda.so.590.44.01", image)
    bundle.link(f"{COMPAT}/libcuda.so.1", "libcuda.so.590.44.01")


GPU1, GPU3 = (f"proc/driver/nvidia/gpus/0000:{bus}:00.0" for bus in ("07", "0d"))
CUDA = shared_library(ABIS[os.uname().machine], "libcuda.so.1", "another build")
CACHE = splice(b"", [("libc.so.6", "/lib/libc.so.6", 0x0303)])
MUSL = f"ld-musl-{os.uname().machine}"

# Name -> (what changes between two starts, is the second repeated?)
CHANGES = {
    "nothing": (on_host(lambda host: None), True),
    "another-file-in-the-image": (in_image(lambda bundle: bundle.put("/opt/file")), True),
    "another-file-of-the-host": (on_host(lambda host: (host / "root/usr/x").touch()), True),
    "node-again": (on_host(lambda host: remake(host / "dev/nvidia3", 3)), True),
    "node-of-another-gpu": (on_host(lambda host: remake(host / "dev/nvidia3", 7)), False),
    "node-gone": (on_host(lambda host: (host / "dev/nvidia3").unlink()), False),
    "control-node-gone": (on_host(lambda host: (host / "dev/nvidia-uvm-tools").unlink()), False),
    "gpu-gone": (on_host(lambda host: shutil.rmtree(host / GPU1)), False),  # noqa: TID251
    "another-gpu-gone": (on_host(lambda host: shutil.rmtree(host / GPU3)), False),  # noqa: TID251
    "driver-version": (
        on_host(lambda host: exchange(host / "proc/driver/nvidia/version", VERSION, "555.42.02")),
        False,
    ),
    "major": (
        on_host(lambda host: exchange(host / "proc/devices", "511 nvidia-uvm", "403 nvidia-uvm")),
        False,
    ),
    "library-replaced": (
        on_host(lambda host: replace(host / LIBRARIES / f"libcuda.so.{VERSION}", CUDA)),
        False,
    ),
    "loader-cache": (
        on_host(lambda host: os.utime(host / "root/etc/ld.so.cache")),
        False,
    ),
    "params": (
        on_host(lambda host: exchange(host / "proc/driver/nvidia/params", "MSI: 1", "MSI: 0")),
        False,
    ),
    "socket-gone": (
        on_host(lambda host: (host / "root/run/nvidia-persistenced/socket").unlink()),
        False,
    ),
    "mps-gone": (on_host(lambda host: (host / "root/tmp/nvidia-mps").rmdir()), False),
    "boot": (
        on_host(lambda host: replace(host / "proc/sys/kernel/random/boot_id", b"2\n")),
        False,
    ),
    "debian": (in_image(lambda bundle: bundle.put("/etc/debian_version", b"12\n")), False),
    "compat": (in_image(with_compat), False),
    "musl": (in_image(lambda bundle: bundle.put(f"/lib/{MUSL}.so.1")), False),
    "cache-of-the-image": (in_image(lambda bundle: bundle.put("/etc/ld.so.cache", CACHE)), False),
    "settings": (
        lambda host, bundle: exchange(bundle.settings, 'level = "info"', 'level = "debug"'),
        False,
    ),
}


@pytest.fixture
def own_driver(workspace) -> Iterator[Driver]:
    """A simulated driver to be changed; nothing of it stays."""
    with tempfile.TemporaryDirectory(dir=workspace) as directory:
        yield Driver(Path(directory) / "driver")


def outcome(bundle, result, line: int) -> object:
    """Return a container's mounts and files, or the error; line: where its log begins."""
    if result.returncode:
        errors = [each for each in result.log.splitlines()[line:] if " level=error " in each]
        return [each.partition(" msg=")[2].partition(" container=")[0] for each in errors]
    mounts = [" ".join(each.split(" ")[3:6]) for each in result.stdout.splitlines()]
    files = {
        path: (bundle.root / path).read_bytes()
        for path, (mode, _, _) in bundle.tree().items()
        if path.startswith("etc/") and stat.S_ISREG(mode)
    }
    hidden = str(bundle.directory)
    return [each.replace(hidden, "") for each in mounts], {*bundle.tree()}, files


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_repeated_is_what_python_does(recorded, bundles, own_driver, name):
    change, expected = CHANGES[name]
    first, second, fresh = (bundles(recorded, host=own_driver) for _ in range(3))
    with first.settings.open("a") as settings:
        settings.write('log-level = "info"\n')
    time.sleep(0.2)
    for bundle in (first, second, fresh):
        share_settings(bundle, first)
        (bundle.root / "proc/driver/nvidia").mkdir(parents=True)
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        bundle.args("/bin/sh", "-c", "cat /proc/self/mountinfo")
    recorded.start(first)
    change(own_driver.directory, second)
    if "in_image" in change.__qualname__:
        change(own_driver.directory, fresh)

    begin = len(first.logged().splitlines())
    result = recorded.run(second)
    repeated = outcome(second, result, begin)
    assert (not result.returncode and is_repeated(second)) == expected

    recorded.view.run("rm", "-rf", "/run/nvhook/recordings")
    begin = len(first.logged().splitlines())
    result = recorded.run(fresh)
    assert result.returncode or not is_repeated(fresh)
    assert outcome(fresh, result, begin) == repeated
