"""Children that do what may never come to an end: a file system of a container can fail to answer.

Such a call can't be interrupted, and often not even be killed: it is left to itself.
"""

from __future__ import annotations

import os
import select
import signal

import prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TO_DIE = 1.0  # seconds: killed, it ends at once, or when the file system answers


def fork() -> int:
    """Fork a child that ends with its parent; return what os.fork() does."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        prctl.set_pdeathsig(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    return child


def ends(child: int, seconds: float) -> bool:
    """Wait for the end of a child, no longer than some seconds, and tell whether it has come."""
    pidfd = os.pidfd_open(child)
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def kill(child: int) -> None:
    """Kill a child, and wait a little for its end."""
    os.kill(child, signal.SIGKILL)
    if ends(child, _TO_DIE):
        os.waitpid(child, 0)


def answer_of(work: Callable[[], bytes], seconds: float) -> bytes | None:
    """Return what some work in a child returns; None if it fails, or takes longer."""
    file = os.memfd_create("answer")
    try:
        child = fork()
        if child == 0:
            try:
                os.write(file, work())
                os._exit(0)
            finally:
                os._exit(1)
        if not ends(child, seconds):
            kill(child)
            return None
        if os.waitpid(child, 0)[1]:
            return None
        os.lseek(file, 0, os.SEEK_SET)
        return os.read(file, os.fstat(file).st_size)
    finally:
        os.close(file)
