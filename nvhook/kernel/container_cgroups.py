"""The cgroup directories that decide about a running container's devices.

A container's processes may have moved into directories below the one its runtime made. In v2 all
programs from the process up to there must agree; in v1 each directory has a list of its own, which
new ones copy from the directory above.
"""

from __future__ import annotations

import os

from nvhook._native import call, lib
from nvhook.errors import ContainerError, FormatError
from nvhook.kernel import cgroup, mountinfo
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.kernel.process import Process

CLONE_NEWCGROUP = 0x02000000
_MAX_BELOW = 4096  # cgroup directories of one container


@record
class Directory:
    """An open cgroup directory: ``path`` as /proc/PID/cgroup names it, ``version`` 1 or 2."""

    version: int
    path: str
    fd: int


class ContainerCgroups:
    """Those directories, open: ``directories``, the topmost of each hierarchy first."""

    __slots__ = ("_mounts", "_ours", "directories")

    def __init__(self, process: Process, init: Process, host_mounts: bytes | None = None) -> None:
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
                os.close(each.fd)
        self.directories += reversed(kept)
        if kept and kept[0].version == 1:
            self.directories += _below(kept[-1], {each.path for each in kept})

    def at(self, path: str, version: int) -> Directory | None:
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

    def close(self) -> None:
        """Close all directories."""
        for each in self.directories:
            os.close(each.fd)
        self.directories.clear()


def _of(process: Process) -> tuple[str, str]:
    return cgroup.memberships("/proc/self/fd", process.proc_fd)


def _named(version: int, path: str, chain: tuple[int, ...]) -> list[Directory]:
    found = []
    for fd in chain:
        found.append(Directory(version, path, fd))
        path = path.rpartition("/")[0]
    return found


def _seen_inside(init: Process) -> tuple[str, str]:
    """Return where init's own cgroup namespace sees it: ("", "") if it has none of its own."""
    if init.shares_namespace("cgroup"):
        return "", ""
    there = init.open("ns/cgroup", os.O_RDONLY)
    home = os.open("/proc/self/ns/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    try:
        call(lib.nvh_setns, there, CLONE_NEWCGROUP)
        try:
            return _of(init)
        except ContainerError:  # it has moved out of its namespace's root
            return "", ""
        finally:
            call(lib.nvh_setns, home, CLONE_NEWCGROUP)
    finally:
        os.close(there)
        os.close(home)


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
                fd = os.open(f"{directory}/{name}", cgroup.DIRECTORY, dir_fd=top.fd)
            except FileNotFoundError:
                continue
            found.append(Directory(1, path, fd))
    return found
