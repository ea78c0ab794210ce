"""Which devices a process may open: tried, by a child in its cgroup, as its user."""

from __future__ import annotations

import os
import select
from errno import EIO

from nvhook.errors import ContainerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from nvhook.kernel.cgroup import DeviceCgroup
    from nvhook.kernel.process import Process

TIMEOUT = 20.0  # seconds: the first open of an idle GPU initialises it
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_JOIN_FAILED = 255
_SIGKILL = 9


def try_open(process: Process, found: DeviceCgroup, nodes: Sequence[int]) -> tuple[int, ...]:
    """Open nodes, given by O_PATH descriptors, as the process could; 0 or an errno for each.

    A forked child enters the process's device cgroup and takes its user and groups. It needs no
    other namespace: a descriptor keeps the mount it was reached by. Nothing of the container is
    executed, and ENXIO (permitted, no driver) is told from EPERM (denied).

    Raises: ContainerError if the child can't enter, or does not come back in time.
    """
    user, groups = _identity(process)
    entrances = [
        os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=each[0])
        for each in (found.v1, found.v2)
        if each
    ]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(entrances, user, groups, nodes, writer)
    for fd in (*entrances, writer):
        os.close(fd)
    try:
        answers = _answers(reader, len(nodes))
    finally:
        os.close(reader)
        os.kill(pid, _SIGKILL)
        os.waitpid(pid, 0)
    if answers[:1] == bytes((_JOIN_FAILED,)):
        raise ContainerError("can't enter the container's cgroup and user", "run it as root")
    if len(answers) < len(nodes):
        raise ContainerError(
            f"opening a device did not come back within {TIMEOUT:.0f} s",
            "is the container paused, or the GPU hung? dmesg | grep -i xid",
        )
    return tuple(answers)


def _answers(reader: int, count: int) -> bytes:
    answers = b""
    while len(answers) < count and select.select([reader], [], [], TIMEOUT)[0]:
        chunk = os.read(reader, 4096)
        if not chunk:
            break
        answers += chunk
    return answers


def _identity(process: Process) -> tuple[tuple[int, int], list[int]]:
    """Return the process's (uid, gid) and groups, as the file system counts them, in our terms."""
    fields: dict[str, list[int]] = {}
    for line in process.read("status").decode("ascii", "replace").splitlines():
        name, _, values = line.partition(":")
        if name in {"Uid", "Gid", "Groups"}:
            fields[name] = [int(value) for value in values.split()]
    return (fields["Uid"][3], fields["Gid"][3]), fields["Groups"]


def _child(
    entrances: Sequence[int],
    user: tuple[int, int],
    groups: list[int],
    nodes: Sequence[int],
    writer: int,
) -> NoReturn:
    """Open the nodes and write one byte for each; nothing is imported, nobody else's code runs."""
    answers = [_JOIN_FAILED]
    try:
        for entrance in entrances:
            os.write(entrance, b"0")
        os.setgroups(groups)
        os.setresgid(user[1], user[1], user[1])
        os.setresuid(user[0], user[0], user[0])
        answers.clear()
        for node in nodes:
            # One by one: where one hangs, the others' answers are out.
            os.write(writer, bytes((_errno_of_open(node),)))
    finally:  # whatever happens: this is a copy of the caller
        os.write(writer, bytes(answers))
        os._exit(0)


def _errno_of_open(node: int) -> int:
    try:
        os.close(os.open(f"/proc/self/fd/{node}", _OPEN))
    except OSError as error:
        return error.errno or EIO
    return 0
