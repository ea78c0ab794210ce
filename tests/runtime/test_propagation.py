"""Mount propagation: nothing of ours may ever reach the host's mount table (see host_unchanged)."""

import pytest

from tests.runtime.engine import Handler
from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches

VARIANTS = ["private", "slave", "shared", "unbindable", "rprivate", "rslave", "rshared"]


@pytest.mark.parametrize("propagation", VARIANTS)
def test_root_propagation(each_runtime, bundles, propagation):
    if (each_runtime.kind, propagation) == ("runc", "unbindable"):
        propagation = "rslave"  # runc itself can't: it binds the root to itself after that
    bundle = bundles(each_runtime)
    bundle.config["linux"]["rootfsPropagation"] = propagation
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle)

    assert_reaches(bundle, each_runtime.start(bundle), (1,), COMPUTE)


@pytest.mark.parametrize("destination", ["/usr/lib64", "/usr/bin"])
def test_a_shared_volume_at_a_target_is_refused(each_runtime, bundles, driver, destination):
    """Mounts below a volume with shared propagation would stay on the host for ever."""
    _refuse_shared_volume(each_runtime, bundles, driver, destination)


@pytest.mark.parametrize("mounts", ["hook", "spec"])
def test_nvhook_runtime_refuses_it_too(runc, bundles, driver, mounts):
    _refuse_shared_volume(Handler(runc, driver.launcher, mounts), bundles, driver, "/usr/lib64")


def _refuse_shared_volume(engine, bundles, driver, destination):
    bundle = bundles(engine)
    volume = bundle.directory / "volume"
    volume.mkdir()
    for path in driver.directory.glob("root/usr/*/**/*.so.*"):
        (volume / path.name).touch()
    (volume / "nvidia-smi").touch()
    names = {path.name for path in volume.iterdir()}
    engine.view.run("mount", "--bind", volume, volume)
    try:
        bundle.config["linux"]["rootfsPropagation"] = "rshared"
        options = ["rbind", "rshared"]
        bundle.config["mounts"].append(
            {"destination": destination, "type": "bind", "source": str(volume), "options": options}
        )
        (bundle.root / destination[1:]).mkdir(parents=True)
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        before = engine.view.mounts()

        error = engine.fail(bundle)

        assert engine.view.mounts() == before
        assert "shared propagation" in error
        assert {path.name for path in volume.iterdir()} == names
    finally:
        engine.view.run("umount", "--recursive", volume)


def test_a_container_that_mounts_over_the_driver_does_not_reach_the_host(each_engine, bundles):
    bundle = bundles(each_engine)
    for name in ("bounding", "effective", "permitted"):
        bundle.config["process"]["capabilities"][name].append("CAP_SYS_ADMIN")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.put("/evil", b"evil")
    script = "mount -o bind /evil /usr/bin/nvidia-smi && cat /usr/bin/nvidia-smi"
    bundle.args("/bin/sh", "-c", script)
    before = each_engine.view.mounts()

    assert each_engine.start(bundle).stdout == "evil"
    assert each_engine.view.mounts() == before
