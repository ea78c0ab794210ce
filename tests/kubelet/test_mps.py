"""The MPS control daemon of a shared resource: limited, watched, restarted, and gone at the end."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.kubelet import mps
from nvhook.kubelet.mps import Mps
from nvhook.kubelet.reports import GpuFacts
from nvhook.kubelet.resources import Resource
from tests.kubelet.machines import Machine
from tests.kubelet.processes import children


class Running:
    """An Mps that runs for four replicas of each GPU, and what a client would see."""

    def __init__(self, machine: Machine, root: Path) -> None:
        self.machine = machine
        inventory = machine.inventory
        self.gpus = inventory.gpus
        facts = {gpu.uuid: GpuFacts(gpu.uuid, gpu.pci_bus_id, 16384, (9, 0)) for gpu in self.gpus}
        counts = dict.fromkeys(facts, 4)
        resource = Resource("nvidia.com/gpu.shared", self.gpus, counts, "mps", one_only=True)
        self.reasons: list[str] = []
        self.mps = Mps(str(root), resource, inventory, facts, self._changed)
        self.directory = root / resource.name

    def _changed(self) -> None:
        self.reasons.append(self.mps.reason)

    async def __aenter__(self) -> "Running":
        self._task = asyncio.create_task(self.mps.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        assert self._task.cancelled()
        assert not (self.directory / "pipe/control").exists()
        assert self.modes() == [0] * len(self.gpus)
        assert children() == []

    async def until(self, healthy: bool, seconds: float = 20) -> float:
        start = time.monotonic()
        while self.mps.healthy != healthy:
            if time.monotonic() - start > seconds:
                raise AssertionError(f"after {seconds} s: {self.mps.reason!r}, {self.reasons}")
            await asyncio.sleep(0.05)
        return time.monotonic() - start

    @property
    def pid(self) -> int:
        return int((self.directory / "pipe/nvidia-cuda-mps-control.pid").read_text())

    def log(self) -> list[str]:
        """The lines since the daemon's last start."""
        text = (self.directory / "log/control.log").read_text()
        return text.rpartition("Start\n")[2].splitlines()

    def modes(self) -> list[int]:
        paths = [self.machine.directory / f"run/compute-mode.{gpu.minor}" for gpu in self.gpus]
        return [int(path.read_text()) if path.exists() else 0 for path in paths]

    def ask(self, command: str) -> str:
        done = subprocess.run(
            [self.machine.directory / "root/usr/bin/nvidia-cuda-mps-control"],
            input=f"{command}\n",
            capture_output=True,
            text=True,
            check=False,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(self.directory / "pipe")},
        )
        return done.stdout.strip()


@pytest.fixture
def running(tmp_path: Path, require, monkeypatch) -> Callable[[], Running]:
    require(os.geteuid() == 0, "needs root: mknod, compute mode, mount")
    monkeypatch.setattr(mps, "EVERY", 0.5)
    monkeypatch.setattr(mps, "ANSWER", 1.0)
    machine = Machine(tmp_path / "sim", 2)
    return lambda: Running(machine, tmp_path / "mps")


def test_clients_are_limited_and_have_a_shm_of_their_own(running) -> None:
    async def run() -> None:
        async with running() as it:
            assert it.mps.reason == "the MPS control daemon is not started yet"
            await it.until(healthy=True)
            assert it.ask("get_default_active_thread_percentage") == "25.0"
            assert it.ask("get_default_device_pinned_mem_limit 0") == "4096M"
            assert it.ask("get_default_device_pinned_mem_limit 1") == "4096M"
            assert it.ask("get_default_device_pinned_mem_limit 2") == ""
            assert it.modes() == [3, 3]
            shm = it.directory.parents[1] / "shm"
            assert shm.stat().st_mode & 0o7777 == 0o1777
            where = shm.stat()
            number = f"{os.major(where.st_dev)}:{os.minor(where.st_dev)}:{where.st_ino}"
            assert f"shm={number}" in it.log()
            assert Path("/dev/shm").stat().st_ino != where.st_ino
            assert f"CUDA_VISIBLE_DEVICES={it.gpus[0].uuid},{it.gpus[1].uuid}" in it.log()

    asyncio.run(run())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_dies_is_noticed_at_once_and_replaced_with_its_limits(running, how) -> None:
    async def run() -> None:
        async with running() as it:
            await it.until(healthy=True)
            before = it.pid
            os.kill(before, how)
            assert await it.until(healthy=False) < 0.4
            assert f"ended with status -{int(how)} " in it.mps.reason
            await it.until(healthy=True)
            assert it.pid != before
            assert it.ask("get_default_active_thread_percentage") == "25.0"
            assert it.ask("get_default_device_pinned_mem_limit 1") == "4096M"

    asyncio.run(run())


