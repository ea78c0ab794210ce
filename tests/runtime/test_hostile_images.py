"""Images that try to make the hook touch the host. Whatever happens, the host stays as it is."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.sim.driver import DEFAULT_VERSION
from tests.runtime.bundle import Bundle

CUDA = f"libcuda.so.{DEFAULT_VERSION}"
FIRMWARE = f"/lib/firmware/nvidia/{DEFAULT_VERSION}"
Prepare = Callable[[Bundle, Path], None]


def _link(where: str, target: str) -> Prepare:
    """A link of the image; {outside} is an existing directory of the host."""

    def prepare(bundle: Bundle, outside: Path) -> None:
        path = bundle.root / where[1:]
        if path.is_dir():
            path.rmdir()
        bundle.link(where, target.format(outside=outside))

    return prepare


def _fifo(where: str) -> Prepare:
    def prepare(bundle: Bundle, outside: Path) -> None:
        path = bundle.root / where[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)

    return prepare


def _huge(where: str) -> Prepare:
    def prepare(bundle: Bundle, outside: Path) -> None:
        with bundle.put(where).open("wb") as file:
            file.truncate(1 << 40)

    return prepare


UP = "../" * 12
# What the image does, and what the error says.
REFUSED = {
    "libdir-absolute-link-out": (_link("/usr/lib64", "{outside}"), "dangling link"),
    "libdir-relative-link-out": (_link("/usr/lib64", UP + "{outside}"), "dangling link"),
    "usr-link-out": (_link("/usr", UP + "{outside}"), "dangling link"),
    "etc-link-out": (_link("/etc", "{outside}"), "dangling link"),
    "run-link-out": (_link("/run", "{outside}"), "dangling link"),
    "libdir-into-magic-link": (_link("/usr/lib64", "/proc/1/root"), "Too many levels"),
    "libdir-into-self": (_link("/usr/lib64", "/proc/self/root"), "dangling link"),
    "libdir-into-cwd-of-init": (_link("/usr/lib64", "/proc/1/cwd/{outside}"), "Too many levels"),
    "libdir-is-proc": (_link("/usr/lib64", "/proc"), "leads into procfs"),
    "libdir-is-proc-sys": (_link("/usr/lib64", "/proc/sys/kernel"), "leads into procfs"),
    "libdir-loop": (_link("/usr/lib64", "/usr/lib64"), "Too many levels"),
    "firmware-link-out": (_link(FIRMWARE, UP + "{outside}/x"), "dangling link"),
    "library-link": (_link(f"/usr/lib64/{CUDA}", "{outside}/file"), "symbolic link"),
    "node-link-to-passwd": (_link("/dev/nvidiactl", "/etc/passwd"), "symbolic link"),
    "node-dangling-link": (_link("/dev/nvidia3", "{outside}/new"), "symbolic link"),
    "node-fifo": (_fifo("/dev/nvidia3"), "fifo"),
    "cache-link-out": (_link("/etc/ld.so.cache", "{outside}/file"), "symbolic link"),
    "cache-fifo": (_fifo("/etc/ld.so.cache"), "fifo"),
    "cache-huge": (_huge("/etc/ld.so.cache"), "larger than"),
    "program-link-to-busybox": (_link("/usr/bin/nvidia-smi", "/bin/busybox"), "symbolic link"),
}


@pytest.fixture
def outside(place: Path) -> Path:
    """A directory of the host with a file in it."""
    directory = place / "outside"
    directory.mkdir(mode=0o777)
    (directory / "file").write_text("the host's own\n")
    return directory


def _untouched(outside: Path) -> bool:
    return os.listdir(outside) == ["file"] and (outside / "file").read_text() == "the host's own\n"


@pytest.mark.parametrize(("prepare", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_and_the_host_untouched(each_runtime, bundles, outside, prepare, reason):
    bundle = bundles(each_runtime)
    bundle.config["mounts"] = [m for m in bundle.config["mounts"] if m["destination"] != "/dev"]
    if prepare is not REFUSED["etc-link-out"][0]:
        bundle.put("/etc/passwd", b"the image's own\n")
    prepare(bundle, outside)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    error = each_runtime.fail(bundle)

    assert reason in error
    assert _untouched(outside)
    passwd = bundle.root / "etc/passwd"
    assert passwd.is_symlink() or not passwd.exists() or passwd.read_bytes() == b"the image's own\n"


@pytest.mark.parametrize("target", ["{outside}", UP + "{outside}"], ids=["absolute", "dots"])
def test_a_link_that_leads_somewhere_inside_stays_inside(each_runtime, bundles, outside, target):
    """The same path exists in the root: that one is meant."""
    bundle = bundles(each_runtime)
    inside = bundle.root / str(outside)[1:]
    inside.mkdir(parents=True)
    bundle.link("/usr/lib64", target.format(outside=outside))
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/probe", "type", f"/usr/lib64/{CUDA}")

    assert each_runtime.start(bundle).answers == {f"type /usr/lib64/{CUDA}": "file"}
    assert CUDA in os.listdir(inside)
    assert _untouched(outside)


def test_a_musl_path_file_that_leads_out(each_door, bundles, outside):
    bundle = bundles(each_door)
    machine = os.uname().machine
    bundle.put(f"/lib/ld-musl-{machine}.so.1", b"\x7fELF")
    bundle.link(f"/etc/ld-musl-{machine}.path", f"{outside}/file")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    assert "symbolic link" in each_door.fail(bundle)
    assert _untouched(outside)


def test_a_root_that_is_the_hosts_own(each_door, bundles):
    """root.path that leads to / is never changed, whoever runs the hook."""
    bundle = bundles(each_door)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.write()
    look = "mnt=$(readlink /proc/self/ns/mnt); exec unshare --mount sleep 60"
    sleeper = each_door.view.run("sh", "-c", f"{look} >/dev/null 2>&1 </dev/null & echo $!")
    pid = int(sleeper.stdout)
    try:
        bundle.config["root"]["path"] = "/"
        bundle.write()
        result = bundle.call_hook(pid)
    finally:
        os.kill(pid, 9)

    assert result.returncode == 1
    assert "host's" in result.stderr
