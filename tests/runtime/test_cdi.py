"""CDI devices in real containers: of other vendors by nvhook-runtime, and nvhook's own specs."""

import json

import pytest

from tests.runtime.cdi_specs import generate, inject
from tests.runtime.expectations import (
    COMPUTE,
    ask_everything,
    assert_reaches,
    uuids,
)


@pytest.fixture
def other_vendor(handler, bundles, place, driver):
    """A bundle whose settings know the devices of another vendor."""
    bundle = bundles(handler)
    specs = place / "cdi"
    specs.mkdir()
    (specs / "data").write_text("from the host\n")
    witness = f"env >{place}/hook-environment"
    spec = {
        "cdiVersion": "0.7.0",
        "kind": "other.com/thing",
        "containerEdits": {
            "env": ["OTHER=yes"],
            "hooks": [
                {
                    "hookName": "createRuntime",
                    "path": "/bin/sh",
                    "args": ["sh", "-c", witness],
                }
            ],
        },
        "devices": [
            {
                "name": "a",
                "containerEdits": {
                    "deviceNodes": [{"path": "/dev/thing", "hostPath": "/dev/full"}],
                    "mounts": [
                        {
                            "hostPath": str(specs / "data"),
                            "containerPath": "/opt/data",
                            "options": ["ro", "bind"],
                        }
                    ],
                    "additionalGids": [4711],
                },
            }
        ],
    }
    (specs / "other.json").write_text(json.dumps(spec))
    directories = json.dumps([str(specs)])
    driver.configuration(bundle.settings, bundle.log, cdi_spec_directories=directories)
    return bundle


def test_a_vendors_device_does_not_take_the_gpu_away(handler, other_vendor, place):
    """NVIDIA's own specs say void, so that its legacy hook does nothing."""
    bundle = other_vendor
    path = place / "cdi/other.json"
    spec = json.loads(path.read_text())
    spec["containerEdits"]["env"] += ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=x"]
    path.write_text(json.dumps(spec))
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1,other.com/thing=a")
    bundle.args("/bin/sh", "-c", "echo $OTHER; ls /usr/lib64/libcuda.so.1")

    assert handler.start(bundle).stdout.splitlines() == ["yes", "/usr/lib64/libcuda.so.1"]


def test_a_device_of_another_vendor(handler, other_vendor, place):
    bundle = other_vendor
    bundle.ask("NVIDIA_VISIBLE_DEVICES=other.com/thing=a")
    bundle.args("/bin/sh", "-c", "echo $OTHER; cat /opt/data; id; stat -c '%t:%T' /dev/thing")

    result = handler.start(bundle)

    yes, data, groups, numbers = result.stdout.splitlines()
    assert (yes, data, numbers) == ("yes", "from the host", "1:7")
    assert "4711" in groups
    # Without an environment in the spec the hook would have had the image's.
    variables = (place / "hook-environment").read_text()
    assert "NVIDIA_VISIBLE_DEVICES" not in variables
    assert "PATH=/usr/sbin:/usr/bin:/sbin:/bin" in variables
    hooks = json.loads((bundle.directory / "config.json").read_text())["hooks"]
    assert not any("--delegated" in hook["args"] for hook in hooks["createRuntime"])


def test_another_vendors_device_beside_a_gpu(handler, other_vendor):
    bundle = other_vendor
    bundle.ask("NVIDIA_VISIBLE_DEVICES=other.com/thing=a,1")
    ask_everything(bundle)

    assert_reaches(bundle, handler.start(bundle), (1,), COMPUTE)


def test_a_name_that_no_spec_has_stops_the_container(handler, other_vendor):
    other_vendor.ask("NVIDIA_VISIBLE_DEVICES=other.com/thing=b")

    error = handler.fail(other_vendor)

    assert "other.com/thing=b" in error
    assert "other.com/thing=a" in error


def test_a_hook_can_not_give_it(runc, bundles):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=other.com/thing=a")

    assert "CDI device other.com/thing=a can't be given by a hook" in runc.fail(bundle)


# ---- nvhook's own specs, put into config.json as an engine would ----


@pytest.mark.parametrize(
    ("names", "gpus"),
    [
        (["nvidia.com/gpu=1"], (1,)),
        (["nvidia.com/gpu=0", "nvidia.com/gpu={uuid}"], (0, 1)),
        (["nvidia.com/gpu=all"], (0, 1, 2, 3)),
    ],
)
def test_a_spec_gives_its_gpus_and_no_others(each_engine, bundles, driver, place, names, gpus):
    bundle = bundles(each_engine)
    bundle.config.pop("hooks")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=all")  # as a CUDA image says: the spec's void counts
    (place / "cdi").mkdir()
    generate(driver.launcher, bundle.settings, place / "cdi/nvidia.yaml")
    ask_everything(bundle)
    inject(bundle, place / "cdi", *[name.format(uuid=driver.gpus[1].uuid) for name in names])

    result = each_engine.start(bundle)

    control = (*COMPUTE, "nvidia-modeset")  # specs are made for every capability
    assert_reaches(bundle, result, gpus, control)


def test_the_specs_hook_does_what_a_spec_can_not_say(runc, bundles, driver, place, debian):
    bundle = bundles(runc, debian)
    bundle.config.pop("hooks")
    (place / "cdi").mkdir()
    generate(driver.launcher, bundle.settings, place / "cdi/nvidia.json")
    bundle.args("/bin/sh", "-c", "nvidia-smi -L; /sbin/ldconfig -p | grep -c 'libcuda.so.*64)'")
    inject(bundle, place / "cdi", "nvidia.com/gpu=3", "nvidia.com/gpu=1")

    result = runc.start(bundle)

    listed = [line for line in result.stdout.splitlines() if line.startswith("GPU ")]
    assert [line.rpartition("UUID: ")[2].rstrip(")") for line in listed] == uuids(bundle, (1, 3))
    assert result.stdout.splitlines()[-1] == "2"


def test_an_engines_cdi_and_the_handler_give_it_once(handler, bundles, driver, place):
    """containerd with enable_cdi leaves the annotation where it was."""
    bundle = bundles(handler)
    bundle.config.pop("hooks")
    bundle.config["annotations"] = {"cdi.k8s.io/x": "nvidia.com/gpu=1"}
    (place / "cdi").mkdir()
    generate(driver.launcher, bundle.settings, place / "cdi/nvidia.json")
    ask_everything(bundle)
    inject(bundle, place / "cdi", "nvidia.com/gpu=1")

    result = handler.start(bundle)

    assert_reaches(bundle, result, (1,), (*COMPUTE, "nvidia-modeset"))
    assert json.loads((bundle.directory / "config.json").read_text()) == bundle.config
