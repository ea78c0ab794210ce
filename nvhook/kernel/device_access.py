"""Which devices a running container may open: look, grant, revoke, in all of its cgroups.

A container's processes may have moved into directories below the one its runtime made. In v2 all
programs from the process up to there must agree; in v1 each directory has a list of its own, which
new ones copy from the directory above.
"""

import os
import posix

from nvhook._native import call
from nvhook.errors import ContainerError, FormatError, UnsupportedError
from nvhook.kernel import bpf, cgroup, mountinfo, programs
from nvhook.kernel.device_rules import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvhook.kernel.device_rules import DeviceRule
    from nvhook.kernel.process import Process

CLONE_NEWCGROUP = 0x02000000
_MAX_BELOW = 4096  # cgroup directories of one container


class Directory:
    """An open cgroup directory: ``path`` as /proc/PID/cgroup names it, ``version`` 1 or 2."""

    __slots__ = ("fd", "path", "version")

    def __init__(self, version: int, path: str, fd: int) -> None:
        self.version = version
        self.path = path
        self.fd = fd


class DeviceAccess:
    """The cgroup directories that decide about a container, the topmost of each hierarchy first."""

    __slots__ = ("_mounts", "_ours", "directories")

    def __init__(
        self, process: "Process", init: "Process", host_mounts: bytes | None = None
    ) -> None:
        """Open them; init is the container's first process.

        Raises: ContainerError; HostError; FormatError.
        """
        table = mountinfo.table() if host_mounts is None else host_mounts
        self._mounts = v1, v2 = cgroup.hierarchies(table)
        theirs, first = _of(process), _of(init)
        self._ours = ours = cgroup.memberships("/proc", "self")
        inside = _seen_inside(init)
        self.directories: list[Directory] = []
        try:
            for version, mounts in ((1, v1), (2, v2)):
                at = version - 1
                chain = cgroup.open_directories(mounts, theirs[at], ours[at], cgroup.MAX_DEPTH)
                opened = _named(version, theirs[at], chain or ())
                top = _top(theirs[at], first[at], inside[at])
                self._keep(opened, top)
        except (ContainerError, FormatError):
            self.close()
            raise

    def _keep(self, opened: list[Directory], top: str) -> None:
        """Keep what is the container's of a chain from its process upwards."""
        kept = [each for each in opened if _is_below(each.path, top)] or opened[:1]
        if kept and kept[0].version == 2 and not any(cgroup.has_programs(each.fd) for each in kept):
            # As crun with systemd has it: on the scope above. A slice belongs to others, too.
            above = [each for each in opened[len(kept) :] if cgroup.has_programs(each.fd)][:1]
            kept += [each for each in above if not each.path.endswith(".slice")]
        for each in opened:
            if each not in kept:
                posix.close(each.fd)
        self.directories += reversed(kept)
        if kept and kept[0].version == 1:
            self.directories += _below(kept[-1], {each.path for each in kept})

    def grant(
        self,
        rules: "Iterable[DeviceRule]",
        announce: "Callable[[Directory, tuple[DeviceRule, ...]], None]",
    ) -> tuple[str, ...]:
        """Allow rules where they are missing; each directory's are announced before.

        Raises: NvhookError.
        """
        wanted = canonical(rules)
        done = []
        for each in self.directories:
            missing = self.missing(each, wanted)
            if not missing:
                continue
            announce(each, missing)
            if each.version == 1:
                done.append(f"v1: {each.path}: {cgroup.allow_v1(each.fd, missing)}")
            else:
                changed = programs.allow(each.fd, missing)
                done += [f"v2: {each.path}: {line}" for line in changed]
        lowest = [each.fd for each in self.directories if each.version == 2]
        if lowest and wanted:  # an open program of its own does not help below a closed one
            programs.check_above(lowest[-1], wanted)
        return tuple(done)

    def grant_again(
        self, rules: "tuple[DeviceRule, ...]", path: str, version: int
    ) -> tuple[str, ...]:
        """Allow rules in one directory where they were before; say what had to be done.

        Raises: NvhookError.
        """
        each = self._at(path, version)
        missing = self.missing(each, rules) if each is not None else None
        if each is None or not missing:
            return ()
        if version == 1:
            return (f"v1: {path}: {cgroup.allow_v1(each.fd, missing)}",)
        return tuple([f"v2: {path}: {line}" for line in programs.allow(each.fd, missing)])

    def _at(self, path: str, version: int) -> Directory | None:
        """Return a directory by its name, None if it has gone.

        It need not be among those of the container's processes any more: they may have moved, and
        a cgroup namespace that is made anew hides what is above it.

        Raises: ContainerError.
        """
        for each in self.directories:
            if (each.version, each.path) == (version, path):
                return each
        at = version - 1
        try:
            found = cgroup.open_directories(self._mounts[at], path, self._ours[at], 1)
        except ContainerError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        if not found:
            return None
        self.directories.append(Directory(version, path, found[0]))
        return self.directories[-1]

    @staticmethod
    def missing(
        directory: Directory, rules: "tuple[DeviceRule, ...]"
    ) -> "tuple[DeviceRule, ...] | None":
        """Return the rules a directory denies, None if it restricts nothing.

        Raises: NvhookError.
        """
        if directory.version == 1:
            try:
                listed = cgroup.read_list(directory.fd)
            except OSError as error:
                why = f"can't read the device rules of {directory.path}: {error.strerror}"
                raise ContainerError(why, cgroup.ENDED) from error
            if cgroup.EVERYTHING in listed:
                return None
            return tuple(
                [rule for rule in rules if not any(cgroup.covers(line, rule) for line in listed)]
            )
        ids, _ = programs.attached(directory.fd)
        if not ids:
            return None
        return tuple([rule for rule in rules if not _all_allow(ids, rule)])

    def allows(self, rule: "DeviceRule") -> bool:
        """Tell whether every directory allows a rule, and in v2 those above, too."""
        for each in self.directories:
            if self.missing(each, (rule,)):
                return False
        lowest = [each for each in self.directories if each.version == 2]
        if not lowest:
            return True
        effective, _ = programs.attached(lowest[-1].fd, programs.BPF_F_QUERY_EFFECTIVE)
        return _all_allow(effective, rule)

    def restricts(self) -> bool:
        """Tell whether any directory denies any device.

        Raises: NvhookError.
        """
        return any(self.missing(each, ()) is not None for each in self.directories)

    def revoke(self, rules: "Iterable[DeviceRule]", where: str = "", version: int = 0) -> None:
        """Deny rules in every directory, or in one; one that restricts nothing is left alone.

        In v1 a wider rule (``c 195:* rw``) still allows a single device afterwards: ask allows().

        Raises: NvhookError.
        """
        wanted = canonical(rules)
        one = self._at(where, version) if version else None
        for each in ([one] if one else []) if version else self.directories:
            if each.version == 1:
                _deny_v1(each.fd, wanted)
            elif cgroup.has_programs(each.fd):
                programs.revoke(each.fd, wanted)

    def close(self) -> None:
        """Close all directories."""
        for each in self.directories:
            posix.close(each.fd)
        self.directories.clear()


