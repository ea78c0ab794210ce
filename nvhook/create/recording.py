"""What a start leaves behind, so that the launcher can repeat it without Python (_native/repeat.c).

One file for each kind of container, named by a digest of the request and the way it was made. Lines
of fields with tabs between them: the looks that the decision was made from, with their answers;
the operations; the lines for the log. What Python made of a file of the image, or of a device
program, lies in files beside it, named by the digest of what it was made from. Everything is
root's alone, written aside and renamed, and bounded: the oldest goes.
"""

from __future__ import annotations

import os
import stat

from nvhook import __version__, observations, state
from nvhook._native import call, ffi, lib
from nvhook._native.digests import of_request
from nvhook.formats.json_splice import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvhook.create.loader_cache import Merge
    from nvhook.kernel.cgroup import DeviceCgroup
    from nvhook.log import Log

NAME = "recordings"
# The same request in images with different facts; the launcher tries as many.
VARIANTS = 8
MAX_FILES = 512
MAX_BYTES = 64 << 20
# Raise it with every change of the format, or of what an operation means.
SCHEMA = "nvhook-recording 2"
REASON = ".why"  # ends the name of a file that says why a kind of container has no recording
_WHOLE = 1 << 20  # no recording is larger: the launcher's limit


class Recording:
    """A start that is being recorded, from its first look on."""

    def __init__(self) -> None:
        self.notes = observations.begin()
        self._operations: list[bytes] = []
        self._files: dict[str, bytes] = {}

    def operation(self, kind: str, *fields: object, data: bytes | None = None) -> None:
        """Add what is to be repeated; data: bytes that follow the line."""
        texts = [kind, *map(str, fields)]
        if data is not None:
            texts.append(str(len(data)))
        line = os.fsencode("\t".join(texts))
        if line.count(b"\t") != len(texts) - 1 or b"\n" in line or b"\0" in line:
            observations.spoil("a path has a tab, a line break or a zero byte")
        self._operations.append(line + b"\n" + (b"" if data is None else data + b"\n"))

    def merge(self, merge: Merge) -> None:
        """Add a file of the container that became another."""
        basis = self._basis(merge.basis)
        self.operation("merge", merge.path, basis)
        before = observations.ABSENT if merge.before is None else observations.digest(merge.before)
        self._files[_of(basis, before)] = merge.after

    def rules(self, cgroup: DeviceCgroup, rules: Iterable[tuple[str, int, int, str]]) -> None:
        """Add device rules, and how the hierarchies that decide are reached."""
        wanted = sorted(rules)
        for version, mount in cgroup.mounts.items():
            device = os.stat(mount.mount_point).st_dev
            self.operation("hierarchy", version, mount.mount_point, mount.root, device)
        for kind, major, minor, access in wanted:
            self.operation("rule", kind, major, minor, access)
        basis = self._basis(wanted)
        self.operation("programs", basis)
        for is_above, before, after in cgroup.seen:
            name = _of(basis, observations.digest(before), "above" if is_above else "own")
            self._files[name] = after

    def line(self, log: Log, level: str, message: str, **fields: object) -> None:
        """Add a line for the log, if this level is logged."""
        first, rest = log.parts(level, message, **fields)
        if first:
            self.operation("log", log.path, level, first, rest)

    def keep(self, words: Sequence[str], config_json: bytes, log: Log) -> None:
        """Write the recording; words are the door and its arguments.

        That it can't be written, or must not, is no failure: the next start is as this one.
        """
        host, root = _looks(self.notes.of_host), _looks(self.notes.of_root)  # they may spoil it
        observations.end()
        key = key_of(words, config_json)
        if not key:
            log.debug("not recorded", why="the launcher does not understand config.json")
            return
        try:
            directory = _open_directory()
            try:
                self._write(directory, key, host, root, log)
            finally:
                os.close(directory)
        except OSError as error:
            log.debug("not recorded", why=error)

    def _write(self, directory: int, key: str, host: bytes, root: bytes, log: Log) -> None:
        if self.notes.spoilt:
            log.debug("not recorded", why=self.notes.spoilt)
            _replace(directory, key + REASON, os.fsencode(self.notes.spoilt))
            return
        head = b"".join([SCHEMA.encode(), b"\n", host])
        whole = b"".join([head, root, *self._operations, b"end\n"])
        if len(whole) > _WHOLE:
            _replace(directory, key + REASON, b"the recording is too large")
            return
        for name, data in self._files.items():
            _replace(directory, name, data)
        _replace(directory, f"{key}.{_slot(directory, key, head, root)}", whole)
        _unlink(directory, key + REASON)
        _sweep(directory)

    @staticmethod
    def _basis(value: object) -> str:
        # Another version may make something else of it.
        return observations.digest(f"{SCHEMA}\n{__version__}\n{encode(value)}".encode())


