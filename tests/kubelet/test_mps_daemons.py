"""Every resource that is shared by MPS has its daemon, and no other has one."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nvhook.kubelet import mps
from nvhook.kubelet.mps_daemons import MpsDaemons
from nvhook.kubelet.reports import GpuFacts
from nvhook.kubelet.resources import Resource
from tests.kubelet.machines import Machine
from tests.kubelet.processes import children


@pytest.fixture
def machine(tmp_path: Path, require, monkeypatch) -> Machine:
    require(os.geteuid() == 0, "needs root: mknod, compute mode, mount")
    monkeypatch.setattr(mps, "EVERY", 0.5)
    return Machine(tmp_path / "sim", 2)


def test_a_gpu_beside_the_shared_ones_is_left_alone(machine: Machine, tmp_path: Path) -> None:
    async def run() -> None:
        inventory = machine.inventory
        a, b = inventory.gpus
        facts = {a.uuid: GpuFacts(a.uuid, a.pci_bus_id, 16384, (9, 0))}
        daemons = MpsDaemons(lambda: None)
        mixed = Resource("nvidia.com/gpu", (a, b), {a.uuid: 4}, "mps", one_only=True)
        root = str(tmp_path / "mps")
        daemons.apply(root, [mixed], inventory, facts)
        assert set(daemons.reasons()) == {a.uuid}
        await until(lambda: not daemons.reasons(), daemons.reasons)
        mode = f"{machine.directory}/run/compute-mode.{{}}"
        assert Path(mode.format(a.minor)).read_text() == "3\n"
        assert not Path(mode.format(b.minor)).exists()
        pid = Path(root, mixed.name, "pipe/nvidia-cuda-mps-control.pid")
        before = pid.read_text()
        daemons.apply(root, [replace(mixed, devices=(a,))], inventory, facts)
        assert daemons.reasons() == {}
        assert pid.read_text() == before
        await daemons.stop()

    asyncio.run(run())


async def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(0.05)


def test_daemons_follow_the_resources(machine: Machine, tmp_path: Path) -> None:
    async def run() -> None:
        inventory = machine.inventory
        a, b = inventory.gpus
        facts = {each.uuid: GpuFacts(each.uuid, each.pci_bus_id, 16384, (9, 0)) for each in (a, b)}
        root = str(tmp_path / "mps")
        calls: list[float] = []
        daemons = MpsDaemons(lambda: calls.append(time.monotonic()))

        def control(name: str) -> Path:
            return Path(root, name, "pipe/control")

        def pid(name: str) -> str:
            return (control(name).parent / "nvidia-cuda-mps-control.pid").read_text()

        one = Resource("nvidia.com/one", (a,), {a.uuid: 4}, "mps", one_only=True)
        two = Resource("nvidia.com/two", (b,), {b.uuid: 2}, "mps", one_only=True)
        sliced = Resource("nvidia.com/sliced", (b,), {b.uuid: 2}, "time-slicing")

        daemons.apply(root, [one, sliced], inventory, {})
        assert daemons.reasons() == {a.uuid: "MPS waits until NVML has told the GPU's memory"}
        daemons.apply(root, [one, sliced], inventory, facts)
        assert set(daemons.reasons()) == {a.uuid}
        await until(lambda: not daemons.reasons(), daemons.reasons)
        assert calls
        first = pid(one.name)

        daemons.apply(root, [one], inventory, {})
        assert daemons.reasons() == {}
        daemons.apply(root, [one, two], inventory, facts)
        assert set(daemons.reasons()) == {b.uuid}
        await until(lambda: not daemons.reasons(), daemons.reasons)
        assert pid(one.name) == first

        more = replace(one, replicas={a.uuid: 8})
        daemons.apply(root, [replace(one, replicas={a.uuid: 5}), two], inventory, facts)
        daemons.apply(root, [more, two], inventory, facts)
        assert set(daemons.reasons()) == {a.uuid}
        await until(lambda: not daemons.reasons(), daemons.reasons)
        assert pid(one.name) != first
        log = Path(root, one.name, "log/control.log").read_text()
        # The one before is not still about to put the GPU's mode back.
        assert (machine.directory / f"run/compute-mode.{a.minor}").read_text() == "3\n"
        assert log.rpartition("Start\n")[2].count("set_default_active_thread_percentage 12\n") == 1

        daemons.apply(root, [more], inventory, facts)
        await until(lambda: not control(two.name).exists(), lambda: "two is still there")
        too_many = replace(one, replicas={a.uuid: 49})
        daemons.apply(root, [too_many], inventory, facts)
        assert "MPS serves 48 clients" in daemons.reasons()[a.uuid]
        daemons.apply(root, [more], inventory, facts)
        await until(lambda: not daemons.reasons(), daemons.reasons)
        await daemons.stop()
        assert daemons.reasons() == {}
        assert not control(one.name).exists()
        assert children() == []
        await daemons.stop()

    asyncio.run(run())
