"""Bad input to the hook: one clear line, quickly, and nothing left behind."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.runtime.bundle import Bundle

LIMIT = 5  # seconds; a hang, not a slow machine


@pytest.fixture(params=["asks", "does-not-ask"])
def asking(request):
    """Whether the container wants a GPU."""
    return request.param == "asks"


def _bundle(bundles, runc, asking: bool) -> Bundle:
    bundle = bundles(runc)
    if asking:
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.write()
    return bundle


def _refused(
    bundle: Bundle, result: subprocess.CompletedProcess[str], before: object, *words: str
) -> None:
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("nvhook: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert len(result.stderr) <= 300
    assert all(word in result.stderr for word in words), result.stderr
    assert bundle.tree() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("state is empty",)),
        ("   \n", ("state is empty",)),
        ('{"ociVersion": "1.0.2", "id": "x", "pid": 12', ("state",)),
        ("not json", ("state",)),
        ("[]", ("state is not an object",)),
        ('{"id": "x", "pid": 99, "bundle": "relative"}', ("not an absolute path",)),
        ('{"id": "x", "pid": 99}', ("no bundle",)),
        ('{"id": "x", "pid": "99", "bundle": "/"}', ("pid is not a process number",)),
        ("\0" * 4096, ("state",)),
        ("[" * 100_000, ("state",)),
        ("x" * (17 << 20), ("state is larger than 1048576 bytes",)),
        (" " * (1 << 20) + "{}", ("state is larger than 1048576 bytes",)),
    ],
    ids=[
        "empty",
        "blank",
        "truncated",
        "text",
        "list",
        "relative-bundle",
        "no-bundle",
        "pid-is-text",
        "zeros",
        "nested",
        "17-MiB",
        "over-1-MiB",
    ],
)
def test_a_broken_state(bundles, runc, text, words):
    bundle = _bundle(bundles, runc, asking=True)
    before = bundle.tree()

    _refused(bundle, bundle.call_hook_with(text, LIMIT), before, *words)


def test_a_missing_bundle(bundles, runc):
    bundle = _bundle(bundles, runc, asking=True)
    state = json.dumps(
        {"ociVersion": "1.0.2", "id": "x", "pid": os.getpid(), "bundle": "/no/such/dir"}
    )

    _refused(
        bundle,
        bundle.call_hook_with(state, LIMIT),
        bundle.tree(),
        "/no/such/dir/config.json",
        "No such file",
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"process": {}}', b"\xff\xfe\x00", b"[" * 100_000],
    ids=["empty", "truncated", "list", "no-root", "not-utf8", "nested"],
)
def test_a_broken_config(bundles, runc, content):
    """Nothing in it can be about a GPU, or it can't be read: no GPU is asked for, or an error."""
    bundle = _bundle(bundles, runc, asking=True)
    before = bundle.tree()
    text = (b"NVIDIA_VISIBLE_DEVICES " + content) if content else content
    (bundle.directory / "config.json").write_bytes(text)

    _refused(bundle, bundle.call_hook(os.getpid()), before, "config.json")


def test_a_config_of_100_mb(bundles, runc, asking):
    bundle = _bundle(bundles, runc, asking)
    before = bundle.tree()
    bundle.config["annotations"] = {"filler": "x" * (100 << 20)}
    bundle.write()

    result = bundle.call_hook(os.getpid())

    (bundle.directory / "config.json").unlink()
    if asking:
        _refused(bundle, result, before, "config.json", "more than the limit")
    else:
        assert (result.returncode, result.stderr) == (0, "")


def test_a_config_that_is_a_fifo(bundles, runc):
    bundle = _bundle(bundles, runc, asking=True)
    before = bundle.tree()
    (bundle.directory / "config.json").unlink()
    os.mkfifo(bundle.directory / "config.json")

    _refused(bundle, bundle.call_hook(os.getpid()), before, "config.json")


def test_a_process_that_has_gone(bundles, runc, asking):
    bundle = _bundle(bundles, runc, asking)
    before = bundle.tree()
    gone = subprocess.Popen(["true"])
    gone.wait()

    result = bundle.call_hook(gone.pid)

    if asking:
        _refused(bundle, result, before, f"process {gone.pid} can't be opened", "ended")
    else:
        assert (result.returncode, result.stderr) == (0, "")


def test_a_process_of_the_host(bundles, runc, asking):
    """A recycled pid: a process in the host's own mount namespace is never touched."""
    bundle = _bundle(bundles, runc, asking)
    before = bundle.tree()

    result = bundle.call_hook(runc.view.pid)

    if asking:
        _refused(bundle, result, before, "host's mount namespace")
    else:
        assert (result.returncode, result.stderr) == (0, "")


def test_a_zombie(bundles, runc):
    """The container's process has died, but nobody has waited for it yet."""
    bundle = _bundle(bundles, runc, asking=True)
    before = bundle.tree()
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        result = bundle.call_hook(zombie.pid)

    _refused(bundle, result, before, f"{zombie.pid}")


@pytest.mark.parametrize("pid", [0, 1])
def test_a_later_stage(bundles, runc, pid):
    """createContainer and later stages name pid 1 or 0, which would be the host's init."""
    bundle = _bundle(bundles, runc, asking=True)

    _refused(bundle, bundle.call_hook(pid), bundle.tree(), "pid", "prestart or createRuntime")


