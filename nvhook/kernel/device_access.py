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

    __slots__ = ("directories",)

    def __init__(
        self, process: "Process", init: "Process", host_mounts: bytes | None = None
    ) -> None:
        """Open them; init is the container's first process.

        Raises: ContainerError; HostError; FormatError.
        """
        table = mountinfo.table() if host_mounts is None else host_mounts
        v1, v2 = cgroup.hierarchies(table)
        theirs, first = _of(process), _of(init)
        ours = cgroup.memberships("/proc", "self")
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
            # As crun with systemd has it: the program is on the scope above.
            kept += [each for each in opened[len(kept) :] if cgroup.has_programs(each.fd)][:1]
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
        decided = False
        for each in self.directories:
            missing = self.missing(each, wanted)
            decided = decided or missing is not None
            if not missing:
                continue
            announce(each, missing)
            if each.version == 1:
                done.append(f"v1: {each.path}: {cgroup.allow_v1(each.fd, missing)}")
            else:
                changed = programs.allow(each.fd, missing)
                done += [f"v2: {each.path}: {line}" for line in changed]
        lowest = [each.fd for each in self.directories if each.version == 2]
        if not decided and lowest and wanted:
            programs.check_above(lowest[-1], wanted)
        return tuple(done)

    def grant_again(
        self, rules: "tuple[DeviceRule, ...]", path: str, version: int
    ) -> tuple[str, ...]:
        """Allow rules in one directory where they were before; say what had to be done.

        Raises: NvhookError.
        """
        done: list[str] = []
        for each in self.directories:
            missing = self.missing(each, rules)
            if (each.version, each.path) != (version, path) or not missing:
                continue
            if version == 1:
                done.append(f"v1: {path}: {cgroup.allow_v1(each.fd, missing)}")
            else:
                done += [f"v2: {path}: {line}" for line in programs.allow(each.fd, missing)]
        return tuple(done)

    @staticmethod
    def missing(
        directory: Directory, rules: "tuple[DeviceRule, ...]"
    ) -> "tuple[DeviceRule, ...] | None":
        """Return the rules a directory denies, None if it restricts nothing.

        Raises: NvhookError.
        """
        if directory.version == 1:
            listed = cgroup.read_list(directory.fd)
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

    def revoke(self, rules: "Iterable[DeviceRule]", where: str = "", version: int = 0) -> bool:
        """Deny rules in every directory, or in one; False if nothing restricts the container.

        Raises: NvhookError.
        """
        wanted = canonical(rules)
        restricted = False
        for each in self.directories:
            if version and (each.version, each.path) != (version, where):
                continue
            if each.version == 1:
                restricted = _deny_v1(each.fd, wanted) or restricted
            elif cgroup.has_programs(each.fd):
                programs.revoke(each.fd, wanted)
                restricted = True
        return restricted

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


def _deny_v1(directory: int, rules: "tuple[DeviceRule, ...]") -> bool:
    try:
        if cgroup.EVERYTHING in cgroup.read_list(directory):
            return False
        fd = posix.open("devices.deny", posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=directory)
        try:
            for kind, major, minor, access in rules:
                posix.write(fd, f"{kind} {major}:{minor} {access}".encode())
        finally:
            posix.close(fd)
    except OSError as error:
        raise ContainerError(f"can't revoke device rules: {error.strerror}") from error
    return True


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
