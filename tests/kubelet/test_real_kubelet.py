"""The whole chain: a real kubelet, the plugin, containerd, nvhook-runtime, runc, the hook."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.inside import assert_gets, assert_gets_nothing, look
from tests.kubelet.real_kubelet import Node, Plugin
from tests.runtime import go

pytestmark = pytest.mark.root
GPU = "nvidia.com/gpu"
SOURCE = Path(__file__).parent / "kubelet"
STAY = "trap exit TERM; sleep 1000 & wait"
TIME_SLICING = """\
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


@pytest.fixture(scope="session")
def kubelet(require: Callable[[bool, str], None]) -> Path:
    """The program: four minutes to build on two cores, once."""
    return go.build(require, SOURCE, "k8s.io/kubernetes/cmd/kubelet", "-trimpath", "-ldflags=-s -w")


@pytest.fixture(scope="module")
def node(hosts, kubelet, archive, installed) -> Iterator[Node]:
    """A node of the usual four GPUs."""
    made = Node(hosts("kubelet", "hybrid"), kubelet, archive, installed / "bin/nvhook")
    yield made
    made.close()


@pytest.fixture
def start(node, driver) -> Iterator[Callable[..., Plugin]]:
    """Start the plugin with options; it is stopped, and all pods are removed, after the test."""
    plugins = []

    def started(*options: str, **file: str) -> Plugin:
        plugins.append(Plugin(node, driver.launcher, *options, **file))
        return plugins[-1]

    yield started
    try:
        node.remove()
    finally:
        for plugin in plugins:
            plugin.stop()


def looking(driver) -> list[str]:
    """Return a command that looks at everything, says so, and goes on."""
    shell, option, script, *rest = look(driver)
    return [shell, option, f"{script}\necho seen\n{STAY}", *rest]


def seen(node: Node, pod: str, attempt: int = 0) -> str:
    """Wait until a container has looked; return what it saw."""
    node.wait_for_pod(pod, "Running")
    output = lambda: node.output(pod, attempt)  # noqa: E731
    node.host.wait(lambda: output().endswith("seen\n"), output)
    return output().removesuffix("seen\n")


def assert_sees_what_it_was_given(node: Node, driver, pod: str, attempt: int = 0) -> set[str]:
    """Check that a container sees exactly what the kubelet gave its pod; return these UUIDs."""
    output = seen(node, pod, attempt)
    uuids = {each.partition("::")[0] for each in node.allocated(GPU)[pod]}
    assert_gets(driver, output, [gpu.index for gpu in driver.gpus if gpu.uuid in uuids])
    return uuids


def test_a_pod_gets_the_gpu_that_it_was_given_and_no_other(node, start, driver):
    assert start().wait(GPU, 4) == {gpu.uuid for gpu in driver.gpus}
    pod = node.add(looking(driver), {GPU: 1})

    assert len(assert_sees_what_it_was_given(node, driver, pod)) == 1


def test_pods_get_different_gpus_until_there_is_none_left(node, start, driver):
    start().wait(GPU, 4)
    pods = [node.add(looking(driver), {GPU: count}) for count in (1, 2, 1)]
    given = [assert_sees_what_it_was_given(node, driver, pod) for pod in pods]
    assert [len(uuids) for uuids in given] == [1, 2, 1]
    assert len(set.union(*given)) == 4

    one_more = node.add(looking(driver), {GPU: 1})

    node.wait_for_pod(one_more, "Failed")
    assert node.status(one_more)["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 1, Available: 0" in node.status(one_more)["message"]


def test_a_pod_that_asks_for_none_gets_none(node, start, driver):
    start().wait(GPU, 4)

    assert_gets_nothing(driver, seen(node, node.add(looking(driver), {})))


def test_a_gpu_of_a_pod_that_is_gone_is_given_again(node, start, driver):
    start().wait(GPU, 4)
    first = node.add(looking(driver), {GPU: 4})
    assert len(assert_sees_what_it_was_given(node, driver, first)) == 4
    node.remove(first)

    pod = node.add(looking(driver), {GPU: 4})

    assert len(assert_sees_what_it_was_given(node, driver, pod)) == 4


def test_a_container_that_is_started_again_keeps_its_gpu(node, start, driver):
    start().wait(GPU, 4)
    seen(node, node.add(looking(driver), {GPU: 2}))
    once = "[ -e /dev/shm/once ] || { >/dev/shm/once; exit; }"  # the pod's, not the container's
    shell, option, script, *rest = looking(driver)
    command = [shell, option, script.replace(STAY, f"{once}\n{STAY}"), *rest]

    pod = node.add(command, {GPU: 1}, restartPolicy="Always")

    node.wait_for_pod(pod, "Running")
    container = lambda: node.status(pod)["containerStatuses"][0]  # noqa: E731
    node.host.wait(lambda: container()["restartCount"] == 1, lambda: str(container()), seconds=30)
    assert_sees_what_it_was_given(node, driver, pod, attempt=1)
    assert node.output(pod, attempt=1) == node.output(pod, attempt=0)


def test_the_next_pods_of_a_restarted_kubelet_get_other_gpus(node, start, driver):
    plugin = start()
    plugin.wait(GPU, 4)
    first = node.add(looking(driver), {GPU: 1})
    given = assert_sees_what_it_was_given(node, driver, first)
    container = node.status(first)["containerStatuses"][0]["containerID"]

    for _ in range(3):
        node.stop_kubelet()
        node.start_kubelet()
        plugin.wait(GPU, 4)

    pods = [node.add(looking(driver), {GPU: 1}) for _ in range(3)]
    later = [assert_sees_what_it_was_given(node, driver, pod) for pod in pods]
    assert set.union(given, *later) == {gpu.uuid for gpu in driver.gpus}
    node.wait_for_pod(first, "Running")
    assert node.status(first)["containerStatuses"][0]["containerID"] == container


def test_a_plugin_that_is_stopped_gives_nothing_and_started_again_all(node, start, driver):
    plugin = start()
    plugin.wait(GPU, 4)
    plugin.stop()
    assert plugin.wait(GPU, 0) == set()

    plugin.start()

    plugin.wait(GPU, 4)
    assert_sees_what_it_was_given(node, driver, node.add(looking(driver), {GPU: 1}))


def test_a_failing_gpu_is_not_given_until_it_works_again(node, start, driver):
    plugin = start()
    everything = plugin.wait(GPU, 4)
    state = driver.directory / "state"
    original = state.read_text()
    failing = driver.gpus[1].uuid
    try:
        state.write_text(original + "gpu1.status=lost\n")
        assert plugin.wait(GPU, 3, seconds=5) == everything - {failing}
        pod = node.add(looking(driver), {GPU: 3})
        assert assert_sees_what_it_was_given(node, driver, pod) == everything - {failing}
    finally:
        state.write_text(original)

    assert plugin.wait(GPU, 4, seconds=30) == everything
    pod = node.add(looking(driver), {GPU: 1})
    assert assert_sees_what_it_was_given(node, driver, pod) == {failing}


def test_four_pods_share_a_gpu_in_time_slices(node, start, driver):
    plugin = start("--shared-devices-allocation-policy", "packed", file=TIME_SLICING)
    ids = plugin.wait(GPU, 16)
    assert ids == {f"{gpu.uuid}::{n}" for gpu in driver.gpus for n in range(4)}

    pods = [node.add(looking(driver), {GPU: 1}) for _ in range(4)]

    given = [assert_sees_what_it_was_given(node, driver, pod) for pod in pods]
    assert len(set.union(*given)) == 1
