"""What nvhook inject has done to a running container, so that it can be undone: one file for each.

The file is the truth of what was committed, one step a line; after a line "work" come the steps of
an inject or eject that is not finished, each written before it is taken. Committing replaces the
file in one rename. A file that ends in "work" after its process has gone says what to undo or
complete. It is named by the container's first process and its start time, and says which container
that was: where that, or its root, is another one now, nothing is undone in its files.
"""

from __future__ import annotations

import json  # here: while it is in a container, nothing may be imported
import os
import re
import signal
from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256

from nvhook import lock, state
from nvhook.core.ownership import is_shared
from nvhook.errors import FormatError, HostError
from nvhook.kernel.root import CONTENT, DIRECTORY, FILE, LINK, MOUNT, OldFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.kernel.device_rules import DeviceRule

RULES = "rules"
VERSION = 1
MAX_BYTES = 256 << 20
# How many numbers each kind of step has.
_NUMBERS = {RULES: 1, MOUNT: 2, DIRECTORY: 0, FILE: 0, LINK: 0, CONTENT: 2}
_RULE = r"[bc] \d+:\d+ [rwm]"
_RULES = re.compile(rf"{_RULE}+(,{_RULE}+)*")
_OLD_RULES = re.compile(rf"({_RULE}*(,{_RULE}*)*)?")
_FAULT = "NVHOOK_FAULT"  # for tests: end the process, as by kill -9, at this boundary


@dataclass(frozen=True, slots=True)
class Step:
    """One change. What ``path``, ``new``, ``old`` and ``numbers`` say depends on ``kind``.

    rules: cgroup directory, "c 195:0 rw,...", the same of what it said of these devices before,
    (cgroup version,); mount: container path, -, -, (st_dev, st_ino); directory, file: container
    path; link: container path, target, old target; content: container path, digest, old file.
    ``owner``: see core.ownership.
    """

    kind: str
    owner: str
    path: str
    new: str = ""
    old: OldFile | str | None = None
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """An unfinished inject or eject: ``gpus`` are owners, ``writer`` the process that did it."""

    kind: str
    gpus: tuple[str, ...]
    writer: int


