"""MIG devices in real containers: their two capabilities and their GPU, no sibling's."""

import pytest

from nvhook import config
from nvhook.core.mig_plans import node_names
from nvhook.create import pipeline
from tests.runtime.cdi_specs import generate_and_inject
from tests.runtime.expectations import ALLOWED, COMPUTE, ask_everything, assert_reaches


@pytest.fixture(scope="session")
def migs(mig_driver):
    """The MIG devices by name: 0:0, 0:1, 0:2, 2:0, 2:1, 2:2."""
    inventory = pipeline.inventory(config.load(str(mig_driver.config)))
    return {device.name: device for device in inventory.mig_devices}


@pytest.fixture
def make(bundles, mig_driver):
    """Make a bundle on that host, with a request."""

    def made(engine, *variables: str, image=None):
        bundle = bundles(engine, image, host=mig_driver)
        bundle.ask(*variables)
        return bundle

    return made


def assert_has(bundle, result, devices, gpus=()) -> None:
    """Check that exactly these MIG devices, their GPUs and these whole GPUs can be opened."""
    names = {name for device in devices for name in node_names(device)}
    assert_reaches(bundle, result, gpus, (*COMPUTE, *names))


FORMS = [
    pytest.param("0:1", ("0:1",), (), id="index"),
    pytest.param("{uuid}", ("0:1",), (), id="uuid"),
    pytest.param("MIG-{gpu}/3/0", ("0:1",), (), id="old-name"),
    pytest.param("2:2,0:0", ("0:0", "2:2"), (), id="of-two-gpus"),
    pytest.param("0:2,1", ("0:2",), (1,), id="beside-a-gpu"),
    pytest.param("0", (), (0,), id="the-gpu-alone"),
    pytest.param("all", ("0:0", "0:1", "0:2", "2:0", "2:1", "2:2"), (0, 1, 2, 3), id="all"),
]


@pytest.mark.parametrize(("asked", "names", "gpus"), FORMS)
def test_a_hook_gives_exactly_what_is_asked_for(each_engine, make, migs, asked, names, gpus):
    uuids = {"uuid": migs["0:1"].uuid, "gpu": migs["0:1"].gpu.uuid}
    bundle = make(each_engine, "NVIDIA_VISIBLE_DEVICES=" + asked.format(**uuids))
    ask_everything(bundle)

    assert_has(bundle, each_engine.start(bundle), [migs[name] for name in names], gpus)


@pytest.mark.parametrize(("asked", "names", "gpus"), FORMS[::3])
def test_the_runtime_gives_exactly_what_is_asked_for(each_handler, make, migs, asked, names, gpus):
    bundle = make(each_handler, f"NVIDIA_VISIBLE_DEVICES={asked}")
    ask_everything(bundle)

    result = each_handler.start(bundle)

    assert_has(bundle, result, [migs[name] for name in names], gpus)
    assert 'msg="device rules"' not in result.log, "the runtime sets the rules, not the hook"


@pytest.mark.parametrize("names", [("0:1",), ("2:0", "{uuid}"), ("all",)])
def test_a_cdi_spec_gives_exactly_what_is_asked_for(each_engine, make, migs, place, names):
    bundle = make(each_engine, "NVIDIA_VISIBLE_DEVICES=all")  # the spec's void counts
    bundle.config.pop("hooks")
    wanted = [name.format(uuid=migs["2:1"].uuid) for name in names]
    generate_and_inject(bundle, place, wanted)
    ask_everything(bundle)

    result = each_engine.start(bundle)

    given = [each for each in migs.values() if {each.name, each.uuid, "all"} & {*wanted}]
    gpus = (0, 1, 2, 3) if "all" in names else ()
    control = {name for device in given for name in node_names(device)}
    assert_reaches(bundle, result, gpus, (*COMPUTE, "nvidia-modeset", *control))


