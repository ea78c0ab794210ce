"""A start that is repeated from a recording gives what Python gives, in all that a container is.

NVHOOK_TEST_START=repeated does the same with every container of every test (repeated.py).
"""

import ctypes
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.create.recording import SCHEMA
from tests.runtime import repeated
from tests.runtime.bundle import Bundle
from tests.runtime.cdi_specs import generate_and_inject
from tests.runtime.engine import Engine, Handler
from tests.runtime.expectations import ALLOWED, COMPUTE, DENIED, ask_everything, assert_reaches
from tests.runtime.systemd_view import open_systemd
from tests.runtime.test_cuda_compat import NEWER, furnish
from tests.runtime.test_hostile_images import REFUSED
from tests.runtime.test_volumes import bind

MACHINE = os.uname().machine
Change = Callable[[Bundle], object]


@pytest.fixture(autouse=True)
def repeats(request, monkeypatch) -> None:
    """Start every container of these tests in the other ways, too."""
    if "once" not in request.fixturenames:
        monkeypatch.setattr(Engine, "rehearse", repeated.rehearse)


def _counted(what: str) -> int:
    return repeated.COUNTS[what]


@pytest.fixture
def replays():
    """Check that every container of a test was repeated, from its own recording and another's."""
    before = _counted(repeated.OWN), _counted(repeated.OTHER)
    yield
    after = _counted(repeated.OWN), _counted(repeated.OTHER)
    assert after > before


def _fedora(bundle: Bundle) -> None:
    """Libraries in /usr/lib64, where /lib64 leads, and a loader cache that says /lib64."""
    (bundle.root / "usr/lib64").mkdir(parents=True)
    bundle.link("/lib64", "usr/lib64")
    bundle.put("/usr/lib64/libfirst.so.1", b"")


def _debian(bundle: Bundle) -> None:
    bundle.put("/etc/debian_version", b"12.1\n")
    (bundle.root / "usr/lib32").mkdir(parents=True)


def _merged(bundle: Bundle) -> None:
    """Debian's /usr, without the directory of the 32-bit libraries: nvhook makes it."""
    bundle.put("/etc/debian_version", b"12.1\n")
    (bundle.root / "usr/lib").mkdir(parents=True)
    bundle.link("/lib", "usr/lib")
    bundle.ask("NVIDIA_DRIVER_CAPABILITIES=all")


def _musl(bundle: Bundle) -> None:
    bundle.put(f"/lib/ld-musl-{MACHINE}.so.1", b"")
    bundle.put(f"/etc/ld-musl-{MACHINE}.path", b"/lib:/opt/lib\n")


def _read_only(bundle: Bundle) -> None:
    bundle.config["root"]["readonly"] = True


def _volumes(bundle: Bundle) -> None:
    for name in ("data", "models"):
        volume = bundle.directory / name
        volume.mkdir()
        bind(bundle, volume, f"/srv/{name}")


def _mask(bundle: Bundle) -> None:
    bundle.show_proc_driver()


def _privileged(bundle: Bundle) -> None:
    bundle.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]


def _files(bundle: Bundle) -> None:
    """Some of it is there: another link, a cache of another owner, a file to mount on."""
    bundle.link("/usr/lib64/libcuda.so.1", "libcuda.so.1.1")
    os.chown(bundle.put("/etc/ld.so.cache", b"", 0o600), 7, 7)
    bundle.put("/usr/bin/nvidia-smi", b"the image's own", 0o755)


