"""nvhook node-labels on a simulated driver: the file, and how long it stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvhook.cli.root import main
from nvhook.sim.driver import create

MIXED = "mig.strategy=mixed"
NVHOOK = [sys.executable, "-I", "-m", "nvhook"]


@pytest.fixture
def driver(tmp_path: Path, require: Callable[[bool, str], None]) -> Path:
    require(os.geteuid() == 0, "needs root: mknod")
    create(str(tmp_path / "driver"), gpus=2, mig=("1g.10gb", "1g.10gb"), mig_gpus=(1,))
    return tmp_path / "driver"


def node_labels(driver: Path, *arguments: str, **variables: str) -> Result:
    command = ["node-labels", "--config", str(driver / "config.toml"), *arguments]
    return CliRunner().invoke(main, command, prog_name="nvhook", env=variables)


def values(text: str) -> dict[str, str]:
    return dict(line.removeprefix("nvidia.com/").split("=") for line in text.splitlines())


def test_what_nvml_tells_of_gpus_and_mig_devices(driver: Path, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    machine.write_text("DGX H100\n")
    result = node_labels(
        driver, "--oneshot", "--output", "-", "--mig-strategy", "mixed",
        "--machine-type-file", str(machine), "--no-timestamp",
    )  # fmt: skip
    assert (result.exit_code, result.stderr) == (0, "")
    given = values(result.stdout)
    expected = {
        "gpu.product": "NVIDIA-H100-80GB-HBM3",
        "gpu.count": "2",
        "gpu.memory": "81559",
        "gpu.family": "hopper",
        "gpu.machine": "DGX-H100",
        "gpu.mode": "compute",
        "mig.capable": "true",
        "mig-1g.10gb.count": "2",
        "mig-1g.10gb.memory": "10240",
        "cuda.driver-version.full": "550.54.14",
        "cuda.runtime-version.full": "12.4",
    }
    assert {name: given.get(name) for name in expected} == expected
    assert "gfd.timestamp" not in given


def test_the_file_says_what_the_plugins_configuration_offers(driver: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.yaml"
    output = tmp_path / "features.d/gfd"
    plugin.write_text(
        f"""
version: v1
flags:
  migStrategy: none
  gfd: {{oneshot: true, noTimestamp: true, outputFile: {output}}}
sharing:
  timeSlicing:
    resources: [{{name: nvidia.com/gpu, replicas: 4}}]
"""
    )
    result = node_labels(driver, CONFIG_FILE=str(plugin))
    assert (result.exit_code, result.output) == (0, "")
    given = values(output.read_text())
    assert given["gpu.replicas"] == "4"
    assert given["gpu.product"] == "NVIDIA-H100-80GB-HBM3-SHARED"
    assert given["gpu.sharing-strategy"] == "time-slicing"
    assert oct(output.stat().st_mode) == "0o100644"
    assert [path.name for path in output.parent.iterdir()] == ["gfd"]


def test_a_file_that_can_not_be_written_is_an_error(driver: Path) -> None:
    result = node_labels(driver, "--oneshot", "--output", "/proc/none/gfd")
    assert result.exit_code == 1
    assert "can't write /proc/none/gfd" in result.stderr


def test_without_a_driver_the_first_look_fails_unless_it_may_come_later(
    driver: Path, tmp_path: Path
) -> None:
    unload(driver)
    result = node_labels(driver, "--output", str(tmp_path / "gfd"))
    assert result.exit_code == 1
    assert "no NVIDIA driver is loaded" in result.stderr


def unload(driver: Path) -> None:
    """Take the kernel's part of the driver away."""
    (driver / "proc/driver/nvidia").rename(driver / "nvidia")
    (driver / "sys/module/nvidia/version").rename(driver / "version")


def load(driver: Path) -> None:
    """Put it back."""
    (driver / "nvidia").rename(driver / "proc/driver/nvidia")
    (driver / "version").rename(driver / "sys/module/nvidia/version")


@pytest.fixture
def kept(driver: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that keeps labels in tmp_path/gfd, looking twice a second."""
    arguments = ["--output", str(tmp_path / "gfd"), "--interval", "500ms", "--no-timestamp"]
    arguments += ["--fail-on-init-error=false", "--config", str(driver / "config.toml")]
    with subprocess.Popen(
        [*NVHOOK, "node-labels", *arguments], stderr=subprocess.PIPE, text=True, cwd="/"
    ) as process:
        yield process
        if process.poll() is None:
            process.kill()


def eventually(check: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not check() and time.monotonic() < end:
        time.sleep(0.05)
    return check()


def test_labels_follow_the_driver_and_go_with_the_process(
    driver: Path, tmp_path: Path, kept: subprocess.Popen[str]
) -> None:
    output = tmp_path / "gfd"
    assert eventually(output.exists)
    before = output.read_text()
    inode = output.stat().st_ino
    unload(driver)
    time.sleep(1.2)
    assert (output.read_text(), output.stat().st_ino) == (before, inode)  # it may come back
    load(driver)
    output.unlink()
    assert eventually(output.exists)
    assert output.read_text() == before
    kept.send_signal(signal.SIGHUP)
    kept.send_signal(signal.SIGTERM)
    _, errors = kept.communicate(timeout=20)
    assert kept.returncode == 0
    assert not output.exists()
    assert errors.count("\n") == 1  # told once, though it lasted
    assert "no NVIDIA driver is loaded" in errors


def test_settings_that_become_wrong_end_nothing(driver: Path, tmp_path: Path) -> None:
    plugin, output = tmp_path / "plugin.yaml", tmp_path / "gfd"
    good = "version: v1\nflags: {migStrategy: %s}\n"
    plugin.write_text(good % "mixed")
    arguments = ["--config-file", str(plugin), "--output", str(output), "--sleep-interval", "1s"]
    kept = subprocess.Popen(
        [*NVHOOK, "node-labels", "--config", str(driver / "config.toml"), *arguments],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert eventually(lambda: MIXED in text_of(output))
        plugin.write_text("version: v1\nflags: {migStrategi: none}\n")
        output.unlink()
        assert eventually(lambda: MIXED in text_of(output))  # with the last good ones
        assert kept.poll() is None
        plugin.write_text(good % "none")
        assert eventually(lambda: MIXED not in text_of(output) != "")
    finally:
        kept.terminate()
        _, errors = kept.communicate(timeout=20)
    assert kept.returncode == 0
    assert errors.count("migStrategi") == 1


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""