def _without_driver(bundle: Bundle, place: Path) -> None:
    empty = place / "empty"
    (empty / "proc").mkdir(parents=True)
    (empty / "proc/devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n")
    paths = dict.fromkeys(("driver_root", "dev_root", "sys_root"), f'"{empty}"')
    paths |= {"proc_root": f'"{empty}/proc"', "state_directory": f'"{place}/state-of-nvhook"'}
    bundle.driver.configuration(bundle.settings, bundle.log, **paths)


@pytest.mark.parametrize(
    "devices", ["all", "0", "none", "GPU-0badcafe-0000-0000-0000-000000000000"]
)
def test_no_driver_and_a_container_that_asks(each_runtime, bundles, place, devices):
    bundle = bundles(each_runtime)
    bundle.ask(f"NVIDIA_VISIBLE_DEVICES={devices}")
    _without_driver(bundle, place)

    error = each_runtime.fail(bundle)

    assert "no" in error
    assert "hint" in error


def test_no_driver_and_a_container_that_does_not_ask(each_engine, bundles, place):
    bundle = bundles(each_engine)
    _without_driver(bundle, place)
    bundle.args("/probe", "open", "/nodes/nvidia0")

    assert each_engine.start(bundle).answers == {"open /nodes/nvidia0": "EPERM"}


def test_a_broken_configuration_and_a_container_that_does_not_ask(each_engine, bundles):
    bundle = bundles(each_engine)
    bundle.settings.write_text("no such syntax")
    bundle.args("/probe", "open", "/nodes/nvidia0")

    assert each_engine.start(bundle).answers == {"open /nodes/nvidia0": "EPERM"}


@pytest.mark.parametrize(
    "variables",
    [
        ("NVIDIA_VISIBLE_DEVICES=void,all", "CUDA_VERSION=12.4"),
        ("NVIDIA_VISIBLE_DEVICES=void", "CUDA_VERSION=12.4"),
        ("CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"),
    ],
    ids=["list-with-void", "void", "cuda-image"],
)
def test_a_broken_configuration_and_an_image_that_could_ask(runc, bundles, variables):
    """Python starts for the list, which it alone reads. None can become a GPU container."""
    bundle = bundles(runc)
    bundle.settings.write_text("log-lvel = 'info'")
    bundle.ask(*variables)
    bundle.args("/probe", "open", "/nodes/nvidia0")

    assert runc.start(bundle).answers == {"open /nodes/nvidia0": "EPERM"}


@pytest.mark.parametrize("value", ["", "void"])
def test_a_broken_installation_and_a_container_of_another_injector(runc, bundles, place, value):
    """The launcher alone decides: CDI and DRA set void. There is no package beside this copy."""
    bundle = bundles(runc)
    launcher = place / "bin/nvhook"
    launcher.parent.mkdir()
    shutil.copy(bundle.driver.launcher, launcher)
    bundle.config["hooks"]["prestart"][0]["path"] = str(launcher)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=" + value)
    bundle.args("/probe", "open", "/nodes/nvidia0")

    assert runc.start(bundle).answers == {"open /nodes/nvidia0": "EPERM"}

    bundle.ask("NVIDIA_VISIBLE_DEVICES=void,0")
    assert "its Python package is missing" in runc.run(bundle).stderr


def test_a_hook_without_rights_says_so(runc, bundles):
    """As a rootless engine would start it: one line, also in the log."""
    bundle = _bundle(bundles, runc, asking=True)
    hook = bundle.config["hooks"]["prestart"][0]
    drop = ["capsh", "--drop=cap_sys_chroot", "--", "-c", 'exec "$0" "$@"', hook["path"]]
    hook |= {"path": shutil.which("capsh"), "args": [*drop, *hook["args"][1:]]}

    result = runc.run(bundle)

    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert "the container's mount namespace can't be entered" in result.error


def test_a_strict_umask_of_the_engine_closes_nothing(runc, bundles):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    bundle.config["process"].pop("capabilities")
    bundle.args("/bin/sh", "-c", "wc -c < /usr/lib64/libcuda.so.1")
    mask = os.umask(0o077)
    try:
        result = runc.start(bundle)
    finally:
        os.umask(mask)

    assert int(result.stdout) > 1000


@pytest.mark.parametrize("text", ["unknown-key = 1\n", "log-level = \n", "driver-root = 7\n"])
def test_a_broken_configuration(runc, bundles, text):
    bundle = _bundle(bundles, runc, asking=True)
    before = bundle.tree()
    bundle.settings.write_text(text)

    _refused(bundle, bundle.call_hook(os.getpid()), before, "nvhook.toml")


def test_a_library_that_vanished_is_named(runc, bundles, place):
    """The inventory remembers a file that is gone: an error, not half a GPU."""
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    dev = place / "dev"
    dev.mkdir()
    changes = {"dev_root": f'"{dev}"', "state_directory": f'"{place}/state-of-nvhook"'}
    bundle.driver.configuration(bundle.settings, bundle.log, **changes)

    error = runc.fail(bundle)

    assert "nvidiactl" in error
    assert "missing on the host" in error


def test_a_log_that_cannot_be_written_stops_nothing(runc, bundles, driver):
    bundle = bundles(runc)
    driver.configuration(bundle.settings, Path("/proc/no/such/log"))
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    node = f"/dev/nvidia{driver.gpus[1].minor}"
    bundle.args("/probe", "open", node)

    assert runc.start(bundle).answers == {f"open {node}": "ENXIO"}


@pytest.mark.parametrize(
    "arguments", [[], ["poststart"], ["prestart", "createRuntime"], ["prestart", "--what"]]
)
def test_usage(driver, arguments):
    done = subprocess.run(
        [driver.launcher, "hook", *arguments],
        input="{}",
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
