"""The device cgroup of a process, v1 and v2: which device nodes it may open.

Where a process belongs is in /proc/PID/cgroup; where that hierarchy can be reached, only in the
reader's own mountinfo: a host with only cgroup2 mounted still lists the v1 controllers per process.

A directory that also holds the calling process is left alone. Rules added there would be given to
the runtime and everything else in it.
"""

from __future__ import annotations

import os
from errno import EINVAL

from nvhook._native import SyscallError, call, ffi, lib
from nvhook.errors import ContainerError, FormatError, HostError
from nvhook.kernel import mountinfo
from nvhook.kernel.descriptors import content
from nvhook.kernel.device_rules import DeviceRule, canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.kernel.mountinfo import MountInfo
    from nvhook.kernel.process import Process

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
BPF_F_QUERY_EFFECTIVE = 1  # with the programs of the directories above
EVERYTHING = "a *:* rwm"
SYSTEMD_SOCKET = "/run/systemd/private"
ENDED = "has the process ended?"
UNRESTRICTED = "no program attached, nothing of its own restricts devices"
SHARED = "shares the runtime's own cgroup, left alone"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class DeviceCgroup:
    """Open directories that decide about a process's devices.

    ``v1`` and ``v2`` go from the process's own directory up to the last one that does not hold the
    caller (v1: the own one only); None is a hierarchy that is not mounted. ``mounts`` are those by
    which they were reached, by version.
    """

    __slots__ = ("mounts", "seen", "v1", "v2")

    def __init__(self, v1: tuple[int, ...] | None, v2: tuple[int, ...] | None) -> None:
        self.v1 = v1
        self.v2 = v2
        self.mounts: dict[int, MountInfo] = {}
        # Device programs as they were found, whether above, and as they are now.
        self.seen: list[tuple[bool, bytes, bytes]] = []

    def allow(self, rules: Iterable[DeviceRule]) -> tuple[str, ...]:
        """Let the process open these devices too; say what was done in each hierarchy.

        Raises: NvhookError.
        """
        wanted = canonical(rules)
        if not wanted:
            return ()
        done: list[str] = []
        if self.v1 is not None:
            done.append("v1: " + (allow_v1(self.v1[0], wanted) if self.v1 else SHARED))
        if self.v2 is not None:
            done += [f"v2: {line}" for line in self._allow_v2(wanted)]
        return tuple(done)

    def _allow_v2(self, rules: tuple[DeviceRule, ...]) -> tuple[str, ...]:
        for directory in self.v2 or ():
            if has_programs(directory):
                from nvhook.kernel import programs  # on a hybrid host v1 decides without it

                return programs.allow(directory, rules, self.seen) or ("unchanged",)
        if self.v1 is not None:  # a hybrid host, where v1 decides
            return ()
        if not self.v2:
            return (SHARED,)
        if has_programs(self.v2[0], BPF_F_QUERY_EFFECTIVE):
            from nvhook.kernel import programs

            programs.check_above(self.v2[0], rules, self.seen)
        return (UNRESTRICTED,)

    def close(self) -> None:
        """Close the directories."""
        for fd in (self.v1 or ()) + (self.v2 or ()):
            os.close(fd)
        self.v1 = self.v2 = None

    def __enter__(self) -> DeviceCgroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find(pid: int, proc: str = "/proc", host_mounts: bytes | None = None) -> DeviceCgroup:
    """Open the device cgroup of a process; host_mounts is the caller's mountinfo, if it has it.

    Raises: HostError if no hierarchy is mounted; ContainerError if the process's directory can't be
    reached; FormatError.
    """
    v1, v2 = hierarchies(mountinfo.table(proc) if host_mounts is None else host_mounts)
    theirs, ours = memberships(proc, pid), memberships(proc, "self")
    found = DeviceCgroup(None, None)
    try:
        found.v1 = open_directories(v1, theirs[0], ours[0], 1)
        found.v2 = open_directories(v2, theirs[1], ours[1], MAX_DEPTH)
        for version, mounts, directory in ((1, v1, theirs[0]), (2, v2, theirs[1])):
            mount = mount_of(mounts, directory)
            if mount is not None:
                found.mounts[version] = mount
    except (ContainerError, HostError):
        found.close()
        raise
    if found.v1 is None and found.v2 is None:
        raise HostError(
            "neither the devices hierarchy of cgroup v1 nor cgroup v2 is mounted",
            "mount cgroup2 at /sys/fs/cgroup",
        )
    return found


