"""The host as the check sees it: mounts of its own, so that every leak shows, and cgroups."""

import ctypes
import os
from pathlib import Path

from container import Machine

ROOT = "/sys/fs/cgroup"
CLONE_NEWNS = 0x20000


def enter(machine: Machine) -> str:
    """Go into a private mount namespace with cgroups that can be written; say what there is.

    Made shared inside, as systemd leaves a host's mounts. What others mount meanwhile is not seen.
    """
    found = _describe()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        found += f", no mount namespace of its own ({os.strerror(ctypes.get_errno())})"
        return found if _writable(machine.name) else f"{found}, not writable"
    mount = machine.work / "bin/busybox", "mount"
    machine.run(*mount, "--make-rprivate", "/")
    machine.run(*mount, "--make-rshared", "/")
    if _writable(machine.name):
        return found
    for path, _ in _hierarchies():
        machine.run(*mount, "-o", "remount,bind,rw", path)
        machine.run(*mount, "-o", "remount,rw", path)
    if not _hierarchies():
        machine.run(*mount, "-t", "cgroup2", "cgroup2", ROOT)
    works = "made writable for the check" if _writable(machine.name) else "not writable"
    return f"{found}, {works}"


def mount_table() -> list[str]:
    """Return the mounts of this process's namespace."""
    return Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()


def left(name: str) -> list[str]:
    """Return directories of the check's containers that are still there."""
    return [str(found) for path, _ in _hierarchies() for found in Path(path).glob(name + "*")]


def _hierarchies() -> list[tuple[str, str]]:
    """Return mount point and type of every cgroup mount."""
    found = []
    for line in mount_table():
        before, _, after = line.partition(" - ")
        kind = after.split(" ", 1)[0]
        if kind in {"cgroup", "cgroup2"}:
            found.append((before.split()[4], kind))
    return found


def _device_hierarchy() -> str | None:
    """Return the mount point of the hierarchy that decides about devices."""
    v2 = None
    for path, kind in _hierarchies():
        if kind == "cgroup2":
            v2 = path
        elif os.path.exists(f"{path}/devices.list"):
            return path
    return v2


def _describe() -> str:
    kinds = {kind for _, kind in _hierarchies()}
    names = {frozenset({"cgroup"}): "v1", frozenset({"cgroup2"}): "v2", frozenset(): "none mounted"}
    return names.get(frozenset(kinds), "v1 and v2")


def _writable(name: str) -> bool:
    path = _device_hierarchy()
    if path is None:
        return False
    directory = f"{path}/{name}-try"
    try:
        os.mkdir(directory)
        os.rmdir(directory)
    except OSError:
        return False
    return True
