"""The whole chain: a real kubelet, the plugin, containerd, nvhook-runtime, runc, the hook."""

import pytest

from tests.engines.inside import assert_gets_nothing
from tests.kubelet.real.looks import STAY, assert_sees_what_it_was_given, failing, looking, seen
from tests.runtime.expectations import COMPUTE

GPU = "nvidia.com/gpu"
TIME_SLICING = """\
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


def test_a_pod_gets_the_gpu_that_it_was_given_and_no_other(node, start, driver):
    assert start(node).wait(GPU, 4) == {gpu.uuid for gpu in driver.gpus}
    pod = node.add(looking(driver), {GPU: 1})

    assert len(assert_sees_what_it_was_given(node, driver, pod, GPU)) == 1


def test_pods_get_different_gpus_until_there_is_none_left(node, start, driver):
    start(node).wait(GPU, 4)
    pods = [node.add(looking(driver), {GPU: count}) for count in (1, 2, 1)]
    given = [assert_sees_what_it_was_given(node, driver, pod, GPU) for pod in pods]
    assert [len(uuids) for uuids in given] == [1, 2, 1]
    assert len(set.union(*given)) == 4

    one_more = node.add(looking(driver), {GPU: 1})

    node.wait_for_pod(one_more, "Failed")
    assert node.status(one_more)["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 1, Available: 0" in node.status(one_more)["message"]


def test_a_pod_that_asks_for_none_gets_none(node, start, driver):
    start(node).wait(GPU, 4)

    assert_gets_nothing(driver, seen(node, node.add(looking(driver), {})))


def test_a_gpu_of_a_pod_that_is_gone_is_given_again(node, start, driver):
    start(node).wait(GPU, 4)
    first = node.add(looking(driver), {GPU: 4})
    assert len(assert_sees_what_it_was_given(node, driver, first, GPU)) == 4
    node.remove(first)

    pod = node.add(looking(driver), {GPU: 4})

    assert len(assert_sees_what_it_was_given(node, driver, pod, GPU)) == 4


def test_a_container_that_is_started_again_keeps_its_gpu(node, start, driver):
    start(node).wait(GPU, 4)
    seen(node, node.add(looking(driver), {GPU: 2}))
    once = "[ -e /dev/shm/once ] || { >/dev/shm/once; exit; }"  # the pod's, not the container's
    shell, option, script, *rest = looking(driver)
    command = [shell, option, script.replace(STAY, f"{once}\n{STAY}"), *rest]

    pod = node.add(command, {GPU: 1}, restartPolicy="Always")

    node.wait_for_pod(pod, "Running")
    container = lambda: node.status(pod)["containerStatuses"][0]  # noqa: E731
    node.host.wait(lambda: container()["restartCount"] == 1, lambda: str(container()), seconds=30)
    assert_sees_what_it_was_given(node, driver, pod, GPU, attempt=1)
    assert node.output(pod, attempt=1) == node.output(pod, attempt=0)


def test_the_next_pods_of_a_restarted_kubelet_get_other_gpus(node, start, driver):
    plugin = start(node)
    plugin.wait(GPU, 4)
    first = node.add(looking(driver), {GPU: 1})
    given = assert_sees_what_it_was_given(node, driver, first, GPU)
    container = node.status(first)["containerStatuses"][0]["containerID"]

    for _ in range(3):
        node.stop_kubelet()
        node.start_kubelet()
        plugin.wait(GPU, 4)

    pods = [node.add(looking(driver), {GPU: 1}) for _ in range(3)]
    later = [assert_sees_what_it_was_given(node, driver, pod, GPU) for pod in pods]
    assert set.union(given, *later) == {gpu.uuid for gpu in driver.gpus}
    node.wait_for_pod(first, "Running")
    assert node.status(first)["containerStatuses"][0]["containerID"] == container


def test_a_plugin_that_is_stopped_gives_nothing_and_started_again_all(node, start, driver):
    plugin = start(node)
    plugin.wait(GPU, 4)
    plugin.stop()
    assert plugin.wait(GPU, 0) == set()

    plugin.start()

    plugin.wait(GPU, 4)
    assert_sees_what_it_was_given(node, driver, node.add(looking(driver), {GPU: 1}), GPU)


def test_a_failing_gpu_is_not_given_until_it_works_again(node, start, driver):
    plugin = start(node)
    everything = plugin.wait(GPU, 4)
    bad = driver.gpus[1].uuid
    with failing(driver, 1):
        assert plugin.wait(GPU, 3, seconds=5) == everything - {bad}
        pod = node.add(looking(driver), {GPU: 3})
        assert assert_sees_what_it_was_given(node, driver, pod, GPU) == everything - {bad}

    assert plugin.wait(GPU, 4, seconds=30) == everything
    pod = node.add(looking(driver), {GPU: 1})
    assert assert_sees_what_it_was_given(node, driver, pod, GPU) == {bad}


def test_four_pods_share_a_gpu_in_time_slices_and_a_fifth_is_refused(node, start, driver):
    uuid = driver.gpus[2].uuid
    plugin = start(node, "--include-devices", "2", file=TIME_SLICING)
    assert plugin.wait(GPU, 4) == {f"{uuid}::{n}" for n in range(4)}

    pods = [node.add(looking(driver), {GPU: 1}) for _ in range(4)]

    for pod in pods:
        assert assert_sees_what_it_was_given(node, driver, pod, GPU) == {uuid}
    fifth = node.add(looking(driver), {GPU: 1})
    node.wait_for_pod(fifth, "Failed")
    assert "Requested: 1, Available: 0" in node.status(fifth)["message"]


@pytest.mark.parametrize(("policy", "gpus"), [("packed", 1), ("distributed", 4)])
def test_slices_are_taken_of_the_gpu_that_the_policy_says(node, start, driver, policy, gpus):
    options = ("--shared-devices-allocation-policy", policy)
    start(node, *options, file=TIME_SLICING).wait(GPU, 16)

    pods = [node.add(looking(driver), {GPU: 1}) for _ in range(4)]

    given = [assert_sees_what_it_was_given(node, driver, pod, GPU) for pod in pods]
    assert len(set.union(*given)) == gpus


@pytest.mark.parametrize(
    ("options", "more"),
    [
        pytest.param(("--device-id-strategy", "index"), (), id="index"),
        pytest.param(("--device-list-strategy", "volume-mounts"), (), id="volume-mounts"),
        # containerd 1.6 hands the annotation on to nvhook-runtime.
        pytest.param(("--device-list-strategy", "cdi-annotations"), (), id="annotations"),
        pytest.param(("--pass-device-specs",), ("nvidia-modeset",), id="device-specs"),
    ],
)
def test_other_ways_to_tell_the_runtime_give_the_same(node, start, driver, nvhook, options, more):
    start(node, *options, "--nvidia-cdi-hook-path", nvhook).wait(GPU, 4)

    pods = [node.add(looking(driver), {GPU: count}) for count in (1, 2)]

    control = (*COMPUTE, *more)
    given = [assert_sees_what_it_was_given(node, driver, pod, GPU, control) for pod in pods]
    assert [len(uuids) for uuids in given] == [1, 2]
