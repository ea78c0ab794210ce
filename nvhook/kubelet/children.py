"""Child processes without asyncio's own: those leave one behind when they are cancelled in between,
and need a thread for each.
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence

MAX_INPUT = 4096  # what a pipe takes at once, whoever reads it or not
MAX_OUTPUT = 65536

Child = subprocess.Popen[bytes]


async def ended(child: Child, seconds: float | None = None) -> bool:
    """Wait for a child's end, but not longer than that; return whether it has ended."""
    if child.poll() is not None:
        return True
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    pidfd = os.pidfd_open(child.pid)
    loop.add_reader(pidfd, gone.set)
    waiting = asyncio.ensure_future(gone.wait())
    try:
        await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()
        loop.remove_reader(pidfd)
        os.close(pidfd)
    return child.poll() is not None


async def kill(child: Child) -> bool:
    """Kill a child and wait a second for its end, cancelled or not; return whether it came.

    In an uninterruptible call of the driver it dies only when the driver lets go.
    """
    child.kill()
    try:
        return await ended(child, 1)
    except asyncio.CancelledError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)
        raise


async def run(
    arguments: Sequence[str], environment: Mapping[str, str], seconds: float, text: str = ""
) -> tuple[int | None, str]:
    """Run a program with a few lines of input.

    Returns its status, None where it did not end in time, and what it printed on both channels.
    Raises: OSError where it can't be started.
    """
    child = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=environment,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdout:
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(text.encode()[:MAX_INPUT])
        try:
            in_time = await ended(child, seconds)
        finally:
            if child.poll() is None:
                await kill(child)
        # What it started may still have the channel: what is there is all there is.
        os.set_blocking(child.stdout.fileno(), False)
        output = child.stdout.read(MAX_OUTPUT) or b""
    return child.returncode if in_time else None, output.decode("utf-8", "replace").strip()