@pytest.mark.parametrize("asked", ["0:3", "1:0", "MIG-00000000-0000-0000-0000-000000000000"])
def test_a_mig_device_that_is_not_there_stops_the_container(each_engine, make, asked):
    error = each_engine.fail(make(each_engine, f"NVIDIA_VISIBLE_DEVICES={asked}"))

    assert f"unknown device id {asked}" in error
    assert "has no MIG device" in error if asked == "1:0" else "nvhook list" in error


def test_a_host_without_mig_says_so(runc, bundles):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0:0")

    assert "unknown device id 0:0 (hint: GPU 0 has no MIG device" in runc.fail(bundle)


CAPABILITIES = "cd /proc/driver/nvidia && find . -name access && grep . $(find . -name access)"


@pytest.mark.parametrize("via", ["hook", "cdi"])
def test_the_container_sees_the_files_of_its_own_capabilities(runc, make, migs, place, via):
    bundle = make(runc, "NVIDIA_VISIBLE_DEVICES=2:1")
    if via == "cdi":
        bundle.config.pop("hooks")
        generate_and_inject(bundle, place, ["2:1"])
    bundle.show_proc_driver()
    bundle.link("/bin/find", "busybox")
    bundle.args("/bin/sh", "-c", CAPABILITIES)

    text = runc.start(bundle).stdout

    device = migs["2:1"]
    directory = f"./capabilities/gpu{device.gpu.minor}/mig/gi{device.gpu_instance}"
    files = {f"{directory}/access": device.gpu_instance_minor}
    files[f"{directory}/ci0/access"] = device.compute_instance_minor
    lines = text.splitlines()
    assert {*lines[:2]} == {*files}
    minors = {line for line in lines if "DeviceFileMinor" in line}
    assert minors == {f"{path}:DeviceFileMinor: {minor}" for path, minor in files.items()}


def test_nvidia_smi_lists_the_one_mig_device(runc, make, migs, debian):
    bundle = make(runc, f"NVIDIA_VISIBLE_DEVICES={migs['0:1'].uuid}", image=debian)
    bundle.args("/bin/sh", "-c", "nvidia-smi -L")

    gpu, mig = runc.start(bundle).stdout.splitlines()

    assert gpu.startswith("GPU 0: ")
    assert gpu.endswith(f"(UUID: {migs['0:1'].gpu.uuid})")
    assert mig.split() == ["MIG", "2g.20gb", "Device", "0:", "(UUID:", f"{migs['0:1'].uuid})"]


# ---- managing MIG


@pytest.mark.parametrize(
    ("variable", "own"),
    [("NVIDIA_MIG_CONFIG_DEVICES", 1), ("NVIDIA_MIG_MONITOR_DEVICES", 2)],
    ids=["config", "monitor"],
)
@pytest.mark.parametrize("through", ["hook", "runtime"])
def test_a_privileged_container_manages_the_mig_devices_of_its_gpus(
    runc, handler, make, migs, variable, own, through
):
    engine = runc if through == "hook" else handler
    bundle = make(engine, "NVIDIA_VISIBLE_DEVICES=0", f"{variable}=all")
    bundle.config["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
    ask_everything(bundle)

    answers = engine.start(bundle).answers

    reachable = {f"nvidia-caps/nvidia-cap{own}"}
    for device in migs.values():
        if device.gpu_index == 0:
            reachable |= {*node_names(device)[1:]}
    for name in bundle.driver.numbers():
        if name.startswith("nvidia-caps/"):
            # The directory is there as a whole, the rules are for some of its nodes.
            expected = ALLOWED if name in reachable else "EPERM"
            assert answers[f"open /dev/{name}"] == expected, name
            assert answers[f"open /made-{name.replace('/', '-')}"] == expected, name


def test_managing_is_refused_to_others(each_engine, make):
    bundle = make(each_engine, "NVIDIA_VISIBLE_DEVICES=0:1", "NVIDIA_MIG_CONFIG_DEVICES=all")

    error = each_engine.fail(bundle)

    assert "NVIDIA_MIG_CONFIG_DEVICES is for privileged containers only" in error
