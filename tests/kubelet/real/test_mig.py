"""MIG devices by a real kubelet, on a containerd that resolves CDI names itself."""

import pytest

from nvhook import config
from nvhook.core.mig_plans import node_names
from nvhook.create import pipeline
from tests.engines.inside import SMI
from tests.kubelet.real.looks import assert_sees_what_it_was_given, looking, seen
from tests.runtime.expectations import COMPUTE, assert_opens

GPU = "nvidia.com/gpu"
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
STRATEGIES = ["envvar", "cdi-cri", "cdi-annotations"]


@pytest.fixture(scope="module")
def migs(mig_driver):
    """The MIG devices by UUID: two GPUs with 1g.10gb, 2g.20gb and 1g.10gb each."""
    inventory = pipeline.inventory(config.load(str(mig_driver.config)))
    return {device.uuid: device for device in inventory.mig_devices}


def assert_sees_its_mig_device(node, driver, migs, pod, resource, control):
    """Check that a container sees exactly the MIG device of its pod; return its UUID."""
    output = seen(node, pod)
    (uuid,) = (each.partition("::")[0] for each in node.allocated(resource)[pod])
    probe, _, rest = output.partition(f"{SMI}\n")
    answers = dict(line.split(" = ") for line in probe.splitlines())
    assert_opens(driver, answers, (), (*control, *node_names(migs[uuid])))
    listed = [line for line in rest.splitlines() if " MIG " in line]
    assert len(listed) == 1
    assert listed[0].endswith(f"(UUID: {uuid})")
    return uuid


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_profile_is_a_resource_of_its_own(mig_node, start, mig_driver, migs, nvhook, strategy):
    options = ("--mig-strategy", "mixed", "--device-list-strategy", strategy)
    plugin = start(mig_node, *options, "--nvidia-cdi-hook-path", nvhook)
    whole = {gpu.uuid for gpu in mig_driver.gpus if gpu.index in {1, 3}}
    assert plugin.wait(GPU, 2) == whole
    small, large = plugin.wait(SMALL, 4), plugin.wait(LARGE, 2)
    assert small | large == set(migs)
    # A CDI device has all capabilities.
    control = (*COMPUTE, "nvidia-modeset") if strategy.startswith("cdi") else COMPUTE

    pods = [mig_node.add(looking(mig_driver), {name: 1}) for name in (SMALL, SMALL, LARGE, GPU)]

    found = [
        assert_sees_its_mig_device(mig_node, mig_driver, migs, pod, name, control)
        for pod, name in zip(pods[:3], (SMALL, SMALL, LARGE), strict=True)
    ]
    assert len(set(found)) == 3
    assert assert_sees_what_it_was_given(mig_node, mig_driver, pods[3], GPU, control) <= whole
