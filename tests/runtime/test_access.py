"""Which devices a container can open, for every form of request, runtime and kind of cgroup."""

from pathlib import Path

import pytest

from tests.runtime.expectations import (
    ALLOWED,
    COMPUTE,
    DENIED,
    ask_everything,
    assert_reaches,
    uuids,
)

ALL_GPUS = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        pytest.param("1", (1,), id="index"),
        pytest.param("{uuid}", (1,), id="uuid"),
        pytest.param("0000:07:00.0", (1,), id="pci"),
        pytest.param("0,2", (0, 2), id="two-of-four"),
        pytest.param("all", ALL_GPUS, id="all"),
        pytest.param("none", (), id="none"),
    ],
)
def test_exactly_what_is_asked_for_can_be_opened(each_engine, bundles, driver, asked, gpus):
    bundle = bundles(each_engine)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=" + asked.format(uuid=driver.gpus[1].uuid))
    ask_everything(bundle)

    result = each_engine.start(bundle)

    assert_reaches(bundle, result, gpus, COMPUTE)


@pytest.mark.parametrize(
    "variables",
    [(), ("NVIDIA_VISIBLE_DEVICES=",), ("NVIDIA_VISIBLE_DEVICES=void",)],
    ids=["unset", "empty", "void"],
)
def test_a_container_that_does_not_ask_gets_nothing(each_engine, bundles, variables):
    bundle = bundles(each_engine)
    bundle.ask(*variables)
    ask_everything(bundle)
    before = bundle.tree()

    result = each_engine.start(bundle)

    assert_reaches(bundle, result, (), ())
    made = {path for path in bundle.tree() if path not in before}
    assert all(path.startswith("made-") for path in made), made


def test_an_unknown_device_stops_the_container(each_engine, bundles):
    bundle = bundles(each_engine)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,7")

    error = each_engine.fail(bundle)

    assert "unknown device id 7" in error
    assert "nvhook list" in error


def test_a_read_only_root(each_engine, bundles):
    bundle = bundles(each_engine)
    bundle.config["root"]["readonly"] = True
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle, mknod=False)

    assert_reaches(bundle, each_engine.start(bundle), (1,), COMPUTE)


@pytest.mark.parametrize("readonly", [False, True], ids=["rw", "ro"])
@pytest.mark.parametrize("owned", [True, False], ids=["own-image", "host-owned-image"])
def test_a_user_namespace(each_engine, bundles, owned, readonly):
    bundle = bundles(each_engine)
    bundle.config["root"]["readonly"] = readonly
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle, mknod=False)
    bundle.use_user_namespace(owned)

    assert_reaches(bundle, each_engine.start(bundle), (1,), COMPUTE)


def test_create_runtime_stage(each_engine, bundles):
    bundle = bundles(each_engine)
    bundle.config["hooks"] = {"createRuntime": [bundle.hook("createRuntime")]}
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle)

    assert_reaches(bundle, each_engine.start(bundle), (1,), COMPUTE)


def test_utility_alone_needs_no_uvm(runc, bundles):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=utility")
    ask_everything(bundle)

    assert_reaches(bundle, runc.start(bundle), (1,), ("nvidiactl",))


def test_display_adds_the_modeset_node(runc, bundles):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=all")
    ask_everything(bundle)

    assert_reaches(bundle, runc.start(bundle), (1,), (*COMPUTE, "nvidia-modeset"))


def test_the_last_entry_of_the_environment_wins(runc, bundles):
    """docker --gpus appends to what the image says."""
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=2")
    ask_everything(bundle)

    assert_reaches(bundle, runc.start(bundle), (2,), COMPUTE)


def test_no_device_rules_when_they_are_off(each_engine, bundles, driver):
    bundle = bundles(each_engine)
    driver.configuration(bundle.settings, bundle.log, device_rules="false")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    minor = driver.gpus[1].minor
    bundle.args(
        "/probe", "open", f"/dev/nvidia{minor}", "open", "/dev/nvidiactl", "open", "/dev/nvidia0"
    )

    answers = each_engine.start(bundle).answers

    assert answers[f"open /dev/nvidia{minor}"] == DENIED
    assert answers["open /dev/nvidiactl"] == DENIED
    assert answers["open /dev/nvidia0"] == "ENOENT"