def _all_allow(ids: tuple[int, ...], rule: "DeviceRule") -> bool:
    for number in ids:
        try:
            program = programs.open_program(number)
        except programs.ProgramGoneError:
            continue
        try:
            if not bpf.run(bpf.decode(programs.instructions(program)), rule):
                return False
        except UnsupportedError:
            continue  # left to the kernel's judgement
        finally:
            posix.close(program)
    return True


def _deny_v1(directory: int, rules: "tuple[DeviceRule, ...]") -> None:
    try:
        if cgroup.EVERYTHING in cgroup.read_list(directory):
            return
        fd = posix.open("devices.deny", posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=directory)
        try:
            for kind, major, minor, access in rules:
                posix.write(fd, f"{kind} {major}:{minor} {access}".encode())
        finally:
            posix.close(fd)
    except OSError as error:
        raise ContainerError(f"can't revoke device rules: {error.strerror}") from error


def _of(process: "Process") -> tuple[str, str]:
    return cgroup.memberships("/proc/self/fd", process.proc_fd)


def _named(version: int, path: str, chain: tuple[int, ...]) -> list[Directory]:
    found = []
    for fd in chain:
        found.append(Directory(version, path, fd))
        path = path.rpartition("/")[0]
    return found


def _seen_inside(init: "Process") -> tuple[str, str]:
    """Return where init's own cgroup namespace sees it: ("", "") if it has none of its own."""
    if init.shares_namespace("cgroup"):
        return "", ""
    there = init.open("ns/cgroup", posix.O_RDONLY)
    home = posix.open("/proc/self/ns/cgroup", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        call("setns", there, CLONE_NEWCGROUP)
        try:
            return _of(init)
        except ContainerError:  # it has moved out of its namespace's root
            return "", ""
        finally:
            call("setns", home, CLONE_NEWCGROUP)
    finally:
        posix.close(there)
        posix.close(home)


def _top(theirs: str, first: str, inside: str) -> str:
    """Return the container's topmost directory: its cgroup namespace's root, or what all share."""
    if inside and first.endswith(inside.rstrip("/")):
        top = first.removesuffix(inside.rstrip("/"))
        if _is_below(theirs, top):
            return top
    shared = []
    for left, right in zip(theirs.split("/"), first.split("/"), strict=False):
        if left != right:
            break
        shared.append(left)
    top = "/".join(shared)
    if top.endswith(".slice"):  # others are in it, too: one of the two is not where it belongs
        return theirs
    parent, _, name = top.rpartition("/")
    # crun puts a container below the scope that systemd made for it, under this name.
    return parent if name == "container" and parent.endswith(".scope") else top


def _is_below(path: str, top: str) -> bool:
    return bool(top) and (path == top or path.startswith(top + "/"))


def _below(top: Directory, known: set[str]) -> list[Directory]:
    """Open the directories below one that are not known yet, each after the one above it."""
    found: list[Directory] = []
    for directory, names, _, _ in os.fwalk(".", dir_fd=top.fd):
        names.sort()
        for name in names:
            path = f"{top.path}{directory[1:]}/{name}"
            if path in known:
                continue
            if len(found) >= _MAX_BELOW:
                raise ContainerError("the container has too many cgroups")
            try:
                fd = posix.open(f"{directory}/{name}", cgroup.DIRECTORY, dir_fd=top.fd)
            except FileNotFoundError:
                continue
            found.append(Directory(1, path, fd))
    return found
