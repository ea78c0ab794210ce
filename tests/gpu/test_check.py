"""The GPU check against a simulated driver: it finds what is right, and what is wrong."""

import json
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvhook.sim import driver

HERE = Path(__file__).resolve().parent
LINK = Path("/run/nvhook-gpu-check")
NEEDS_KERNEL_DRIVER = {"list-as-nvidia-smi", "gpu-proc-params", "gpu-proc-gpus"}
# Does nothing of what a hook should do, and three things that it must not do.
CARELESS = """#!/bin/sh
[ "$1" = hook ] || exec "$0.real" "$@"
bundle=$(sed -n 's/.*"bundle" *: *"\\([^"]*\\)".*/\\1/p')
: >"$bundle/rootfs/left-behind"
mkdir -p "$(dirname "$0")/$(basename "$bundle")-left" MOUNT
mountpoint -q MOUNT || mount --bind /proc MOUNT
"""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        Path("/proc/driver/nvidia").exists(), reason="a real driver is here: run check.sh itself"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, require: Callable[[bool, str], None]) -> Path:
    """The packed folder; made once."""
    require(os.geteuid() == 0, "containers need root")
    place = tmp_path_factory.mktemp("gpu")
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "busybox-static"]
    reached = subprocess.run(command, cwd=place, capture_output=True, check=False)
    require(reached.returncode == 0, "packing needs apt and its network")
    packed = place / "folder"
    done = subprocess.run([HERE / "pack.sh", packed], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{packed}: ")
    assert sum(path.stat().st_size for path in packed.rglob("*")) < 60 << 20
    return packed


@pytest.fixture
def sim(tmp_path: Path) -> Path:
    """A simulated driver's directory."""
    return Path(driver.create(str(tmp_path / "sim"))).parent


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever the report says, the machine is as it was."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    yield
    assert not list(temporary.iterdir())
    assert not LINK.is_symlink()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    for place in ("nvhook-gpu-check-*", "*/nvhook-gpu-check-*"):
        assert not list(Path("/sys/fs/cgroup").glob(place))


def _start(folder: Path, config: Path, tmp_path: Path) -> "subprocess.Popen[str]":
    # An environment that nothing leaks into: the folder must bring what it needs.
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": str(tmp_path / "tmp")}
    return subprocess.Popen(
        [folder / "check.sh", "--driver-config", config],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Tests that are started in the background ignore it, and so would the check.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def _report(folder: Path, config: Path, tmp_path: Path) -> tuple[int, dict[str, Any]]:
    with _start(folder, config, tmp_path) as process:
        out, err = process.communicate(timeout=180)
    assert out, err
    report: dict[str, Any] = json.loads(out)
    report["status"] = {check["name"]: check["status"] for check in report["checks"]}
    report["seen"] = {check["name"]: check["seen"] for check in report["checks"]}
    return process.returncode, report


def _with(report: dict[str, Any], status: str) -> set[str]:
    return {name for name, found in report["status"].items() if found == status}


def test_all_that_needs_no_kernel_driver_is_ok(folder: Path, sim: Path, tmp_path: Path) -> None:
    code, report = _report(folder, sim / "config.toml", tmp_path)
    assert _with(report, "not run") == NEEDS_KERNEL_DRIVER, report["seen"]
    assert _with(report, "failed") == set(), report["seen"]
    assert code == 3
    assert report["counts"] == {"ok": 18, "failed": 0, "not run": 3}
    assert report["timing"]["median_ms"]["container with one GPU"] > 0


def test_one_gpu_machine_tries_a_number_that_has_no_gpu(folder: Path, tmp_path: Path) -> None:
    config = Path(driver.create(str(tmp_path / "sim"), gpus=1, minors=(3,)))
    _, report = _report(folder, config, tmp_path)
    assert _with(report, "failed") == set(), report["seen"]
    assert "nvidia4 195:4 EPERM" in report["seen"]["gpu-denied"]


def test_missing_device_rules_are_seen(folder: Path, sim: Path, tmp_path: Path) -> None:
    config = sim / "config.toml"
    config.write_text(config.read_text() + "device-rules = false\n")
    code, report = _report(folder, config, tmp_path)
    assert code == 1
    wrong = {"gpu-nvidia-smi", "gpu-cuda", "gpu-nodes", "gpu-denied", "plan", "none-container"}
    assert _with(report, "failed") == wrong, report["seen"]
    assert "/dev/nvidia0 EPERM (host ENXIO)" in report["seen"]["gpu-nodes"]


def test_missing_libcuda_is_seen(folder: Path, sim: Path, tmp_path: Path) -> None:
    for library in sim.glob("root/usr/lib/*/libcuda.so*"):
        library.unlink()
    code, report = _report(folder, sim / "config.toml", tmp_path)
    assert code == 1
    assert report["status"]["plan"] == "failed"
    assert "libcuda" in report["seen"]["plan"]
    assert report["status"]["none-container"] == "failed"


def test_lost_gpu_is_seen(folder: Path, sim: Path, tmp_path: Path) -> None:
    text = (sim / "state").read_text()
    assert "gpu0.status=ok" in text
    (sim / "state").write_text(text.replace("gpu0.status=ok", "gpu0.status=lost"))
    # The programs carry the table: a container does not see the state file.
    for path in (sim / "root").rglob("*"):
        if path.is_file() and b"gpu0.status=ok" in (data := path.read_bytes()):
            size = data.rindex(b"NVHOOK-SIM-END")
            lost = data[:size].replace(b"gpu0.status=ok", b"gpu0.status=lost")
            path.write_bytes(lost + data[size:])
    code, report = _report(folder, sim / "config.toml", tmp_path)
    assert code == 1
    assert _with(report, "failed") >= {"gpu-cuda"}, report["seen"]


def test_container_without_its_gpu_is_seen(folder: Path, sim: Path, tmp_path: Path) -> None:
    config = sim / "config.toml"
    config.write_text(config.read_text() + "accept-envvar-when-unprivileged = false\n")
    code, report = _report(folder, config, tmp_path)
    assert code == 1
    wrong = {"gpu-nvidia-smi", "gpu-loader", "gpu-cuda", "gpu-nodes", "gpu-denied"}
    assert _with(report, "failed") >= wrong, report["seen"]


def test_hook_that_changes_what_it_must_not_is_seen(
    folder: Path, sim: Path, tmp_path: Path
) -> None:
    careless, mount = tmp_path / "careless", tmp_path / "mount"
    shutil.copytree(folder, careless)
    wheel = next(careless.glob("wheels/nvhook-*.whl"))
    with zipfile.ZipFile(wheel) as old:
        members = {name: old.read(name) for name in old.namelist()}
    launcher = next(name for name in members if name.endswith(".data/scripts/nvhook"))
    members[f"{launcher}.real"] = members[launcher]
    members[launcher] = CARELESS.replace("MOUNT", str(mount)).encode()
    with zipfile.ZipFile(wheel, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)
    code, report = _report(careless, sim / "config.toml", tmp_path)
    assert code == 1
    untouched = {"void-untouched", "unset-untouched", "unknown-gpu-refused", "host-mount-table"}
    assert _with(report, "failed") >= untouched, report["seen"]
    assert "/left-behind" in report["seen"]["void-untouched"]
    assert str(mount) in report["seen"]["host-mount-table"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_check_cleans_up(
    folder: Path, sim: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with _start(folder, sim / "config.toml", tmp_path) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "gpu-container" in line:
                break
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