def test_what_the_engine_allows_stays_as_it_is(each_engine, bundles, driver):
    """A rule of config.json for another GPU is neither needed nor taken away."""
    bundle = bundles(each_engine)
    other = driver.gpus[3].minor
    bundle.config["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "c", "major": 195, "minor": other, "access": "rw"}
    )
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    given = driver.gpus[1].minor
    bundle.args(
        "/probe",
        "open",
        f"/nodes/nvidia{other}",
        "open",
        f"/nodes/nvidia{given}",
        "open",
        "/nodes/nvidia1",
        "open",
        f"/dev/nvidia{other}",
    )

    answers = each_engine.start(bundle).answers

    assert answers == {
        f"open /nodes/nvidia{other}": ALLOWED,
        f"open /nodes/nvidia{given}": ALLOWED,
        "open /nodes/nvidia1": DENIED,
        f"open /dev/nvidia{other}": "ENOENT",
    }


@pytest.mark.parametrize("form", ["relative", "absolute", "dotted"])
def test_forms_of_root_path(each_runtime, bundles, form):
    bundle = bundles(each_runtime)
    path = {"relative": "rootfs", "absolute": str(bundle.root), "dotted": "./etc/../rootfs"}[form]
    (bundle.directory / "etc").mkdir()
    bundle.config["root"]["path"] = path
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle)

    assert_reaches(bundle, each_runtime.start(bundle), (1,), COMPUTE)


def test_the_hook_twice_changes_nothing(each_engine, bundles):
    """Two hook entries: the second run finds everything in place."""
    bundle = bundles(each_engine)
    with bundle.settings.open("a") as settings:
        settings.write("recordings = false\n")  # a repeat says less in the log
    look = 'grep -v " cgroup" /proc/$pid/mountinfo | sort >{0}; {1}'
    rules = "cat /sys/fs/cgroup/devices/{name}/devices.list 2>/dev/null >{0}.rules; true"
    snapshots = [bundle.directory / name for name in ("once", "twice")]
    hooks = []
    for snapshot in snapshots:
        script = look.format(snapshot, rules.format(snapshot, name=bundle.name))
        hooks += [bundle.hook(), bundle.shell_hook(script)]
    bundle.config["hooks"]["prestart"] = hooks
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle)

    result = each_engine.start(bundle)

    assert_reaches(bundle, result, (1,), COMPUTE)
    once, twice = snapshots
    assert once.read_text().count("nvidia") > 10
    assert once.read_text() == twice.read_text()
    assert once.with_suffix(".rules").read_text() == twice.with_suffix(".rules").read_text()
    rules = [line for line in result.log.splitlines() if 'msg="device rules"' in line]
    replayed = "replayed=true" in result.log  # it has no such lines
    assert ["unchanged" in line for line in rules] == ([] if replayed else [False, True]), rules


def test_nvidia_smi_lists_the_gpus_of_the_container(each_engine, bundles):
    bundle = bundles(each_engine)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=3,1")
    bundle.args("/usr/bin/nvidia-smi", "-L")

    result = each_engine.start(bundle)

    listed = [line for line in result.stdout.splitlines() if line.startswith("GPU ")]
    assert [line.rpartition("UUID: ")[2].rstrip(")") for line in listed] == uuids(bundle, (1, 3))


def test_a_parent_cgroup_that_denies(runc, bundles, driver, require):
    """Nested in an engine that allows no GPU: an error, and a root as it was."""
    devices = runc.view.path(Path("/sys/fs/cgroup/devices"))
    require((devices / "devices.list").exists(), "needs the devices hierarchy of cgroup v1")
    bundle = bundles(runc)
    parent = devices / f"{bundle.name}-parent"
    parent.mkdir()
    try:
        (parent / "devices.deny").write_text("a")
        for rule in ("c 1:* rwm", "c 5:* rwm", "c 136:* rwm", "c 10:200 rwm", "c *:* m", "b *:* m"):
            (parent / "devices.allow").write_text(rule)
        bundle.config["linux"]["cgroupsPath"] = f"/{parent.name}/{bundle.name}"
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

        error = runc.fail(bundle)

        assert "device rules" in error
        assert "cgroup above" in error
    finally:
        for path in runc.view.cgroups():  # runc makes it in every hierarchy
            if path.endswith(parent.name):
                Path(path).rmdir()