def unit_of(process: Process) -> str:
    """Return the systemd unit whose cgroup a process is in.

    Empty if there is none, if it is the caller's own, or if systemd does not manage this host.

    Raises: ContainerError if the process has ended.
    """
    try:
        os.stat(SYSTEMD_SOCKET)
    except OSError:
        return ""
    theirs, ours = [
        unit_in(devices) or unit_in(unified)
        for devices, unified in (
            memberships("/proc/self/fd", process.proc_fd),
            memberships("/proc", "self"),
        )
    ]
    return theirs if theirs != ours else ""


def unit_in(path: str) -> str:
    """Return the unit that a cgroup belongs to: the first below slices only.

    Names further down are the unit's own choice: a container may call its cgroups like units of
    the host. What is below user@UID.service is another systemd's.
    """
    for part in path.split("/")[1:]:
        if part.endswith((".scope", ".service")):
            return "" if part.startswith("user@") else part
        if not part.endswith(".slice"):
            break
    return ""


def hierarchies(table: bytes) -> tuple[list[MountInfo], list[MountInfo]]:
    """Return the mounts of the v1 devices hierarchy, and of v2, in the caller's mountinfo."""
    # A host has a dozen other hierarchies, which are not worth parsing.
    v1 = [
        each
        for each in mountinfo.parse(table, b"devices")
        if each.fs_type == "cgroup" and "devices" in each.super_options
    ]
    v2 = [each for each in mountinfo.parse(table, b" - cgroup2 ") if each.fs_type == "cgroup2"]
    return v1, v2