CHANGES: dict[str, Change] = {
    "plain": lambda _: None,
    "debian-like": _debian,
    "fedora-like": _fedora,
    "merged-usr": _merged,
    "musl": _musl,
    "compat": lambda bundle: furnish(bundle, NEWER),
    "read-only": _read_only,
    "user-namespace": lambda bundle: bundle.use_user_namespace(owned=True),
    "user-namespace-foreign-image": lambda bundle: bundle.use_user_namespace(owned=False),
    "volumes": _volumes,
    "mask": _mask,
    "allow-all": _privileged,
    "files": _files,
    "features": lambda bundle: bundle.ask("NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0,2"),
    "every-capability": lambda bundle: bundle.ask("NVIDIA_DRIVER_CAPABILITIES=all"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.usefixtures("replays")
def test_the_hook(started_by, bundles, change) -> None:
    bundle = bundles(started_by)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    change(bundle)
    if change is _privileged:
        bundle.args("/probe", "open", "/dev/nvidia3")
        assert started_by.start(bundle).answers == {"open /dev/nvidia3": ALLOWED}
        return
    user = "uidMappings" in bundle.config["linux"]
    ask_everything(bundle, mknod=change is not _read_only and not user)
    every = change in {_merged, CHANGES["every-capability"]}
    modeset = ("nvidia-modeset",) if every else ()

    assert_reaches(bundle, started_by.start(bundle), (1,), (*COMPUTE, *modeset))


@pytest.mark.usefixtures("replays")
def test_every_runtime_and_kind_of_cgroup(each_engine, bundles) -> None:
    bundle = bundles(each_engine)
    bundle.show_proc_driver()
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2")
    ask_everything(bundle)

    result = each_engine.start(bundle)

    assert_reaches(bundle, result, (0, 2), COMPUTE)
    assert repeated.REPLAYED in result.log


@pytest.mark.usefixtures("replays")
def test_every_handler(each_handler, bundles) -> None:
    bundle = bundles(each_handler)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2")
    ask_everything(bundle)

    assert_reaches(bundle, each_handler.start(bundle), (0, 2), COMPUTE)


@pytest.mark.usefixtures("replays")
@pytest.mark.parametrize("asked", ["0:1", "all"])
def test_mig(started_by, bundles, mig_driver, asked) -> None:
    bundle = bundles(started_by, host=mig_driver)
    bundle.ask(f"NVIDIA_VISIBLE_DEVICES={asked}")
    bundle.args("/probe", "open", "/dev/nvidiactl")

    assert started_by.start(bundle).answers == {"open /dev/nvidiactl": ALLOWED}


@pytest.mark.usefixtures("replays")
def test_the_hook_of_a_cdi_spec(each_engine, bundles, place) -> None:
    bundle = bundles(each_engine)
    bundle.config.pop("hooks")
    generate_and_inject(bundle, place, ["1"])
    ask_everything(bundle)

    result = each_engine.start(bundle)

    assert_reaches(bundle, result, (1,), (*COMPUTE, "nvidia-modeset"))


@pytest.mark.usefixtures("replays")
def test_a_real_image(started_by, bundles, debian) -> None:
    bundle = bundles(started_by, debian)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/sh", "-c", "nvidia-smi -L | wc -l; ldconfig -p | grep -c libcuda.so.1")

    assert started_by.start(bundle).stdout.split() == ["1", "1"]


@pytest.mark.usefixtures("replays")
def test_an_engine_with_a_strict_umask(runc, bundles) -> None:
    """What is made in the container must be open to its users."""
    runc.command = ["sh", "-c", 'umask 077; exec "$@"', "sh", *runc.command]
    bundle = bundles(runc)
    bundle.show_proc_driver()
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/stat", "-c", "%a", "/usr/lib64", "/etc/ld.so.cache", "/proc/driver/nvidia")

    assert runc.start(bundle).stdout.split() == ["755", "644", "555"]


@pytest.mark.usefixtures("replays")
@pytest.mark.parametrize("options", ["noexec,nodiratime", "nodev,nosuid,noatime"])
def test_a_driver_on_a_mount_with_options(started_by, bundles, driver, options) -> None:
    """Those of the host's mount don't count, but for when files were read."""
    view, directory = started_by.view, driver.directory
    view.run("mount", "--bind", directory, directory)
    try:
        view.run("mount", "-o", f"remount,bind,{options}", directory)
        bundle = bundles(started_by)
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        bundle.args("/usr/bin/nvidia-smi", "-L")
        assert "GPU 0: " in started_by.start(bundle).stdout
    finally:
        view.run("umount", directory)


# ---- images that Python refuses, when a good one has left a recording


@pytest.mark.parametrize(("prepare", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_hostile_image(runc, bundles, place, prepare, reason) -> None:
    outside = place / "outside"
    outside.mkdir(mode=0o777)
    (outside / "file").write_text("the host's own\n")
    bundle = bundles(runc)
    bundle.config["mounts"] = [m for m in bundle.config["mounts"] if m["destination"] != "/dev"]
    prepare(bundle, outside)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    recorded = _counted(repeated.ELSEWHERE)

    error = runc.fail(bundle)

    assert _counted(repeated.ELSEWHERE) == recorded + 1, "nothing that could be repeated"
    assert reason in error
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "the host's own\n"


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(-100, bytes(one), -100, bytes(other), 2)  # RENAME_EXCHANGE
    assert done == 0, os.strerror(ctypes.get_errno())


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("where", ["usr/lib64", "etc", "usr/bin/nvidia-smi", "dev/nvidia3"])
def test_an_image_that_changes_meanwhile(runc, bundles, place, where) -> None:
    """Another process swaps a path for a link out of the image, all the time."""
    outside = place / "outside"
    outside.mkdir(mode=0o777)
    bundle = bundles(runc)
    bundle.config["mounts"] = [m for m in bundle.config["mounts"] if m["destination"] != "/dev"]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/probe")
    runc.prepare(bundle)
    repeated.settle(bundle)
    runc.start(bundle)
    path, link = bundle.root / where, bundle.root / "link"
    link.symlink_to(outside)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            _exchange(path, link)

    started = []
    for _ in range(12):
        thread = threading.Thread(target=swap)
        thread.start()
        result = runc.run(bundle)
        ended.set()
        thread.join()
        ended.clear()
        started.append(result.returncode)
        assert os.listdir(outside) == []
    assert {*started} <= {0, 1}


# ---- what is not repeated, because the next container is in another place


@pytest.mark.usefixtures("once")
def test_a_second_hook_masks_nothing_again(runc, bundles) -> None:
    """Also where everything else of it would be repeated: the image's cache is known, too."""
    bundle = bundles(runc)
    bundle.show_proc_driver()
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/grep", "-c", "driver/nvidia", "/proc/mounts")
    runc.prepare(bundle)
    repeated.settle(bundle)
    for _ in range(2):  # the second with a cache that has the libraries
        assert runc.start(bundle).stdout == "2\n"
    bundle.log.unlink()
    bundle.config["hooks"]["prestart"].append(bundle.hook())

    result = runc.start(bundle)

    assert result.stdout == "2\n"  # the mask, and the GPU's directory in it
    assert result.log.count(repeated.REPLAYED) == 1


@pytest.mark.usefixtures("once")
def test_a_unit_of_systemd_after_a_container_that_was_none(
    real_host, require, place, bundles
) -> None:
    """Its devices have to be told to systemd, or the next daemon-reload takes them away."""
    require(shutil.which("systemctl") is not None, "needs systemd")
    views = open_systemd()
    systemd = next(views)
    try:
        plain = Engine("runc", Path(shutil.which("runc") or ""), systemd, place / "state")
        bundle = bundles(plain)
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        bundle.args("/probe")
        plain.prepare(bundle)
        repeated.settle(bundle)
        for _ in range(3):  # the second with a cache that has the libraries
            result = plain.start(bundle)
        assert repeated.REPLAYED in result.log
        plain.command.append("--systemd-cgroup")
        bundle.config["linux"]["cgroupsPath"] = f"system.slice:nvhook:{bundle.name}"
        bundle.args("/bin/sleep", "60")
        plain.start_detached(bundle)
        try:
            systemd.run("systemctl", "daemon-reload")
            words = ["open", "/dev/nvidia3", "open", "/nodes/nvidia2"]
            done = plain.call(bundle, "exec", bundle.name, "/probe", *words)
        finally:
            plain.call(bundle, "delete", "-f", bundle.name)
    finally:
        views.close()
    assert done.stdout.splitlines() == [
        f"open /dev/nvidia3 = {ALLOWED}",
        f"open /nodes/nvidia2 = {DENIED}",
    ]


@pytest.mark.usefixtures("once")
def test_another_door_or_argument_has_its_own(runc, handler, bundles) -> None:
    """What nvhook-runtime leaves to its hook is less than what the hook does alone."""
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle)
    handler.prepare(bundle)
    repeated.settle(bundle)
    logs = []
    for engine in (runc, handler, runc, handler):
        bundle.config["hooks"] = {"prestart": [bundle.hook()]}
        bundle.log.unlink(missing_ok=True)
        shutil.rmtree(bundle.root)  # noqa: TID251 - made by this test
        bundle.use_busybox()
        result = engine.start(bundle)
        assert_reaches(bundle, result, (1,), COMPUTE)
        logs.append(repeated.REPLAYED in result.log)
    assert isinstance(handler, Handler)
    assert logs == [False, False, True, True]


@pytest.mark.usefixtures("once")
def test_a_recording_that_is_spoilt_is_not_used(runc, bundles) -> None:
    """Cut off, of another schema, another's, open to others: Python starts, and writes it again."""
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/probe", "open", "/dev/nvidia3")
    runc.prepare(bundle)
    repeated.settle(bundle)
    directory = repeated.recordings(runc)
    spoilers: list[Callable[[Path], object]] = [
        lambda path: path.write_bytes(path.read_bytes()[:-4]),
        lambda path: path.write_bytes(path.read_bytes() + b"end\n"),
        lambda path: path.write_bytes(
            path.read_bytes().replace(SCHEMA.encode(), b"nvhook-recording 0")
        ),
        lambda path: os.chown(path, 7, 7),
        lambda path: path.unlink() or path.symlink_to("/dev/zero"),
        lambda path: path.unlink() or os.mkfifo(path),
        lambda path: directory.chmod(0o755),
        lambda path: os.chown(directory, 7, 7),
        lambda path: [each.unlink() for each in directory.glob("made-*")],
    ]
    for number, spoil in enumerate(spoilers):
        repeated.forget(directory)
        runc.start(bundle)
        (recording,) = directory.glob("*.0")
        spoil(recording)
        bundle.log.unlink()
        result = runc.start(bundle)
        assert repeated.REPLAYED not in result.log, number
        assert result.answers == {"open /dev/nvidia3": ALLOWED}


@pytest.mark.usefixtures("once")
def test_what_is_wrong_with_the_log_stops_nothing(runc, bundles) -> None:
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/probe", "open", "/dev/nvidia3")
    runc.prepare(bundle)
    repeated.settle(bundle)
    for kind in ("file", "directory", "fifo", "link"):
        if bundle.log.is_dir():
            bundle.log.rmdir()
        else:
            bundle.log.unlink(missing_ok=True)
        if kind == "directory":
            bundle.log.mkdir()
        elif kind == "fifo":
            os.mkfifo(bundle.log)
        elif kind == "link":
            bundle.log.symlink_to(bundle.directory / "config.json")
        before = json.loads((bundle.directory / "config.json").read_text())
        bundle.write()
        done = runc.call(bundle, "run", "-b", bundle.directory, bundle.name)
        assert done.stdout == f"open /dev/nvidia3 = {ALLOWED}\n", done.stderr
        assert json.loads((bundle.directory / "config.json").read_text()) == before
    bundle.log.unlink()
