"""All that a start can do to a container that is created, so that two starts can be compared."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvhook.kernel import programs
from tests.runtime.bundle import Bundle
from tests.runtime.cgroup_view import View
from tests.runtime.engine import Engine

# What the kernel has there differs from one container to the next.
NOT_LOOKED_AT = ("proc", "sys")
# ldconfig's own, about the inodes of an image.
UNLIKE = "var/cache/ldconfig/aux-cache"
MASKED = "proc/driver"
# How many names a file has.
LINKS = "links of"
MAX_BYTES = 16 << 20
CGROUP2 = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")
Snapshot = dict[str, Any]


def take(engine: Engine, bundle: Bundle) -> Snapshot:
    """Return what a created container is: mounts, files, device rules and programs."""
    state = engine.call(bundle, "state", bundle.name)
    assert state.returncode == 0, state.stderr
    pid = int(json.loads(state.stdout)["pid"])
    inside = Path(f"/proc/{pid}/root")
    found = {f"mount {number}": line for number, line in enumerate(mounts(pid))}
    # Of an image's ten thousand files only those that are new or changed; and what is mounted.
    layer = bundle.directory / "upper"
    found |= files("image", bundle.seen_root if not layer.exists() else layer)
    places = [MASKED] if layer.exists() else ["", MASKED]
    for place in places:
        found |= files(f"seen {place}", inside / place, mounted=True)
    for line in mounts(pid):
        path = line.split()[4]
        found[f"at {path}"] = _status(str(inside) + path)
    return found | rules(engine.view, pid)


def mounts(pid: int) -> Iterator[str]:
    """Yield a process's mounts in order, with numbers that don't depend on what else there is."""
    numbers: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        number, parent, device, *rest = line.split(" ")
        numbers[number] = len(numbers)
        device = "anonymous" if device.startswith("0:") else device
        text = " ".join([str(numbers[number]), str(numbers.get(parent, "-")), device, *rest])
        yield re.sub(r" (shared|master|propagate_from):\d+", r" \1", text)


def files(name: str, root: Path, mounted: bool = False) -> Snapshot:
    """Return everything below a directory."""
    found = {}
    for directory, names, others in os.walk(root):
        where = os.path.relpath(directory, root)
        if mounted and where == "." and root.name == "root":
            names[:] = [each for each in names if each not in NOT_LOOKED_AT]
        for each in [*names, *others]:
            path = os.path.join(directory, each)
            key = f"{name} {os.path.normpath(f'{where}/{each}')}"
            found[key] = _status(path)
            if stat.S_ISREG(os.lstat(path).st_mode):
                found[f"{LINKS} {key}"] = os.lstat(path).st_nlink
    return found


def _status(path: str) -> tuple[object, ...]:
    status = os.lstat(path)
    mode = status.st_mode
    what: object = ""
    if path.endswith(UNLIKE):
        what = "its own"
    elif stat.S_ISLNK(mode):
        what = os.readlink(path)
    elif stat.S_ISREG(mode) and status.st_size <= MAX_BYTES:
        what = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        what = os.major(status.st_rdev), os.minor(status.st_rdev)
    plain = stat.S_ISREG(mode)
    return (
        oct(mode),
        status.st_uid,
        status.st_gid,
        status.st_size if plain else 0,
        what,
        sorted((key, os.getxattr(path, key, follow_symlinks=False)) for key in _keys(path)),
    )


def _keys(path: str) -> list[str]:
    names = os.listxattr(path, follow_symlinks=False)
    return [name for name in names if not name.startswith("trusted.overlay.")]


def rules(view: View, pid: int) -> Snapshot:
    """Return the device rules of cgroup v1 and the device programs of v2 that a process has."""
    found: Snapshot = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "devices":
            listed = view.path(Path(f"/sys/fs/cgroup/devices{path}/devices.list"))
            if listed.exists():
                found["devices.list"] = listed.read_text()
        elif not controllers:
            found |= _programs(view, path)
    return found


def _programs(view: View, path: str) -> Snapshot:
    tops = (view.path(Path(top)) for top in CGROUP2)
    top = next((each for each in tops if (each / "cgroup.subtree_control").exists()), None)
    if top is None:
        return {}
    found: Snapshot = {}
    fd = os.open(f"{top}{path}", os.O_RDONLY)
    try:
        ids, flags = programs.attached(fd)
        found["program flags"] = flags
        for index, number in enumerate(ids):
            program = programs.open_program(number)
            found[f"program {index}"] = programs.name_of(program), programs.instructions(program)
            os.close(program)
    finally:
        os.close(fd)
    return found


def differences(one: Snapshot, other: Snapshot) -> list[str]:
    """Return a line for whatever is not the same in both."""
    keys = [key for key in sorted({*one, *other}) if one.get(key) != other.get(key)]
    return [f"{key}: {one.get(key)} | {other.get(key)}" for key in keys]
