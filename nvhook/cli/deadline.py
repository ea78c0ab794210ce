"""Commands for a container that end, whatever it does: in a child, which is given up if need be."""

import gc
import os
import signal
from collections.abc import Callable
from typing import Any, TypeVar

import click

from nvhook.cli.options import load_config
from nvhook.errors import ContainerError
from nvhook.kernel import child as children

F = TypeVar("F", bound=Callable[..., Any])

SECONDS = 60.0
_TO_RECOVER = 5.0


def timeout_option(function: F) -> F:
    """Add --timeout."""
    option = click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="Give up when a file system of the container does not answer.",
    )
    return option(function)


def go_on_in_child(what: str, seconds: float, undo: Callable[[], bytes]) -> None:
    """Return in a child; the caller waits for it, and ends as it does.

    undo: called in another child, where the first had to be killed.

    Raises: ContainerError in the caller, if the child does not end in time.
    """
    gc.freeze()  # else the collector writes to each object, and the kernel copies it for the child
    # Who reads a pipe of ours would wait for a child, too, that can't be ended.
    kept = {fd: os.memfd_create("output") for fd in (1, 2) if not os.isatty(fd)}
    child = children.fork()
    if child == 0:
        for fd, file in kept.items():
            os.dup2(file, fd)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells the child, too
    ended = children.ends(child, seconds)
    for fd, file in kept.items():
        _copy(file, fd)
    if ended:
        _end_like(child)
    children.kill(child)
    undone = children.answer_of(undo, _TO_RECOVER) is not None
    rest = "what it had begun is cleaned up" if undone else "the next inject or eject cleans up"
    raise ContainerError(
        f"{what} has not ended within {seconds:g} s, and is given up",
        "a file system in the container does not answer (FUSE, NFS), or another nvhook is at work; "
        + rest,
    )


def recover(pid: int, force: bool) -> bytes:
    """Undo what an inject into a container has left, or complete an eject; say which.

    Raises: NvhookError.
    """
    from nvhook.live import eject
    from nvhook.live.container import LiveContainer

    settings = load_config()
    with LiveContainer(pid, settings.state_directory, force) as container:
        return eject.recover(container, settings).encode()


def _copy(file: int, to: int) -> None:
    """Write all of a file to a descriptor."""
    with open(file, "rb") as source, open(to, "wb", closefd=False) as target:
        source.seek(0)
        target.write(source.read())


def _end_like(child: int) -> None:
    """End with a child's exit status, or by the signal that ended it."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)  # it has nothing to clean up, and the interpreter takes its time for that
