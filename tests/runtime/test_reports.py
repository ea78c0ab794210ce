"""Public bug reports about hooks and injection, replayed: shared/data/reports.md, by number.

Those about discovery are in tests/host; 5, 8 and 45 are here too: only a container shows them.
"""

import os
import shutil
import stat
from pathlib import Path

import pytest

from nvhook.formats import ldcache
from nvhook.sim import driver as simulated
from nvhook.sim.machine import gpu_uuid
from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches, uuids

MACHINE = os.uname().machine
LIBDIR = f"/usr/lib/{MACHINE}-linux-gnu"


def _with_another_driver(bundle, place, **options) -> None:
    """Give the host other GPUs or another driver version."""
    config = simulated.create(str(place / "other-driver"), report=print, **options)
    text = Path(config).read_text().replace(f"{place}/other-driver/nvhook.log", str(bundle.log))
    bundle.settings.write_text(text)


def test_12_toolkit_944_the_cache_has_libcuda_so(runc, bundles, debian):
    bundle = bundles(runc, debian)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0")
    bundle.args("/sbin/ldconfig", "-p")

    listed = [line.split()[0] for line in runc.start(bundle).stdout.splitlines()[1:]]

    assert listed.count("libcuda.so") == 1
    assert listed.count("libcuda.so.1") == 1


def test_13_toolkit_1526_alpine_finds_the_libraries(each_runtime, bundles):
    """No ldconfig, no ld.so.conf.d: musl's own path file is what counts."""
    bundle = bundles(each_runtime)
    bundle.put(f"/lib/ld-musl-{MACHINE}.so.1", b"\x7fELF")
    bundle.put(f"/etc/ld-musl-{MACHINE}.path", b"/lib:/opt/lib\n")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0")
    bundle.args("/probe", "open", "/usr/lib64/libcuda.so.1")

    assert each_runtime.start(bundle).answers == {"open /usr/lib64/libcuda.so.1": "OK"}
    text = (bundle.root / f"etc/ld-musl-{MACHINE}.path").read_text()
    assert text == "/lib:/opt/lib:/usr/lib64\n"


@pytest.mark.parametrize("with_etc", [True, False], ids=["etc", "no-etc"])
def test_14_toolkit_1326_distroless_gets_a_cache(each_runtime, bundles, with_etc):
    bundle = bundles(each_runtime)
    if not with_etc:
        (bundle.root / "etc").rmdir()
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0")
    bundle.args("/usr/bin/nvidia-smi", "--loader")

    result = each_runtime.start(bundle)

    assert "libnvidia-ml.so.1 => /usr/lib64/libnvidia-ml.so.1" in result.stdout
    assert gpu_uuid(0) in result.stdout
    assert ldcache.parse((bundle.root / "etc/ld.so.cache").read_bytes()).entries


def test_15_libnvidia_container_117_absolute_links_resolve_in_the_root(runc, bundles):
    bundle = bundles(runc)
    bundle.link("/usr/lib64", "/etc/alternatives/libraries")
    bundle.link("/etc/alternatives/libraries", "/opt/libraries-11.1")
    (bundle.root / "opt/libraries-11.1").mkdir(parents=True)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0")
    bundle.args("/probe", "open", "/usr/lib64/libcuda.so.1")

    assert runc.start(bundle).answers == {"open /usr/lib64/libcuda.so.1": "OK"}
    assert "libcuda.so.1" in os.listdir(bundle.root / "opt/libraries-11.1")


@pytest.mark.parametrize("target", ["../../../../../../../..{}", "{}"], ids=["dots", "absolute"])
def test_17_toolkit_1169_firmware_link_out_of_the_image(each_runtime, bundles, place, target):
    outside = place / "outside"
    outside.mkdir()
    bundle = bundles(each_runtime)
    bundle.link(f"/lib/firmware/nvidia/{simulated.DEFAULT_VERSION}", target.format(outside))
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0")

    error = each_runtime.fail(bundle)

    assert "/lib/firmware/nvidia" in error
    assert list(outside.iterdir()) == []