def test_no_server_outlives_its_daemon_however_that_ends(running) -> None:
    async def run() -> None:
        it = running()
        program = it.machine.directory / "root/usr/bin/nvidia-cuda-mps-control"
        real = program.rename(program.with_name("real"))
        servers = it.machine.directory / "servers"
        program.write_text(
            f"#!/bin/sh\n[ $# = 0 ] || {{ sleep 600 & echo $! >>{servers}; }}\nexec {real} $*\n"
        )
        program.chmod(0o755)
        async with it:
            await it.until(healthy=True)
            os.kill(it.pid, signal.SIGKILL)
            await it.until(healthy=False)
            await it.until(healthy=True)
            first, second = map(int, servers.read_text().split())
            assert not is_running(first)
            assert is_running(second)
        assert it.log()[-2:] == ["quit -t 1", "Exit"]
        await asyncio.sleep(0.1)
        assert not is_running(second)

    asyncio.run(run())


def test_a_daemon_that_hangs_is_replaced(running) -> None:
    async def run() -> None:
        async with running() as it:
            await it.until(healthy=True)
            before = it.pid
            os.kill(before, signal.SIGSTOP)
            assert await it.until(healthy=False) < 3
            assert "does not answer for 1 s" in it.mps.reason
            await it.until(healthy=True)
            assert it.pid != before
            assert not Path(f"/proc/{before}").exists()

    asyncio.run(run())


def test_a_daemon_whose_limits_were_changed_is_replaced(running) -> None:
    async def run() -> None:
        async with running() as it:
            await it.until(healthy=True)
            it.ask("set_default_active_thread_percentage 90")
            await it.until(healthy=False)
            assert "other limits: 90.0 % threads" in it.mps.reason
            await it.until(healthy=True)
            assert it.ask("get_default_active_thread_percentage") == "25.0"

    asyncio.run(run())


def test_a_daemon_that_was_left_behind_is_replaced(running) -> None:
    async def run() -> None:
        it = running()
        pipe, log = it.directory / "pipe", it.directory / "log"
        pipe.mkdir(parents=True)
        log.mkdir()
        program = it.machine.directory / "root/usr/bin/nvidia-cuda-mps-control"
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
        subprocess.run([program, "-d"], check=True, env=environment)
        while not (pipe / "nvidia-cuda-mps-control.pid").exists():
            await asyncio.sleep(0.01)
        old = it.pid
        try:
            async with it:
                await it.until(healthy=True)
                assert it.pid != old
                assert not is_running(old)
        finally:
            if is_running(old):
                os.kill(old, signal.SIGKILL)

    asyncio.run(run())


def is_running(pid: int) -> bool:
    """Tell whether a process is there and more than what its new parent has not asked for yet."""
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_daemon_that_can_not_start_says_why_and_is_tried_again_ever_later(running) -> None:
    async def run() -> None:
        it = running()
        program = it.machine.directory / "root/usr/bin/nvidia-cuda-mps-control"
        good = program.read_bytes()
        program.write_text("#!/bin/sh\necho something is wrong with the GPU\nexit 3\n")
        async with it:
            await asyncio.sleep(5)
            assert it.mps.reason == (
                "the MPS control daemon ended with status 3: something is wrong with the GPU "
                f"(hint: see {it.directory}/log/control.log)"
            )
            assert it.reasons == [it.mps.reason]
            program.write_bytes(good)
            await it.until(healthy=True)

    asyncio.run(run())


def test_gpus_that_can_not_be_exclusive_are_a_reason_and_lost_ones_none(running) -> None:
    async def run() -> None:
        it = running()
        it.machine.say("gpu0.status=failed")
        async with it:
            await it.until(healthy=False)
            while it.mps.reason.endswith("yet"):
                await asyncio.sleep(0.05)
            assert f"can't be set: {it.gpus[0].uuid} Unknown Error" in it.mps.reason
            it.machine.say("gpu0.status=lost")
            await it.until(healthy=True)
            assert it.modes() == [0, 3]
            it.machine.mend()

    asyncio.run(run())
