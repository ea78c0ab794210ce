"""Which devices are bad, and for how long: every second is simulated."""

import pytest

from nvhook.core.inventory import Gpu, MigDevice
from nvhook.kubelet.health import Health
from nvhook.kubelet.reports import Failed, GpuFacts, Probe, Round, Started, Xid
from nvhook.kubelet.settings import APPLICATION_XIDS

A, B = (Gpu(n, f"GPU-{name}", n, f"0000:0{n}:00.0", "NVIDIA L4") for n, name in enumerate("ab"))


def slices(gpu: Gpu, count: int = 7) -> list[MigDevice]:
    return [
        MigDevice(gpu, n, f"MIG-{gpu.uuid[4:]}{n}", "1g.10gb", 7 + n, 0, 100 + n, 200 + n)
        for n in range(count)
    ]


class Machine:
    """Health, and a clock. Every ``second`` each GPU is probed; those in ``bad`` fail."""

    def __init__(self, devices=(A, B), ignored=APPLICATION_XIDS) -> None:
        self.now = 1000.0
        self.health = Health(ignored, self.now)
        self.health.expect(devices, self.now)
        self.gpus = dict.fromkeys(getattr(each, "gpu", each).uuid for each in devices)
        self.bad: dict[str, str] = {}

    def seconds(self, count: int) -> dict[str, str]:
        for _ in range(count):
            self.now += 1
            for uuid in self.gpus:
                self.health.take(Probe(uuid, self.bad.get(uuid, "")), self.now)
            self.health.take(Round(), self.now)
        return self.health.unhealthy(self.now)

    def silence(self, count: int) -> dict[str, str]:
        self.now += count
        return self.health.unhealthy(self.now)

    def until_healthy(self) -> int:
        """Return how many seconds it takes until all is well."""
        for passed in range(2000):
            if not self.health.unhealthy(self.now):
                return passed
            self.seconds(1)
        raise AssertionError("it never gets well")

    def xid(self, *arguments) -> dict[str, str]:
        self.health.take(Xid(*arguments), self.now)
        return self.health.unhealthy(self.now)


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    assert machine.seconds(5) == {}
    return machine


def test_before_anything_is_known_devices_are_good() -> None:
    assert Machine().health.unhealthy(1000.0) == {}


def test_a_lost_gpu_leaves_within_5_seconds_and_is_back_within_30(machine: Machine) -> None:
    machine.bad[A.uuid] = "GPU is lost"
    assert machine.seconds(4) == {A.uuid: "GPU is lost"}
    assert machine.seconds(60) == {A.uuid: "GPU is lost"}
    machine.bad.clear()
    assert machine.seconds(5) == {A.uuid: "GPU is lost"}
    assert 10 <= 5 + machine.until_healthy() <= 25


def test_one_failed_probe_is_no_failure(machine: Machine) -> None:
    for _ in range(3):
        machine.bad[A.uuid] = "unknown error"
        assert machine.seconds(1) == {}
        machine.bad.clear()
        assert machine.seconds(1) == {}


def test_a_bad_probe_starts_the_hold_anew(machine: Machine) -> None:
    machine.xid(A.uuid, 79)
    machine.seconds(9)
    machine.bad[A.uuid] = "GPU is lost"
    machine.seconds(1)
    machine.bad.clear()
    assert machine.until_healthy() >= 10


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_errors_of_the_program_are_ignored(machine: Machine, xid: int) -> None:
    assert machine.xid(A.uuid, xid) == {}


def test_an_xid_takes_its_gpu_away_for_the_hold_time(machine: Machine) -> None:
    assert machine.xid(A.uuid, 48) == {A.uuid: "Xid 48"}
    assert 10 <= machine.until_healthy() <= 11


def test_where_no_xid_counts_only_probes_do() -> None:
    machine = Machine(ignored=None)
    machine.seconds(1)
    assert machine.xid(A.uuid, 79) == {}
    machine.bad[A.uuid] = "GPU is lost"
    assert machine.seconds(3) == {A.uuid: "GPU is lost"}


def test_an_xid_without_a_gpu_may_be_any_ones(machine: Machine) -> None:
    assert set(machine.xid(None, 79)) == {A.uuid, B.uuid}


def test_an_xid_of_a_gpu_that_is_not_ours_is_not_ours(machine: Machine) -> None:
    assert machine.xid("GPU-c", 79) == {}


def test_a_gpu_that_flaps_stays_away_twice_as_long_each_time(machine: Machine) -> None:
    times = []
    for _ in range(9):
        machine.xid(A.uuid, 79)
        times.append(machine.until_healthy())
    assert times == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    machine.seconds(301)
    machine.xid(A.uuid, 79)
    assert machine.until_healthy() == 10