def test_2_toolkit_108_devices_asked_for_by_mounts(runc, bundles, driver):
    bundle = bundles(runc)
    driver.configuration(bundle.settings, bundle.log, accept_volume_mounts="true")
    for gpu in (driver.gpus[2], driver.gpus[3]):
        destination = f"/var/run/nvidia-container-devices/{gpu.uuid}"
        bundle.config["mounts"].append(
            {"destination": destination, "type": "bind", "source": "/dev/null", "options": ["bind"]}
        )
    bundle.ask("NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices")
    ask_everything(bundle)

    assert_reaches(bundle, runc.start(bundle), (2, 3), COMPUTE)


def test_2_toolkit_108_the_path_is_never_a_device(runc, bundles):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices")

    error = runc.fail(bundle)

    assert "accept-volume-mounts" in error
    assert "unknown device" not in error


def test_4_enroot_207_one_bad_index_refuses_all(each_engine, bundles):
    bundle = bundles(each_engine)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,1,4,5")

    assert "unknown device id 4 " in each_engine.fail(bundle)


@pytest.mark.parametrize("version", ["535.161.07", "550.54.14", "550.40"])
def test_5_toolkit_324_both_names_of_the_major(runc, bundles, place, version):
    """nvidia-frontend before 550.40, nvidia and nvidiactl after."""
    bundle = bundles(runc)
    _with_another_driver(bundle, place, gpus=2, driver_version=version)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/probe", "open", "/dev/nvidia1", "open", "/dev/nvidiactl", "open", "/dev/nvidia0")

    assert runc.start(bundle).answers == {
        "open /dev/nvidia1": "ENXIO",
        "open /dev/nvidiactl": "ENXIO",
        "open /dev/nvidia0": "ENOENT",
    }


def test_8_nvidia_docker_957_blanks_in_the_model_name(runc, bundles, place):
    bundle = bundles(runc)
    _with_another_driver(bundle, place, gpus=1, model="NVIDIA GeForce GTX 1080 Ti /GeForce")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=all")
    bundle.args("/usr/bin/nvidia-smi", "-L")

    text = runc.start(bundle).stdout

    assert f"GPU 0: NVIDIA GeForce GTX 1080 Ti /GeForce (UUID: {gpu_uuid(0)})" in text


def test_41_toolkit_57_swarm_wins_over_the_image(runc, bundles, driver):
    bundle = bundles(runc)
    driver.configuration(bundle.settings, bundle.log, swarm_resource='["DOCKER_RESOURCE_GPU"]')
    bundle.ask("NVIDIA_VISIBLE_DEVICES=all", f"DOCKER_RESOURCE_GPU={driver.gpus[2].uuid}")
    ask_everything(bundle)

    assert_reaches(bundle, runc.start(bundle), (2,), COMPUTE)


def test_44_toolkit_51_all_capabilities(runc, bundles):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=2", "NVIDIA_DRIVER_CAPABILITIES=all")
    bundle.args("/usr/bin/nvidia-smi", "-L")

    assert uuids(bundle, (2,))[0] in runc.start(bundle).stdout


def test_45_toolkit_210_mode_and_group_of_nodes_are_kept(runc, bundles, place):
    bundle = bundles(runc)
    _with_another_driver(bundle, place, gpus=1)
    node = place / "other-driver/dev/nvidia0"
    node.chmod(0o660)
    os.chown(node, 0, 27)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0")
    bundle.args("/bin/stat", "-c", "%a %u %g", "/dev/nvidia0")

    assert runc.start(bundle).stdout == "660 0 27\n"
    assert stat.S_IMODE(node.stat().st_mode) == 0o660


def test_61_toolkit_198_driver_capabilities_are_masked(runc, bundles, driver):
    """Expected: who nests containers must unmount the mask."""
    bundle = bundles(runc)
    source = bundle.directory / "proc-driver"
    shutil.copytree(driver.directory / "proc/driver", source)
    (source / "nvidia/capabilities").mkdir()
    mount = (
        f"exec nsenter --mount=/proc/$pid/ns/mnt mount --bind {source} {bundle.root}/proc/driver"
    )
    bundle.config["hooks"]["prestart"].insert(0, bundle.shell_hook(mount))
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0")
    bundle.args(
        "/probe", "type", "/proc/driver/nvidia/params", "type", "/proc/driver/nvidia/capabilities"
    )

    assert runc.start(bundle).answers == {
        "type /proc/driver/nvidia/params": "file",
        "type /proc/driver/nvidia/capabilities": "ENOENT",
    }
