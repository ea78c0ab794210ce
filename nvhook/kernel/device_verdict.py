"""Which devices a process may open: computed from its device cgroup, and tried from inside of it.

The verdict is what every rule list and program says; the trial is what the kernel does. A rule list
of v1 that allows everything does not show its exceptions, and a program may be too odd to be
followed: then only the trial tells.
"""

import posix
import select
from errno import EIO

from nvhook.errors import ContainerError, FormatError, UnsupportedError
from nvhook.kernel import bpf, programs
from nvhook.kernel.cgroup import EVERYTHING, DeviceCgroup, covers, read_list
from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Final, NoReturn

    from nvhook.kernel.device_rules import DeviceRule
    from nvhook.kernel.process import Process

TIMEOUT = 20.0  # seconds: the first open of an idle GPU initialises it
_OPEN = posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
_JOIN_FAILED = 255
_SIGKILL = 9


class Verdict(Record):
    """Whether a device is permitted, None where that can't be computed, and who says so."""

    __slots__ = ("allowed", "rule", "why")

    def __init__(self, rule: "DeviceRule", allowed: bool | None, why: str = "") -> None:
        self.rule: Final = rule
        self.allowed: Final = allowed
        self.why: Final = why


def verdicts(found: DeviceCgroup, rules: "Iterable[DeviceRule]") -> tuple[Verdict, ...]:
    """Return for each device what the rule list of v1 and all programs up the tree of v2 say.

    Raises: NvhookError if they can't be read.
    """
    judges = _programs(found.v2[0], found.v2) if found.v2 else []
    own_v1 = found.v1[0] if found.v1 else -1
    listed = read_list(own_v1) if found.v1 else None
    answers = []
    for rule in rules:
        denied = unknown = ""
        if not found.v1 and (found.v1 == () or not found.v2):
            unknown = "it shares the cgroup of the caller"
        elif listed is not None and not any(_allows(entry, rule) for entry in listed):
            denied = f"devices.list of the cgroup {_path(own_v1)}"
        for program, where in judges:
            if denied:
                break
            kind, major, minor, access = rule
            try:
                denied = "" if bpf.emulate(program, kind, access, major, minor) else where
            except (FormatError, UnsupportedError) as error:
                unknown = f"{where}: {error.message}"
        allowed = False if denied else None if unknown else True
        answers.append(Verdict(rule, allowed, denied or unknown))
    return tuple(answers)


def _allows(entry: str, rule: "DeviceRule") -> bool:
    return entry == EVERYTHING or covers(entry, rule)


def _programs(leaf: int, directories: tuple[int, ...]) -> list[tuple[bytes, str]]:
    """Return every program that decides, and where it is attached; no bytes: it is hidden."""
    own: dict[int, str] = {}
    for directory in directories:
        above = ", above the container's" if own else ""
        for number in programs.attached(directory)[0]:
            own[number] = f"program {number} of the cgroup {_path(directory)}{above}"
    judges = []
    for number in programs.attached(leaf, programs.BPF_F_QUERY_EFFECTIVE)[0]:
        where = own.get(number, f"program {number} of a cgroup above")
        try:
            fd = programs.open_program(number)
        except programs.ProgramGoneError:
            continue
        try:
            judges.append((programs.instructions(fd), where))
        except UnsupportedError:
            judges.append((b"", where))
        finally:
            posix.close(fd)
    return judges


def _path(directory: int) -> str:
    return posix.readlink(f"/proc/self/fd/{directory}")


def try_open(process: "Process", found: DeviceCgroup, nodes: "Sequence[int]") -> tuple[int, ...]:
    """Open nodes, given by O_PATH descriptors, as the process could; 0 or an errno for each.

    A forked child enters the process's device cgroup and takes its user and groups. It needs no
    other namespace: a descriptor keeps the mount it was reached by. Nothing of the container is
    executed, and ENXIO (permitted, no driver) is told from EPERM (denied).

    Raises: ContainerError if the child can't enter, or does not come back in time.
    """
    user, groups = _identity(process)
    entrances = [
        posix.open("cgroup.procs", posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=each[0])
        for each in (found.v1, found.v2)
        if each
    ]
    reader, writer = posix.pipe()
    pid = posix.fork()
    if pid == 0:
        _child(entrances, user, groups, nodes, writer)
    for fd in (*entrances, writer):
        posix.close(fd)
    try:
        answers = _answers(reader, len(nodes))
    finally:
        posix.close(reader)
        posix.kill(pid, _SIGKILL)
        posix.waitpid(pid, 0)
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
        chunk = posix.read(reader, 4096)
        if not chunk:
            break
        answers += chunk
    return answers


def _identity(process: "Process") -> tuple[tuple[int, int], list[int]]:
    """Return the process's (uid, gid) and groups, as the file system counts them, in our terms."""
    fields: dict[str, list[int]] = {}
    for line in process.read("status").decode("ascii", "replace").splitlines():
        name, _, values = line.partition(":")
        if name in {"Uid", "Gid", "Groups"}:
            fields[name] = [int(value) for value in values.split()]
    return (fields["Uid"][3], fields["Gid"][3]), fields["Groups"]


def _child(
    entrances: "Sequence[int]",
    user: tuple[int, int],
    groups: list[int],
    nodes: "Sequence[int]",
    writer: int,
) -> "NoReturn":
    """Open the nodes and write one byte for each; nothing is imported, nobody else's code runs."""
    answers = [_JOIN_FAILED]
    try:
        for entrance in entrances:
            posix.write(entrance, b"0")
        posix.setgroups(groups)
        posix.setresgid(user[1], user[1], user[1])
        posix.setresuid(user[0], user[0], user[0])
        answers.clear()
        for node in nodes:
            # One by one: where one hangs, the others' answers are out.
            posix.write(writer, bytes((_errno_of_open(node),)))
    finally:  # whatever happens: this is a copy of the caller
        posix.write(writer, bytes(answers))
        posix._exit(0)


def _errno_of_open(node: int) -> int:
    try:
        posix.close(posix.open(f"/proc/self/fd/{node}", _OPEN))
    except OSError as error:
        return error.errno or EIO
    return 0