def key_of(words: Sequence[str], config_json: bytes) -> str:
    """Return the name of the recordings of a request; empty if it can't have any."""
    digest = of_request(config_json)
    if digest is None:
        return ""
    said = os.fsencode("\0".join([SCHEMA, __version__, *words, ""]))
    out = ffi.new("char[65]")
    call(lib.nvh_recording_key, said, len(said), digest, out)
    return str(ffi.string(out).decode())


def _of(*parts: str) -> str:
    return "made-" + observations.digest("\0".join(parts).encode())


def _looks(looks: dict[tuple[str, ...], str]) -> bytes:
    """Return the lines of looks.

    A name may be an image's choice: what follows a line break in it would be a line of the image's
    own, a device rule for example.
    """
    text = "".join(["\t".join([*what, answer]) + "\n" for what, answer in looks.items()])
    tabs = sum([len(what) for what in looks])
    if text.count("\n") != len(looks) or text.count("\t") != tabs or "\0" in text:
        observations.spoil("a name has a tab, a line break or a zero byte")
    return os.fsencode(text)


# ---- the directory ----


def path() -> str:
    """Return where recordings are."""
    return f"{state.DIRECTORY}/{NAME}"


def _open_directory() -> int:
    """Open the directory, which is made; it must be ours alone.

    Raises: OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path(), flags)
    except FileNotFoundError:
        state.make_directory(state.DIRECTORY)
        os.mkdir(path(), 0o700)
        fd = os.open(path(), flags)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(fd)
        raise PermissionError(1, f"{path()} is not root's alone (hint: remove it)")
    return fd


def _replace(directory: int, name: str, data: bytes) -> None:
    temporary = f".{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(fd)


def _unlink(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass


def _slot(directory: int, key: str, head: bytes, root: bytes) -> int:
    """Return which variant to write; those that were made on a host in another state go.

    One for a root of the same facts is replaced: this start was not repeated by it.
    """
    ages = {}
    for number in range(VARIANTS):
        name = f"{key}.{number}"
        try:
            is_file = stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            continue
        if is_file:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                found = os.read(fd, len(head + root))
                if found == head + root:
                    return number
                if found.startswith(head):
                    ages[number] = os.fstat(fd).st_mtime_ns
                    continue
            finally:
                os.close(fd)
        _unlink(directory, name)
    free = [number for number in range(VARIANTS) if number not in ages]
    return free[0] if free else min(ages, key=lambda number: ages[number])


def _sweep(directory: int) -> None:
    """Remove the oldest files where there are too many, or too much of them."""
    found = []
    for name in os.listdir(directory):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        found.append((status.st_mtime_ns, status.st_size, name))
    found.sort()
    size = sum(each[1] for each in found)
    count = len(found)
    for _, bytes_, name in found:
        if count <= MAX_FILES and size <= MAX_BYTES:
            break
        _unlink(directory, name)
        count -= 1
        size -= bytes_
