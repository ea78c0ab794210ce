"""What each client of a shared GPU may have."""

import pytest

from nvhook.core.inventory import Gpu
from nvhook.errors import RequestError
from nvhook.kubelet.mps import Limits, limits
from nvhook.kubelet.reports import GpuFacts
from nvhook.kubelet.resources import Resource

A, B = (Gpu(n, f"GPU-{name}", n, f"0000:0{n}:00.0", "NVIDIA L4") for n, name in enumerate("ab"))


def facts(memory: int = 16384, compute: tuple[int, int] = (8, 9)) -> dict[str, GpuFacts]:
    return {gpu.uuid: GpuFacts(gpu.uuid, gpu.pci_bus_id, memory, compute) for gpu in (A, B)}


def resource(*replicas: int) -> Resource:
    gpus = (A, B)[: len(replicas)]
    counts = {gpu.uuid: count for gpu, count in zip(gpus, replicas, strict=True)}
    return Resource("nvidia.com/gpu", gpus, counts, "mps", one_only=True)


@pytest.mark.parametrize(
    ("replicas", "memory", "threads"),
    [
        ((4, 4), (4096, 4096), 25),
        ((3,), (5461,), 33),
        ((2, 8), (8192, 2048), 12),
        ((48,), (341,), 2),
    ],
)
def test_each_replica_has_an_equal_part(replicas, memory, threads) -> None:
    uuids = ("GPU-a", "GPU-b")[: len(replicas)]
    assert limits(resource(*replicas), facts()) == Limits(uuids, memory, threads)


def test_a_gpu_that_is_not_shared_is_not_the_daemons() -> None:
    mixed = Resource("nvidia.com/gpu", (A, B), {A.uuid: 4}, "mps", one_only=True)
    assert limits(mixed, facts()) == Limits(("GPU-a",), (4096,), 25)


def test_memory_that_nobody_knows_is_not_limited() -> None:
    assert limits(resource(4), {}) == Limits(("GPU-a",), (0,), 25)
    assert limits(resource(4), facts(memory=0)).memory == (0,)


@pytest.mark.parametrize(
    ("replicas", "compute", "most"),
    [(49, (7, 0), 48), (49, (9, 0), 48), (17, (6, 1), 16), (17, (5, 2), 16)],
)
def test_more_clients_than_mps_serves_are_refused(replicas, compute, most) -> None:
    with pytest.raises(RequestError, match=rf"MPS serves {most} clients .*set replicas to at most"):
        limits(resource(replicas), facts(compute=compute))
    limits(resource(most), facts(compute=compute))
