"""Graphics and display: the nodes of the container's own GPUs, and what finds the driver."""

import pytest

from tests.runtime.expectations import ALLOWED, DENIED

DRI = [f"card{index + 1}" for index in range(4)] + [f"renderD{128 + index}" for index in range(4)]
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize("capability", ["graphics", "display"])
def test_only_the_render_nodes_of_the_selected_gpus(started_by, bundles, driver, capability):
    bundle = bundles(started_by)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=2", f"NVIDIA_DRIVER_CAPABILITIES={capability}")
    status = (driver.directory / "dev/dri/card1").stat()
    major, minor = str(status.st_rdev >> 8), str(status.st_rdev & 0xFF)
    questions = [word for name in DRI for word in ("open", f"/dev/dri/{name}")]
    bundle.args("/probe", *questions, "mknod", "/made", major, minor, "open", "/made")

    answers = started_by.start(bundle).answers

    given = ("card3", "renderD130")
    assert answers == {
        **{f"open /dev/dri/{name}": ALLOWED if name in given else "ENOENT" for name in DRI},
        "mknod /made": "OK",
        "open /made": DENIED,
    }


def test_compute_gets_no_render_node(started_by, bundles):
    bundle = bundles(started_by)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=2")
    bundle.args("/probe", "open", "/dev/dri/card3")

    assert started_by.start(bundle).answers == {"open /dev/dri/card3": "ENOENT"}


def test_what_vulkan_egl_and_xorg_look_for_is_there(started_by, bundles, debian):
    bundle = bundles(started_by, debian)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=2,0", "NVIDIA_DRIVER_CAPABILITIES=graphics")
    files = [
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "/usr/share/nvidia/nvoptix.bin",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so",
        f"{LIBRARIES}/gbm/nvidia-drm_gbm.so",
        "/dev/dri/by-path/pci-0000:0a:00.0-render",
    ]
    tests = " && ".join(f"test -e {path} || echo {path}" for path in files)
    profile = "cat /etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
    bundle.args("/bin/sh", "-c", f"{tests}; {profile}; /sbin/ldconfig -p | grep -c egl-gbm")

    lines = started_by.start(bundle).stdout.splitlines()

    # GPUs 2 and 0 have the minors 1 and 2.
    assert lines[0] == (
        '{"profiles": [{"name": "nvhook", "settings": ["EGLVisibleDGPUDevices", 0x6]}],'
    )
    assert lines[-1] == "1"
    assert len(lines) == 3


def test_a_volume_in_the_profiles_place_is_left_alone(started_by, bundles, place):
    """The host would see what is written there."""
    volume = place / "nvidia"
    volume.mkdir()
    bundle = bundles(started_by)
    bundle.config["mounts"].append(
        {"destination": "/etc/nvidia", "type": "bind", "source": str(volume), "options": ["rbind"]}
    )
    bundle.ask("NVIDIA_VISIBLE_DEVICES=2", "NVIDIA_DRIVER_CAPABILITIES=graphics")
    bundle.args("/probe", "open", "/dev/dri/card3")

    result = started_by.start(bundle)

    assert result.answers == {"open /dev/dri/card3": ALLOWED}
    assert "nvidia-application-profiles-rc.d is on a volume of the host" in result.log
    assert list(volume.iterdir()) == []
