"""The NVML child: what it reports of a simulated machine, and how it is kept."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.kubelet import nvml_watch, watch
from nvhook.kubelet.health import Health
from nvhook.kubelet.reports import (
    Driver,
    Failed,
    GpuFacts,
    Link,
    Probe,
    Ready,
    Report,
    Round,
    Started,
    Xid,
)
from nvhook.kubelet.watch import Watch
from tests.kubelet.machines import Machine
from tests.kubelet.processes import children


@pytest.fixture
def make(tmp_path: Path, require) -> Callable[..., Machine]:
    require(os.geteuid() == 0, "needs root: mknod")
    return lambda gpus=2, mig=(), **settings: Machine(tmp_path / "sim", gpus, mig, **settings)


class Watching:
    """A running watch, its reports, and the health they make."""

    def __init__(self, machine: Machine, with_xids: bool = True, whole: bool = True) -> None:
        self.machine = machine
        self.reports: list[Report] = []
        self._news = asyncio.Event()
        inventory = machine.inventory
        self.uuids = [gpu.uuid for gpu in inventory.gpus]
        self.health = Health(frozenset(), time.monotonic())
        devices = inventory.gpus if whole else (*inventory.gpus[1:], *inventory.mig_devices)
        self.health.expect(devices, time.monotonic())
        self.watch = Watch(self._take, with_xids)
        self.watch.use(inventory)

    async def __aenter__(self) -> "Watching":
        self._task = asyncio.create_task(self.watch.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        assert self._task.cancelled()
        assert children() == []

    def _take(self, report: Report) -> None:
        self.reports.append(report)
        self.health.take(report, time.monotonic())
        self._news.set()

    async def until(self, kind: type[Report], seconds: float = 10, times: int = 1) -> list[Report]:
        """Wait for new reports of a kind, and return what came since the call."""
        start = len(self.reports)
        deadline = time.monotonic() + seconds
        while sum(isinstance(each, kind) for each in self.reports[start:]) < times:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), deadline - time.monotonic())
        return self.reports[start:]

    async def until_health(self, reasons: dict[str, str], seconds: float) -> float:
        """Wait for a state of health and return how long it took."""
        start = time.monotonic()
        while (now := self.health.unhealthy(time.monotonic())) != reasons:
            if time.monotonic() - start > seconds:
                raise AssertionError(f"after {seconds} s it is {now}")
            await asyncio.sleep(0.1)
        return time.monotonic() - start


def test_the_machine_is_told_and_then_every_gpu_each_second(make) -> None:
    async def run() -> None:
        machine = make(3)
        machine.say("gpu0.place=0/0/0", "gpu1.place=0/0/0", "gpu2.place=1/0/0")
        machine.say("gpu0.nvlinks=1 1 s", "gpu1.nvlinks=0 0 s s", "gpu2.nvlinks=s s s")
        async with Watching(machine) as watching:
            a, b, c = watching.uuids
            told = await watching.until(Round)
            assert told == [
                Started(),
                Driver("550.54.14"),
                *(
                    GpuFacts(uuid, f"0000:{bus}:00.0", 81559, (9, 0))
                    for uuid, bus in ((a, "04"), (b, "07"), (c, "0a"))
                ),
                Link(a, b, 20, 3),
                Link(a, c, 50, 1),
                Link(b, c, 50, 2),
                Ready(),
                *(Probe(uuid) for uuid in (a, b, c)),
                Round(),
            ]
            started = time.monotonic()
            told = await watching.until(Round, times=2)
            assert 1.8 < time.monotonic() - started < 3
            assert told == [Probe(a), Probe(b), Probe(c), Round()] * 2
            assert len(children()) == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("line", "instance"), [("gpu1.xid=79", (None, None)), ("gpu1.xid=79 7 0", (7, 0))]
)
def test_each_xid_is_told_once(make, line: str, instance) -> None:
    async def run() -> None:
        machine = make()
        machine.say("gpu1.xid=13")  # before anyone listened
        async with Watching(machine) as watching:
            await watching.until(Round)
            machine.say(line)
            told = await watching.until(Xid, 2)
            assert told[-1] == Xid(watching.uuids[1], 79, *instance)
            told = await watching.until(Round, times=2)
            assert not any(isinstance(each, Xid) for each in told)
            machine.say("gpu1.xid=48", "gpu0.xid=31")
            told = await watching.until(Xid, 2, times=2)
            assert {(each.uuid, each.number) for each in told if isinstance(each, Xid)} == {
                (watching.uuids[1], 48),
                (watching.uuids[0], 31),
            }

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "remedy", "bad", "reason"),
    [
        ("gpu0.xid=48", "", range(7), "Xid 48"),
        ("gpu0.xid=48 9 0", "", [2], "Xid 48"),
        ("gpu0.status=lost", "gpu0.status=ok", range(7), "GPU is lost"),
    ],
)
def test_mig_devices_go_with_their_gpu_or_alone_and_come_back(
    make, fault: str, remedy: str, bad, reason: str
) -> None:
    async def run() -> None:
        machine = make(2, ("1g.10gb",) * 7, mig_gpus=(0,))
        async with Watching(machine, whole=False) as watching:
            parts = machine.inventory.mig_devices
            assert len(parts) == 7
            await watching.until(Round)
            machine.say(fault)
            expected = {parts[n].uuid: reason for n in bad}
            await watching.until_health(expected, 5)
            machine.say(remedy)
            await watching.until_health({}, 30)

    asyncio.run(run())


# In a process of its own: pynvml keeps to the library that it has seen first.
COUNT_REGISTRATIONS = """
import sys
import pynvml
from nvhook.host.nvml import started
from nvhook.kubelet import nvml_watch

