"""What an image requires of the host, and what it asks for beside GPUs, in real containers."""

import subprocess

import pytest

from tests.runtime.expectations import ALLOWED, DENIED

CUDA = "NVIDIA_REQUIRE_CUDA"


def test_an_image_for_a_newer_cuda_is_refused(started_by, bundles):
    bundle = bundles(started_by)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", f"{CUDA}=cuda>=12.5 brand=tesla,driver>=550")
    bundle.args("/probe", "open", "/dev/nvidia2")

    error = started_by.fail(bundle)

    assert "unsatisfied condition: cuda>=12.5 (or 1 others)" in error
    assert "driver 550.54.14 with CUDA 12.4" in error
    assert "NVIDIA_DISABLE_REQUIRE=1" in error


@pytest.mark.parametrize(
    "variables",
    [
        [f"{CUDA}=cuda>=12.5 brand=nvidia,driver>=550,arch>=9.0"],
        [f"{CUDA}=cuda>=99", "NVIDIA_DISABLE_REQUIRE=1"],
        ["CUDA_VERSION=12.4.1"],
    ],
    ids=["satisfied", "switched-off", "legacy-image"],
)
def test_an_image_whose_requirement_holds_starts(started_by, bundles, variables):
    bundle = bundles(started_by)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", *variables)
    bundle.args("/probe", "open", "/dev/nvidia2")

    assert started_by.start(bundle).answers == {"open /dev/nvidia2": ALLOWED}


def test_the_plan_of_a_bundle_checks_and_lists_requirements(handler, bundles, driver):
    bundle = bundles(handler)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", f"{CUDA}=cuda>=12.4")
    command = [str(driver.launcher), "plan", "--bundle", str(bundle.directory)]
    command += ["--config", str(bundle.settings)]
    bundle.write()
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"satisfied: {CUDA} cuda>=12.4" in shown.stdout

    bundle.ask(f"{CUDA}=cuda>=12.5")
    bundle.write()
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "unsatisfied condition: cuda>=12.5" in refused.stderr


def test_the_command_line_of_nvidia_checks_requirements(runc, bundles, driver, place):
    bundle = bundles(runc)
    link = place / "nvidia-container-cli"
    link.symlink_to(driver.launcher)
    call = f"{link} configure --device=0 --compute '--require=cuda>=12 brand=x' --require=%s"
    script = f"NVHOOK_CONFIG={bundle.settings} {call} --pid=$pid {bundle.root} </dev/null"
    bundle.args("/probe", "open", "/dev/nvidia2")
    bundle.config["hooks"]["prestart"] = [bundle.shell_hook(script % "driver==1")]
    assert "invalid expression 'driver==1' in --require" in runc.run(bundle).stderr
    bundle.config["hooks"]["prestart"] = [bundle.shell_hook(script % "'driver>=551'")]
    assert "unsatisfied condition: driver>=551" in runc.run(bundle).stderr
    bundle.config["hooks"]["prestart"] = [bundle.shell_hook(script % "'driver>=550'")]
    assert runc.start(bundle).answers == {"open /dev/nvidia2": ALLOWED}


FEATURE_NODES = {
    "NVIDIA_GDS=enabled": ["nvidia-fs0", "nvidia-fs1"],
    "NVIDIA_MOFED=enabled": ["infiniband/uverbs0", "infiniband/uverbs1", "infiniband/rdma_cm"],
    "NVIDIA_GDRCOPY=enabled": ["gdrdrv"],
    "NVIDIA_NVSWITCH=enabled": ["nvidia-nvswitchctl", "nvidia-nvswitch0"],
    "NVIDIA_IMEX_CHANNELS=0,2": [f"nvidia-caps-imex-channels/channel{n}" for n in (0, 2)],
}
EVERY_NODE = [name for names in FEATURE_NODES.values() for name in names]
EVERY_NODE.append("nvidia-caps-imex-channels/channel1")


def _openings() -> list[str]:
    return [word for name in EVERY_NODE for word in ("open", f"/dev/{name}")]


@pytest.mark.parametrize("variable", FEATURE_NODES)
def test_a_feature_is_given_and_no_other(started_by, bundles, variable):
    bundle = bundles(started_by)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", variable)
    bundle.args("/probe", *_openings())

    answers = started_by.start(bundle).answers

    given = FEATURE_NODES[variable]
    assert answers == {
        f"open /dev/{name}": ALLOWED if name in given else "ENOENT" for name in EVERY_NODE
    }


def test_a_feature_that_was_not_asked_for_stays_closed(started_by, bundles, driver):
    status = (driver.directory / "dev/gdrdrv").stat()
    major, minor = str(status.st_rdev >> 8), str(status.st_rdev & 0xFF)
    bundle = bundles(started_by)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDRCOPY=disabled")
    bundle.args("/probe", "mknod", "/made", major, minor, "open", "/made")

    assert started_by.start(bundle).answers == {"mknod /made": "OK", "open /made": DENIED}


def test_the_files_of_gds_are_there(started_by, bundles):
    bundle = bundles(started_by)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled")
    bundle.args("/bin/cat", "/etc/cufile.json", "/run/udev/data/c195:0")

    assert started_by.start(bundle).stdout == "{}\nI:1\n"


def test_channels_of_a_volume_mount_list(started_by, bundles):
    bundle = bundles(started_by)
    directory = "/var/run/nvidia-container-devices"
    for name in ("0", "imex/1"):
        bundle.config["mounts"].append(
            {
                "destination": f"{directory}/{name}",
                "type": "bind",
                "source": "/dev/null",
                "options": ["rbind"],
            }
        )
    with bundle.settings.open("a") as settings:
        settings.write("accept-volume-mounts = true\naccept-envvar-when-unprivileged = false\n")
    bundle.ask("NVIDIA_IMEX_CHANNELS=0")
    bundle.args("/probe", *_openings()[-2:], "open", "/dev/nvidia-caps-imex-channels/channel0")

    assert started_by.start(bundle).answers == {
        "open /dev/nvidia-caps-imex-channels/channel1": ALLOWED,
        "open /dev/nvidia-caps-imex-channels/channel0": "ENOENT",
    }


def test_a_channel_the_host_lacks_is_refused(started_by, bundles):
    bundle = bundles(started_by)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=9")
    bundle.args("/probe", "open", "/dev/nvidia2")

    assert "IMEX channel 9 does not exist" in started_by.fail(bundle)