class Journal:
    """A container's journal, locked: other nvhook processes wait until it is closed.

    ``steps`` are committed; ``work`` is unfinished (None: nothing is) and ``taken`` its steps.
    """

    def __init__(self, state_directory: str, name: str, boot_id: str, identity: str = "") -> None:
        """Open or start a journal, and wait for the lock.

        Raises: HostError if the directory can't be used; FormatError for a damaged file.
        """
        self.name = name
        self.path = f"{directory(state_directory)}/{name}"
        self.steps: tuple[Step, ...] = ()
        self.work: Work | None = None
        self.taken: list[Step] = []
        self._boot_id = boot_id
        self._identity = identity
        # Whether what is written is of the container as it is now.
        self.is_of_this = True
        self._file = -1
        try:
            state.make_private(state_directory, os.path.dirname(self.path))
            self._lock = lock.take(f"{self.path}.lock")
        except OSError as error:
            raise HostError(
                f"can't keep a journal at {self.path}: {error.strerror}", "run nvhook as root"
            ) from error
        try:
            self._read()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def owners(self) -> tuple[str, ...]:
        """The devices that inject has given, in the order of giving."""
        return tuple(dict.fromkeys(step.owner for step in self.steps if not is_shared(step.owner)))

    def begin(self, kind: str, gpus: tuple[str, ...]) -> None:
        """Start an inject or eject."""
        boundary()
        self.work = Work(kind, gpus, os.getpid())
        self.taken = []
        self._replace([*self._committed(), {"work": kind, "gpus": gpus, "writer": os.getpid()}])
        boundary()

    def add(self, step: Step) -> None:
        """Write a step down, before it is taken."""
        boundary()
        self._write(_line(_row(step)))
        self.taken.append(step)
        boundary()

    def commit(self, steps: tuple[Step, ...]) -> None:
        """End the work; steps are what is there to be undone from now on."""
        boundary()
        self.steps = steps
        self.work = None
        self.taken = []
        if steps:
            self._replace(self._committed())
        else:
            self._drop()
        boundary()

    def close(self) -> None:
        """Let others go on."""
        self._close_file()
        if not os.path.exists(self.path):
            _unlink(f"{self.path}.lock")
        os.close(self._lock)

    def _committed(self) -> list[object]:
        head = {"nvhook": VERSION, "boot": self._boot_id, "container": self._identity}
        return [head, *(_row(step) for step in self.steps)]

    def _replace(self, rows: list[object]) -> None:
        self._close_file()
        temporary = f"{self.path}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_APPEND
        self._file = os.open(temporary, flags, 0o600)
        self._write(b"".join(map(_line, rows)))
        os.rename(temporary, self.path)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def _drop(self) -> None:
        self._close_file()
        _unlink(self.path)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> None:
        try:
            with open(self.path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return
        # A line without its end was never complete, and its step never taken.
        lines = data.split(b"\n")[:-1]
        try:
            rows = [json.loads(line) for line in lines]
            if rows[0]["nvhook"] != VERSION:
                raise ValueError("another version")
            if rows[0]["boot"] != self._boot_id:
                return
            self._take(rows[1:])
            self.is_of_this = rows[0].get("container") == self._identity
            self._identity = rows[0].get("container", "")
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise FormatError(
                f"the journal {self.path} is damaged",
                "move it away: what it says about this container is then not undone",
            ) from error

    def _take(self, rows: list[dict[str, object] | list[object]]) -> None:
        steps: list[Step] = []
        for row in rows:
            if isinstance(row, list):
                steps.append(_step(row))
                continue
            self.steps, steps = tuple(steps), []
            gpus, writer = row["gpus"], row["writer"]
            if not isinstance(gpus, list) or not isinstance(writer, int):
                raise TypeError
            if row["work"] not in ("inject", "eject"):
                raise ValueError
            self.work = Work(str(row["work"]), tuple(map(str, gpus)), writer)
        if self.work is None:
            self.steps = tuple(steps)
        else:
            self.taken = steps


def rules_of(text: str) -> tuple[DeviceRule, ...]:
    """Return the rules in a step's text."""
    rules = []
    for each in text.split(",") if text else ():
        kind, numbers, access = each.split(" ")
        major, _, minor = numbers.partition(":")
        rules.append((kind, int(major), int(minor), access))
    return tuple(rules)


def rules_text(rules: tuple[DeviceRule, ...]) -> str:
    """Return rules as the text of a step."""
    return ",".join([f"{kind} {major}:{minor} {access}" for kind, major, minor, access in rules])


def digest(data: bytes) -> str:
    """Return what tells a file's content from another."""
    return sha256(data).hexdigest()


def directory(state_directory: str) -> str:
    """Return where the journals of containers are."""
    return f"{state_directory.rstrip('/')}/containers"


def names(state_directory: str) -> tuple[str, ...]:
    """Return the names of all journals."""
    try:
        found = os.listdir(directory(state_directory))
    except FileNotFoundError:
        return ()
    return tuple(sorted(name for name in found if re.fullmatch(r"[0-9]+-[0-9]+", name)))


def forget(state_directory: str, name: str) -> None:
    """Remove the journal of a container that has gone."""
    for suffix in ("", ".new", ".lock"):
        _unlink(f"{directory(state_directory)}/{name}{suffix}")


def boundary() -> None:
    """Stand between two steps, where tests end the process."""
    left = os.environ.get(_FAULT)
    if left is not None:
        os.environ[_FAULT] = str(int(left) - 1)
        if int(left) <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _line(row: object) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _row(step: Step) -> list[object]:
    old: object = step.old
    if isinstance(step.old, OldFile):
        text = b64encode(step.old.data).decode("ascii")
        old = [text, step.old.mode, *step.old.owner]
    return [step.kind, step.owner, step.path, step.new, old, step.numbers]


def _step(row: list[object]) -> Step:
    kind, owner, path, new, old, numbers = row
    if not isinstance(numbers, list):
        raise TypeError
    if len(numbers) != _NUMBERS[str(kind)]:
        raise ValueError
    if kind == RULES and not (_RULES.fullmatch(str(new)) and _OLD_RULES.fullmatch(str(old or ""))):
        raise ValueError
    before: OldFile | str | None
    if isinstance(old, list):
        text, mode, uid, gid = old
        if not all(isinstance(each, int) for each in (mode, uid, gid)):
            raise TypeError
        before = OldFile(b64decode(text), mode, (uid, gid))
    else:
        before = None if old is None else str(old)
    found = tuple(int(number) for number in numbers)
    return Step(str(kind), str(owner), str(path), str(new), before, found)
