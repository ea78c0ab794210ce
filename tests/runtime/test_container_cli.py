"""nvidia-container-cli: what ctr run --gpus calls, and what scripts ask it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches

NAME = "nvidia-container-cli"
# As containerd's hook calls it, without the devices.
CONFIGURE = ("--load-kmods", "configure", "--compute", "--utility")


@pytest.fixture
def cli(place: Path, driver) -> Path:
    """The launcher under NVIDIA's name, in a directory like the one it is installed to."""
    link = place / NAME
    link.symlink_to(driver.launcher)
    return link


def call(cli: Path, settings: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["env", f"NVHOOK_CONFIG={settings}", str(cli), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("devices", "gpus"),
    [
        (["--device=1"], (1,)),
        (["--device=0,2"], (0, 2)),
        (["--device", "0", "--device=3"], (0, 3)),
        (["--device=all"], (0, 1, 2, 3)),
        ([], ()),
    ],
)
def test_a_container_gets_what_ctr_asks_for(each_engine, bundles, cli, devices, gpus):
    bundle = bundles(each_engine)
    words = " ".join([*CONFIGURE, *devices])
    command = f"NVHOOK_CONFIG={bundle.settings} {cli} {words} --pid=$pid {bundle.root}"
    bundle.config["hooks"]["prestart"] = [bundle.shell_hook(command + " </dev/null")]
    ask_everything(bundle)

    assert_reaches(bundle, each_engine.start(bundle), gpus, COMPUTE)


def test_a_strict_umask_of_the_engine_closes_nothing(runc, bundles, cli):
    bundle = bundles(runc)
    command = f"umask 077; NVHOOK_CONFIG={bundle.settings} {cli} {' '.join(CONFIGURE)} --device=1"
    hook = bundle.shell_hook(f"{command} --pid=$pid {bundle.root} </dev/null")
    bundle.config["hooks"]["prestart"] = [hook]
    bundle.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    bundle.config["process"].pop("capabilities")
    bundle.args("/bin/sh", "-c", "wc -c < /usr/lib64/libcuda.so.1")

    assert int(runc.start(bundle).stdout) > 1000


def test_a_reader_that_has_gone_is_one_line(cli, driver):
    read, write = os.pipe()
    os.close(read)
    command = ["env", f"NVHOOK_CONFIG={driver.config}", cli, "list"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"{NAME}: standard output can't be written: Broken pipe")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["configure", "--device=9", "--compute", "--pid={pid}", "/x"], "is in the host's mount"),
        (["configure", "--pid=", "/x"], "--pid must name the container's process"),
        (["configure", "--pid=2", "x"], "one absolute ROOTFS is needed"),
        (["configure", "--mig-config", "0:0", "--pid=2", "/x"], "--mig-config can only be all"),
        (["list", "--device=9"], "unknown device id 9"),
        (["list", "--nonsense"], "unknown option --nonsense"),
    ],
)
def test_what_it_can_not_do_is_one_line(cli, driver, arguments, says):
    arguments = [each.format(pid="self") if "{" in each else each for each in arguments]
    if "--pid=self" in arguments:
        with subprocess.Popen(["sleep", "10"]) as process:
            arguments = [each.replace("self", str(process.pid)) for each in arguments]
            done = call(cli, driver.config, *arguments)
            process.kill()
    else:
        done = call(cli, driver.config, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{NAME}: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_list_and_info(cli, driver):
    info = call(cli, driver.config, "info").stdout
    assert "NVRM version:   550.54.14\n" in info
    listed = [line.split()[-1] for line in info.splitlines() if line.startswith("GPU UUID")]
    assert listed == [gpu.uuid for gpu in driver.gpus]
    everything = call(cli, driver.config, "list").stdout.splitlines()
    assert {f"/dev/nvidia{gpu.minor}" for gpu in driver.gpus} <= {*everything}
    assert any(line.endswith("libcuda.so.550.54.14") for line in everything)
    some = call(cli, driver.config, "list", "--device=1", "--binaries").stdout.splitlines()
    nodes = [line for line in some if line.startswith("/dev/nvidia") and line[-1].isdigit()]
    assert nodes == [f"/dev/nvidia{driver.gpus[1].minor}"]
    assert "/usr/bin/nvidia-smi" in some
    assert not any(".so." in line for line in some)
    version = call(cli, driver.config, "--version")
    assert version.stdout.startswith(f"{NAME}: nvhook ")
    assert call(cli, driver.config, "nonsense").returncode == 2


def test_list_of_a_mig_device(cli, mig_driver):
    listed = call(cli, mig_driver.config, "list", "--device=0:1", "--binaries").stdout.splitlines()
    minor = mig_driver.gpus[0].minor
    nodes = [line for line in listed if line.startswith("/dev/") and line[-1].isdigit()]
    first = 3 + 135 * minor + 9 * 3  # GPU instance 3
    caps = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (first, first + 1)]
    assert nodes == [f"/dev/nvidia{minor}", *caps]