def memberships(proc: str, pid: int | str) -> tuple[str, str]:
    """Return a process's directories in the v1 devices hierarchy and in v2, "" where it has none.

    Raises: ContainerError if the process has gone or lies outside the caller's cgroup namespace.
    """
    path = f"{proc}/{pid}/cgroup"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = content(fd, MAX_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        raise ContainerError(f"can't read {path}: {error.strerror}", ENDED) from error
    v1 = v2 = ""
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        if not line:
            continue
        fields = line.split(":", 2)
        if len(fields) != 3 or not fields[2].startswith("/"):
            raise FormatError(f"{path} has a line that is not understood: {line[:80]!r}")
        if "devices" in fields[1].split(","):
            v1 = fields[2]
        elif fields[0] == "0" and not fields[1]:
            v2 = fields[2]
    for directory in (v1, v2):
        if ".." in directory.split("/"):
            raise ContainerError(
                f"process {pid} is in cgroup {directory}, outside of nvhook's cgroup namespace",
                "run nvhook in the host's cgroup namespace",
            )
    return v1, v2


def allow_v1(directory: int, rules: tuple[DeviceRule, ...]) -> str:
    """Write the rules that are not listed yet; say how many.

    A directory that allows everything lists no exceptions and needs none.

    Raises: ContainerError.
    """
    try:
        listed = read_list(directory)
    except OSError as error:
        raise _not_allowed(error) from error
    if EVERYTHING in listed:
        return "everything is allowed already"
    missing = [rule for rule in rules if not covers(listed, rule)]
    write_allowed(directory, missing)
    return f"{len(missing)} rules" if missing else "unchanged"


def write_allowed(directory: int, rules: Iterable[DeviceRule]) -> None:
    """Write rules of v1, whatever is listed; the kernel joins those of one device.

    Raises: ContainerError.
    """
    try:
        _write(directory, "devices.allow", rules)
    except OSError as error:
        raise _not_allowed(error) from error


def _not_allowed(error: OSError) -> ContainerError:
    return ContainerError(
        f"can't add device rules to the container's cgroup: {error.strerror}",
        "EPERM: a cgroup above it must allow the devices first",
    )


def write_denied(directory: int, rules: Iterable[DeviceRule]) -> None:
    """Take access from the lines of v1 for just these devices, here and in the directories below.

    Raises: ContainerError.
    """
    try:
        _write(directory, "devices.deny", rules)
    except OSError as error:
        raise ContainerError(f"can't revoke device rules: {error.strerror}") from error


def _write(directory: int, name: str, rules: Iterable[DeviceRule]) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        for kind, major, minor, access in rules:
            os.write(fd, f"{kind} {major}:{minor} {access}".encode())  # one in each write
    finally:
        os.close(fd)


def read_list(directory: int) -> list[str]:
    """Return the lines of a v1 directory's devices.list: what is allowed."""
    fd = os.open("devices.list", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return content(fd, MAX_BYTES).decode("ascii", "replace").splitlines()
    finally:
        os.close(fd)


def covers(listed: Iterable[str], rule: DeviceRule) -> bool:
    """Tell whether a line of devices.list allows all of a rule."""
    kind, major, minor, access = rule
    devices = f"{major}:{minor}", f"{major}:*", f"*:{minor}", "*:*"
    starts = tuple([f"{kind} {device} " for device in devices])
    found = (line.rpartition(" ")[2] for line in listed if line.startswith(starts))
    return any(set(access) <= set(granted) for granted in found)


def exact(listed: Iterable[str], rule: DeviceRule) -> str:
    """Return the access that a line of devices.list for just a rule's device allows, or ""."""
    kind, major, minor, _ = rule
    start = f"{kind} {major}:{minor} "
    return "".join([line.removeprefix(start) for line in listed if line.startswith(start)])


def open_directories(
    mounts: list[MountInfo], theirs: str, ours: str, depth: int
) -> tuple[int, ...] | None:
    """Open the process's directory and those above it; None if the hierarchy is not mounted.

    At most depth, and none that holds ours.

    Raises: ContainerError.
    """
    mount = mount_of(mounts, theirs)
    if mount is None:
        return None
    cut = len("" if mount.root == "/" else mount.root)
    return _open_upwards(mount.mount_point, theirs, ours, cut, depth)


def mount_of(mounts: list[MountInfo], theirs: str) -> MountInfo | None:
    """Return the mount by which a cgroup is reached; None if the hierarchy is not mounted.

    Raises: ContainerError.
    """
    reachable = [mount for mount in mounts if _visible(mount)]
    if not reachable or not theirs:
        return None
    for mount in reversed(reachable):
        root = "" if mount.root == "/" else mount.root
        if theirs == mount.root or theirs.startswith(root + "/"):
            return mount
    raise ContainerError(
        f"cgroup {theirs} is not below any cgroup mount",
        "run nvhook where the host's cgroups are mounted",
    )


def _open_upwards(
    mount_point: str, theirs: str, ours: str, cut: int, depth: int
) -> tuple[int, ...]:
    if theirs.count("/") > MAX_DEPTH:
        raise ContainerError("the process's cgroup is nested too deep")
    fds: list[int] = []
    directory = theirs.rstrip("/")
    try:
        while len(directory) > cut and len(fds) < depth and not _holds(directory, ours):
            fds.append(os.open(mount_point + directory[cut:], DIRECTORY))
            directory = directory.rpartition("/")[0]
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise ContainerError(f"can't open cgroup {theirs}: {error.strerror}", ENDED) from error
    return tuple(fds)


def has_programs(directory: int, query: int = 0) -> bool:
    """Tell whether device programs are attached to the directory itself (or decide about it)."""
    try:
        return call(lib.nvh_bpf_query, directory, query, ffi.NULL, 0, ffi.new("uint32_t *")) > 0
    except SyscallError as error:
        return error.errno != EINVAL  # EINVAL: a kernel without device programs


def _holds(directory: str, member: str) -> bool:
    return member == directory or member.startswith(directory + "/")


def _visible(mount: MountInfo) -> bool:
    """Tell whether the mount is on top at its place: another may have been mounted over it."""
    try:
        device = os.stat(mount.mount_point).st_dev
    except OSError:
        return False
    return f"{os.major(device)}:{os.minor(device)}" == mount.device