started(sys.argv[1])
register = pynvml.nvmlDeviceRegisterEvents
rounds = iter(range(20))

def counted(handle, types, events):
    print(pynvml.nvmlDeviceGetUUID(handle))
    register(handle, types, events)

def tell(*words):
    if words == ("round",) and next(rounds, None) is None:
        sys.exit(0)

pynvml.nvmlDeviceRegisterEvents = counted
nvml_watch.EVERY, nvml_watch.tell = 0.01, tell
nvml_watch.Watcher(with_xids=True).run()
"""


def test_a_gpu_is_registered_once(make) -> None:
    inventory = make(3).inventory
    library = inventory.library("libnvidia-ml.so")
    done = subprocess.run(
        [sys.executable, "-I", "-c", COUNT_REGISTRATIONS, library.host_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split() == [gpu.uuid for gpu in inventory.gpus]


LOOK_AFRESH = """
import sys
from nvhook.kubelet import nvml_watch

nvml_watch.EVERY, nvml_watch.FRESH_LOOK = 0.01, 5
nvml_watch.watch(sys.argv[1], "on")
"""


def test_nvml_starts_anew_for_a_gpu_that_stays_lost(make) -> None:
    machine = make(2)
    inventory = machine.inventory
    library = inventory.library("libnvidia-ml.so")
    command = [sys.executable, "-I", "-c", LOOK_AFRESH, library.host_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if line == "round\n":
                machine.say("gpu1.status=lost")
                break
        lines = child.stdout.read().splitlines()
    assert lines.count(f"probe {inventory.gpus[1].uuid} GPU is lost") == 5
    assert lines[-1] == "failed it starts anew for a GPU that has not answered for long"


def test_without_xids_only_probes_tell(make) -> None:
    async def run() -> None:
        machine = make()
        async with Watching(machine, with_xids=False) as watching:
            await watching.until(Round)
            machine.say("gpu1.xid=79", "gpu1.status=lost")
            told = await watching.until(Round, times=2)
            assert Probe(watching.uuids[1], "GPU is lost") in told
            assert not any(isinstance(each, Xid) for each in told)

    asyncio.run(run())


def test_a_lost_gpu_is_told_the_others_are_listened_to_and_it_comes_back(make) -> None:
    async def run() -> None:
        machine = make()
        async with Watching(machine) as watching:
            a, b = watching.uuids
            await watching.until(Round)
            machine.say("gpu0.status=lost")
            assert await watching.until_health({a: "GPU is lost"}, 5) < 5
            machine.say("gpu1.xid=79")
            told = await watching.until(Xid, 3)
            assert told[-1] == Xid(b, 79)
            machine.say("gpu0.status=ok")
            assert await watching.until_health({}, 30) >= 8
            machine.say("gpu0.xid=48")
            told = await watching.until(Xid, 3)
            assert told[-1] == Xid(a, 48)

    asyncio.run(run())


def test_the_only_gpu_that_is_lost_is_no_failure_of_nvml(make) -> None:
    async def run() -> None:
        machine = make(1)
        async with Watching(machine) as watching:
            await watching.until(Round)
            machine.say("gpu0.status=lost")
            await watching.until_health({watching.uuids[0]: "GPU is lost"}, 5)
            assert not any(isinstance(each, Failed) for each in watching.reports)

    asyncio.run(run())


def test_the_only_gpu_that_fails_leaves_like_any_other_and_a_broken_nvml_is_told(make) -> None:
    async def run() -> None:
        machine = make(1)
        async with Watching(machine) as watching:
            await watching.until(Round)
            machine.say("gpu0.status=failed")
            await watching.until_health({watching.uuids[0]: "Unknown Error"}, 5)
            assert not any(isinstance(each, Failed) for each in watching.reports)
            machine.say("nvml=storm")
            await watching.until(Failed, 5)

    asyncio.run(run())


def test_a_gpu_that_needs_a_reset_stays_away_until_it_had_one(make) -> None:
    async def run() -> None:
        machine = make(1, ("1g.10gb",) * 2)
        async with Watching(machine, whole=False) as watching:
            parts = [part.uuid for part in machine.inventory.mig_devices]
            await watching.until(Round)
            machine.say("gpu0.xid=48", "gpu0.recovery=1")
            bad = dict.fromkeys(parts, "NVML asks for a reset of the GPU")
            await watching.until_health(bad, 5)
            await watching.until(Round, 15, times=12)
            assert watching.health.unhealthy(time.monotonic()) == bad
            # 3: programs that use several GPUs are to end; that is no matter of this one.
            machine.say("gpu0.recovery=3", "gpu0.rows=pending")
            why = "a row of its memory is remapped by the next reset of the GPU"
            await watching.until_health(dict.fromkeys(parts, why), 5)
            machine.say("gpu0.rows=failed")
            why = "a row of its memory can't be remapped"
            await watching.until_health(dict.fromkeys(parts, why), 5)
            machine.say("gpu0.rows=")
            await watching.until_health({}, 30)

    asyncio.run(run())


def test_a_gpu_that_is_lost_from_the_start_hides_no_other(make) -> None:
    async def run() -> None:
        machine = make()
        machine.say("gpu0.status=lost")
        async with Watching(machine) as watching:
            a, b = watching.uuids
            told = await watching.until(Round)
            assert [each for each in told if isinstance(each, Probe)] == [Probe(b)]
            await watching.until_health({a: "NVML does not list it"}, 6)
            machine.say("gpu0.status=ok")
            told = await watching.until(Round, times=2)
            assert GpuFacts(a, "0000:04:00.0", 81559, (9, 0)) in told
            machine.say("gpu0.xid=48")
            told = await watching.until(Xid, 3)
            assert told[-1] == Xid(a, 48)

    asyncio.run(run())


def test_one_failing_gpu_is_no_failure_of_nvml_and_all_are(make) -> None:
    async def run() -> None:
        machine = make()
        async with Watching(machine) as watching:
            a, _ = watching.uuids
            await watching.until(Round)
            machine.say("gpu0.status=failed")
            await watching.until_health({a: "Unknown Error"}, 5)
            machine.say("gpu1.status=failed")
            told = await watching.until(Failed, 5)
            assert told[-1] == Failed("Unknown Error")
            assert set(watching.health.unhealthy(time.monotonic())) == {a}

    asyncio.run(run())


def test_in_a_storm_of_errors_nvml_is_asked_ever_more_rarely(make) -> None:
    async def run() -> None:
        machine = make()
        async with Watching(machine) as watching:
            await watching.until(Round)
            machine.say("nvml=storm")
            await watching.until(Failed, 5)
            await asyncio.sleep(8)  # tries after 1, 3 and 7 s
            assert 3 <= sum(isinstance(each, Failed) for each in watching.reports) <= 4
            assert watching.health.unhealthy(time.monotonic()) == {}
            why = "NVML does not answer: Unknown Error"
            reasons = watching.health.unhealthy(time.monotonic() + 30)
            assert reasons == dict.fromkeys(watching.uuids, why)
            machine.say("nvml=ok")
            await watching.until(Round, 10)
            assert watching.health.unhealthy(time.monotonic()) == {}

    asyncio.run(run())


def test_xids_without_end_are_not_lines_without_end(make) -> None:
    async def run() -> None:
        machine = make(1)
        async with Watching(machine) as watching:
            await watching.until(Round)
            machine.say(*["gpu0.xid=31"] * 30)
            told = await watching.until(Round, times=3)
            assert 1 <= sum(isinstance(each, Xid) for each in told) <= 3

    asyncio.run(run())


def test_a_child_that_hangs_is_killed(make, monkeypatch) -> None:
    monkeypatch.setattr(watch, "HEARTBEAT", 2.0)

    async def run() -> None:
        machine = make()
        async with Watching(machine) as watching:
            await watching.until(Round)
            (child,) = children()
            machine.say("nvml=hang")
            told = await watching.until(Failed, 5)
            assert told[-1] == Failed("no answer for 2 s")
            machine.say("nvml=ok")
            await watching.until(Round)
            assert children() != [child]

    asyncio.run(run())


def test_a_child_that_dies_is_replaced(make) -> None:
    async def run() -> None:
        async with Watching(make()) as watching:
            await watching.until(Round)
            (child,) = children()
            os.kill(child, signal.SIGKILL)
            told = await watching.until(Round, 5)
            assert told[0] == Failed("it ended")

    asyncio.run(run())


def test_another_driver_is_watched_by_another_child(make, tmp_path: Path) -> None:
    async def run() -> None:
        machine = make()
        async with Watching(machine) as watching:
            await watching.until(Round)
            before = children()
            watching.watch.use(machine.inventory)
            await watching.until(Round)
            assert children() == before
            watching.watch.use(None)
            await asyncio.sleep(0.5)
            assert children() == []
            newer = Machine(tmp_path / "newer", 2, driver_version="560.35.03")
            watching.watch.use(newer.inventory)
            told = await watching.until(Round)
            assert told[:2] == [Started(), Driver("560.35.03")]

    asyncio.run(run())


def test_a_library_that_is_none_is_a_reason(make) -> None:
    async def run() -> None:
        machine = make()
        inventory = machine.inventory
        library = inventory.library("libnvidia-ml.so")
        assert library is not None
        Path(library.host_path).write_text("no library")
        async with Watching(machine) as watching:
            told = await watching.until(Failed)
            assert told[-1].reason.startswith("the library can't be loaded: ")

    asyncio.run(run())


def test_a_child_does_not_outlive_its_parent(make, tmp_path: Path) -> None:
    machine = make(1)
    library = machine.inventory.library("libnvidia-ml.so")
    machine.say("nvml=hang")
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        child = os.fork()
        if child == 0:
            os.write(writer, b"%d\n" % os.getpid())
            nvml_watch.watch(library.host_path, "on")
            os._exit(1)
        time.sleep(60)
        os._exit(1)
    child = int(os.read(reader, 32))
    os.close(reader)
    os.close(writer)
    try:
        time.sleep(1)
        assert state(child) != "Z"
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        deadline = time.monotonic() + 5
        while state(child) != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        if state(child) != "Z":
            os.kill(child, signal.SIGKILL)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