def test_a_bad_gpu_covers_all_its_mig_devices() -> None:
    parts = slices(A)
    machine = Machine((*parts, B))
    machine.seconds(1)
    assert machine.xid(A.uuid, 79) == {each.uuid: "Xid 79" for each in parts}
    machine.until_healthy()
    machine.bad[A.uuid] = "GPU is lost"
    assert machine.seconds(3) == {each.uuid: "GPU is lost" for each in parts}
    machine.bad.clear()
    assert machine.until_healthy()


@pytest.mark.parametrize("instance", [(9, 0), (9, None)])
def test_an_xid_of_a_mig_instance_covers_only_that(instance) -> None:
    parts = slices(A)
    machine = Machine((A, *parts, B))
    machine.seconds(1)
    assert machine.xid(A.uuid, 48, *instance) == {parts[2].uuid: "Xid 48"}
    assert machine.until_healthy() == 10


def test_an_xid_of_a_compute_instance_leaves_the_others_of_its_gpu_instance() -> None:
    parts = [MigDevice(A, n, f"MIG-{n}", "1c.2g.20gb", 3, n, 10, 20 + n) for n in range(2)]
    machine = Machine(parts)
    machine.seconds(1)
    assert machine.xid(A.uuid, 48, 3, 1) == {"MIG-1": "Xid 48"}


@pytest.mark.parametrize("seconds", [1, 20])
def test_a_mig_instance_is_not_well_while_its_gpu_fails(seconds: int) -> None:
    parts = slices(A, 2)
    machine = Machine(parts)
    machine.seconds(1)
    machine.xid(A.uuid, 48, 7, 0)
    machine.seconds(9)
    machine.bad[A.uuid] = "unknown error"
    machine.seconds(seconds)
    machine.bad.clear()
    assert machine.until_healthy() == 10


def test_a_gpu_that_nvml_does_not_list_is_bad(machine: Machine) -> None:
    del machine.gpus[A.uuid]
    assert machine.seconds(3) == {}
    assert machine.seconds(1) == {A.uuid: "NVML does not list it"}
    machine.gpus[A.uuid] = None
    assert machine.until_healthy() == 10


def test_nvml_as_a_whole_may_be_silent_for_30_seconds(machine: Machine) -> None:
    machine.xid(B.uuid, 79)
    machine.health.take(Failed("Driver Not Loaded"), machine.now)
    assert machine.silence(30) == {B.uuid: "Xid 79"}
    why = "NVML does not answer: Driver Not Loaded"
    assert machine.silence(1) == {A.uuid: why, B.uuid: why}
    machine.seconds(1)
    assert 10 <= 1 + machine.until_healthy() <= 25


def test_a_short_silence_changes_nothing(machine: Machine) -> None:
    machine.health.take(Failed("unknown error"), machine.now)
    machine.silence(25)
    assert machine.seconds(1) == {}


def test_nvml_has_a_minute_to_start() -> None:
    machine = Machine()
    assert machine.silence(60) == {}
    assert machine.silence(1)[A.uuid] == "NVML does not answer: no answer yet"
    machine = Machine()
    machine.seconds(1)
    assert machine.silence(31) != {}


def test_nvml_has_a_minute_to_start_anew(machine: Machine) -> None:
    machine.health.take(Failed("unknown error"), machine.now)
    machine.silence(29)
    machine.health.take(Started(), machine.now)
    assert machine.silence(60) == {}
    assert set(machine.silence(1)) == {A.uuid, B.uuid}


def test_children_that_only_fail_have_30_seconds_in_all(machine: Machine) -> None:
    for _ in range(15):
        machine.health.take(Started(), machine.now)
        machine.health.take(Failed("unknown error"), machine.now)
        assert machine.silence(2) == {}
    assert set(machine.silence(1)) == {A.uuid, B.uuid}
    machine.health.take(Started(), machine.now)
    assert set(machine.silence(1)) == {A.uuid, B.uuid}


def test_a_new_gpu_is_good_and_a_gone_one_forgotten(machine: Machine) -> None:
    machine.xid(A.uuid, 79)
    machine.health.expect([B], machine.now)
    del machine.gpus[A.uuid]
    assert machine.seconds(10) == {}
    machine.health.expect([A, B], machine.now)
    machine.gpus[A.uuid] = None
    assert machine.seconds(1) == {}


def test_expecting_the_same_again_forgets_nothing(machine: Machine) -> None:
    machine.xid(A.uuid, 79)
    machine.health.expect([A, B], machine.now)
    assert machine.health.unhealthy(machine.now) == {A.uuid: "Xid 79"}


def test_what_only_tells_of_the_machine_is_no_matter_of_health(machine: Machine) -> None:
    machine.health.take(GpuFacts("GPU-c", "0000:07:00.0", 1, (9, 0)), machine.now)
    machine.health.take(Probe("GPU-c", "GPU is lost"), machine.now)
    machine.health.take(Probe("GPU-c", "GPU is lost"), machine.now)
    assert machine.seconds(1) == {}
