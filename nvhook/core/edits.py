"""The edits a Plan is made of: all that a renderer (hook, config.json, CDI) reads.

Paths always say their side: ``host_path`` is absolute on the host (driver root or dev root
included), ``container_path`` is absolute inside the container's root.
"""

from __future__ import annotations

from nvhook.record import record

FILE_OPTIONS = ("ro", "nosuid", "nodev")
SOCKET_OPTIONS = ("nosuid", "nodev", "noexec")
PROC_OPTIONS = ("ro", "nosuid", "nodev", "noexec")
# Who makes the mounts where a config.json is written: nvhook's hook, or the runtime.
MOUNTS_BY_HOOK, MOUNTS_IN_SPEC = "hook", "spec"


@record
class DeviceNode:
    """A character device node: bound from the host, or made with the permissions it has there."""

    kind = "device-node"
    container_path: str
    host_path: str
    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0


@record
class CgroupRule:
    """An allow rule of the device cgroup; access is a subset of ``rwm``."""

    kind = "cgroup-rule"
    type: str
    major: int
    minor: int
    access: str = "rw"


@record
class Mount:
    """A bind mount of one host file, socket or directory, or a fresh tmpfs (``host_path`` empty).

    ``required`` decides what happens when the source has gone or, below /proc, the target does
    not exist: an error, or the edit is left out.
    """

    kind = "mount"
    host_path: str
    container_path: str
    options: tuple[str, ...] = FILE_OPTIONS
    required: bool = False


@record
class Symlink:
    """A symbolic link in the container; another link of that name is replaced."""

    kind = "symlink"
    container_path: str
    target: str


@record
class TextFile:
    """A small file written into the container (mode: permission bits)."""

    kind = "text-file"
    container_path: str
    content: str
    mode: int = 0o444


@record
class CachedLibrary:
    """One ld.so.cache entry to be: ``name`` as looked up, ``flags`` as glibc's cache has them."""

    name: str
    container_path: str
    flags: int


@record
class LdCacheUpdate:
    """Put libraries into the container's loader cache, as ldconfig would after the mounts."""

    kind = "ld-cache"
    libraries: tuple[CachedLibrary, ...]


@record
class EnvVar:
    """A variable of the container's process; only a renderer that runs before create can set it."""

    kind = "env"
    name: str
    value: str


@record
class AdditionalGid:
    """A supplementary group of the container's process."""

    kind = "additional-gid"
    gid: int


Edit = DeviceNode | CgroupRule | Mount | Symlink | TextFile | LdCacheUpdate | EnvVar | AdditionalGid


@record
class Plan:
    """An ordered tuple of edits."""

    edits: tuple[Edit, ...]
