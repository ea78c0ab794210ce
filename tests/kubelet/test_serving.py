"""Many devices, slow kubelets, kubelets that die: servers in this process."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvhook.core.inventory import Gpu
from nvhook.kubelet.answers import HostFacts, allocate
from nvhook.kubelet.metrics import Metrics
from nvhook.kubelet.preferred import choose
from nvhook.kubelet.resources import Resource
from nvhook.kubelet.server import Answers
from nvhook.kubelet.serving import Serving
from nvhook.kubelet.settings import Settings
from tests.kubelet.scripted import ScriptedKubelet

GPU = "nvidia.com/gpu"


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(n, f"GPU-{n:08x}-0000-4000-8000-000000000000", n, f"0000:{n:02x}:00.0", "H100")
        for n in range(count)
    )


def resource(count: int, replicas: int = 0, numa: int | None = None) -> Resource:
    devices = gpus(count)
    return Resource(
        GPU,
        devices,
        {each.uuid: replicas for each in devices} if replicas else {},
        numa={} if numa is None else {each.uuid: numa for each in devices},
    )


class Server:
    """A Serving in an event loop of its own."""

    def __init__(self, kubelet: ScriptedKubelet) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._settings = Settings()
        answers = Answers(
            lambda each, ids: allocate(each, ids, self._settings, HostFacts()),
            lambda each, wanted: choose(
                each, wanted.available, wanted.must_include, wanted.size, {}, "distributed"
            ),
        )
        self.serving = self.run(self._make(str(kubelet.socket), answers))

    async def _make(self, socket: str, answers: Answers) -> Serving:
        return Serving(socket, answers, Metrics(), lambda: None)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def apply(self, *resources: Resource) -> None:
        self.run(self.serving.apply(resources))

    def mark(self, *uuids: str) -> None:
        async def mark() -> None:
            self.serving.mark(dict.fromkeys(uuids, "a test"))

        self.run(mark())

    def close(self) -> None:
        self.run(self.serving.stop())
        self.run(self._rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _rest(self) -> None:
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=5)


@pytest.fixture
def server(kubelet: ScriptedKubelet) -> Iterator[Server]:
    server = Server(kubelet)
    yield server
    server.close()


def test_300_devices_with_100_replicas_each_are_one_list(
    kubelet: ScriptedKubelet, server: Server
) -> None:
    server.apply(resource(300, 100, numa=1))
    endpoint = kubelet.wait_for_list()
    assert kubelet.allocatable() == 30_000
    assert endpoint.messages == 1
    assert endpoint.numa[f"{gpus(300)[299].uuid}::99"] == [1]
    server.mark(gpus(300)[7].uuid)
    kubelet.wait_for(lambda: kubelet.allocatable() == 29_900)
    free = [each for each, good in endpoint.devices.items() if good]
    chosen = kubelet.prefer(3, GPU, free)
    assert len({each.partition("::")[0] for each in chosen}) == 3
    assert kubelet.allocate(chosen[:1]).envs


def test_numa_nodes_that_are_not_known_are_not_told(
    kubelet: ScriptedKubelet, server: Server
) -> None:
    server.apply(resource(2))
    endpoint = kubelet.wait_for_list()
    assert [*endpoint.numa.values()] == [[], []]


def test_a_slow_kubelet_gets_the_newest_list_and_not_every_one(
    kubelet: ScriptedKubelet, server: Server
) -> None:
    kubelet.wait_before_reading = 0.5
    server.apply(resource(300, 100))  # more than a socket's buffer holds
    endpoint = kubelet.wait_for_list()
    uuids = [each.uuid for each in gpus(300)]
    for count in range(100):
        server.mark(*uuids[: count + 1])
    server.mark(*uuids[:5])
    kubelet.wait_for(lambda: kubelet.allocatable() == 29_500, 30)
    time.sleep(1)
    assert kubelet.allocatable() == 29_500
    assert endpoint.messages < 50


def test_health_that_did_not_change_sends_nothing(kubelet: ScriptedKubelet, server: Server) -> None:
    server.apply(resource(2))
    endpoint = kubelet.wait_for_list()
    for _ in range(20):
        server.mark()
        server.mark("GPU-of-another-resource")
        server.apply(resource(2))
    server.mark(gpus(2)[0].uuid)
    kubelet.wait_for(lambda: kubelet.allocatable() == 1)
    assert endpoint.messages == 2


def test_a_kubelet_that_dies_while_it_reads_leaves_nothing(
    kubelet: ScriptedKubelet, server: Server
) -> None:
    kubelet.wait_before_reading = 0.5
    server.apply(resource(300, 100))
    for _ in range(10):
        kubelet.wait_for_list()
        kubelet.restart()
    kubelet.wait_before_reading = 0.0
    kubelet.restart()
    kubelet.wait_for_list()
    served = server.serving._served[GPU].server
    kubelet.wait_for(lambda: served.streams == 1)


def test_a_list_that_is_too_long_for_the_kubelet_does_not_make_a_spin(
    kubelet: ScriptedKubelet, server: Server
) -> None:
    kubelet.max_message = 1000
    server.apply(resource(300))
    kubelet.wait_for(lambda: len(kubelet.registrations) >= 2, 10)
    time.sleep(2)
    assert len(kubelet.registrations) <= 4


def test_resources_come_and_go_one_by_one(kubelet: ScriptedKubelet, server: Server) -> None:
    first, second = gpus(2)
    server.apply(Resource("nvidia.com/a", (first,), {}))
    stays = kubelet.wait_for_list("nvidia.com/a")
    server.apply(Resource("nvidia.com/a", (first,), {}), Resource("nvidia.com/b", (second,), {}))
    goes = kubelet.wait_for_list("nvidia.com/b")
    server.apply(Resource("nvidia.com/a", (first,), {}))
    kubelet.wait_for(lambda: not goes.connected)
    assert goes.devices == {}
    assert stays.connected
    assert stays.messages == 1
    server.apply(Resource("nvidia.com/a", (first,), {}), Resource("nvidia.com/b", (second,), {}))
    kubelet.wait_for(lambda: kubelet.endpoints["nvidia.com/b"] is not goes)
    assert kubelet.wait_for_list("nvidia.com/b").devices == {second.uuid: True}


def test_a_server_ends_though_its_name_can_not_be_removed(
    kubelet: ScriptedKubelet, server: Server
) -> None:
    (gpu,) = gpus(1)
    server.apply(Resource("nvidia.com/a", (gpu,), {}))
    endpoint = kubelet.wait_for_list("nvidia.com/a")
    name = Path(endpoint.path)
    name.unlink()
    name.mkdir()
    server.apply()
    kubelet.wait_for(lambda: not endpoint.connected, 5)
    assert endpoint.devices == {}
    name.rmdir()


def test_a_list_that_is_made_just_before_the_end_is_still_sent(
    kubelet: ScriptedKubelet, server: Server
) -> None:
    server.apply(resource(2))
    endpoint = kubelet.wait_for_list()
    served = server.serving._served[GPU].server

    async def end() -> None:
        served.update(resource(0), ())
        await served.stop(1)

    server.run(end())
    kubelet.wait_for(lambda: not endpoint.connected)
    assert endpoint.messages == 2
    assert endpoint.devices == {}


def test_a_kubelet_that_reads_nothing_does_not_hold_the_end_up(
    kubelet: ScriptedKubelet, server: Server
) -> None:
    kubelet.wait_before_reading = 30
    server.apply(resource(300, 100))
    endpoint = kubelet.wait_for_list()
    for each in gpus(5):
        server.mark(each.uuid)
    started = time.monotonic()
    server.apply()
    assert time.monotonic() - started < 5
    endpoint.skip.set()


def test_a_resource_with_the_longest_name_is_served(
    kubelet: ScriptedKubelet, server: Server
) -> None:
    name = f"nvidia.com/{'long-' * 10}ab"
    server.apply(Resource(name, gpus(1), {}))
    assert Path(kubelet.wait_for_list(name).path).name.startswith("nvhook-long-")
