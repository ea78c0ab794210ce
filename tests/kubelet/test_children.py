"""Child processes: their end is seen, in time or not, and none is left behind."""

import asyncio
import subprocess
import threading
import time

import pytest

from nvhook.kubelet import children
from tests.descriptors import open_here
from tests.kubelet import processes

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def count() -> tuple[int, int]:
    return len(processes.children()), threading.active_count()


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("cat; echo bad >&2; exit 3", (3, "in\nbad")),
        ("exec 0<&-; exit 0", (0, "")),
        ("sleep 5 & echo out", (0, "out")),  # who has the channel still isn't waited for
        ("kill -9 $$", (-9, "")),
        ("sleep 5", (None, "")),
    ],
)
def test_a_program_has_a_status_and_an_output(script: str, answer) -> None:
    async def run() -> None:
        before, descriptors = count(), open_here()
        started = time.monotonic()
        assert await children.run(["sh", "-c", script], ENVIRONMENT, 1, "in\n") == answer
        assert time.monotonic() - started < 3
        assert count() == before
        assert open_here() - descriptors == set()

    asyncio.run(run())


def test_a_cancelled_one_is_ended() -> None:
    async def run() -> None:
        before = count()
        task = asyncio.create_task(children.run(["sleep", "60"], ENVIRONMENT, 60))
        await asyncio.sleep(0.2)
        assert count() == (before[0] + 1, before[1])
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert count() == before

    asyncio.run(run())


def test_twice_cancelled_it_is_ended_too() -> None:
    async def run() -> None:
        child = subprocess.Popen(["sleep", "60"])
        task = asyncio.create_task(children.kill(child))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert child.returncode == -9

    asyncio.run(run())


def test_a_program_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(children.run(["/nowhere"], ENVIRONMENT, 1))
