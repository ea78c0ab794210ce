"""The edits a Plan is made of: all that a renderer (hook, config.json, CDI) reads.

Paths always say their side: ``host_path`` is absolute on the host (driver root or dev root
included), ``container_path`` is absolute inside the container's root.
"""

from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, TypeAlias

FILE_OPTIONS = ("ro", "nosuid", "nodev")
SOCKET_OPTIONS = ("nosuid", "nodev", "noexec")
PROC_OPTIONS = ("ro", "nosuid", "nodev", "noexec")
# Who makes the mounts where a config.json is written: nvhook's hook, or the runtime.
MOUNTS_BY_HOOK, MOUNTS_IN_SPEC = "hook", "spec"


class DeviceNode(Record):
    """A character device node: bound from the host, or made with the permissions it has there."""

    __slots__ = ("container_path", "gid", "host_path", "major", "minor", "mode", "uid")
    kind = "device-node"

    def __init__(
        self,
        container_path: str,
        host_path: str,
        major: int,
        minor: int,
        mode: int = 0o666,
        uid: int = 0,
        gid: int = 0,
    ) -> None:
        self.container_path: Final = container_path
        self.host_path: Final = host_path
        self.major: Final = major
        self.minor: Final = minor
        self.mode: Final = mode
        self.uid: Final = uid
        self.gid: Final = gid


class CgroupRule(Record):
    """An allow rule of the device cgroup; access is a subset of ``rwm``."""

    __slots__ = ("access", "major", "minor", "type")
    kind = "cgroup-rule"

    def __init__(self, type: str, major: int, minor: int, access: str = "rw") -> None:  # noqa: A002
        self.type: Final = type
        self.major: Final = major
        self.minor: Final = minor
        self.access: Final = access


class Mount(Record):
    """A bind mount of one host file, socket or directory, or a fresh tmpfs (``host_path`` empty).

    ``required`` decides what happens when the source has gone or, below /proc, the target does
    not exist: an error, or the edit is left out.
    """

    __slots__ = ("container_path", "host_path", "options", "required")
    kind = "mount"

    def __init__(
        self,
        host_path: str,
        container_path: str,
        options: tuple[str, ...] = FILE_OPTIONS,
        required: bool = False,
    ) -> None:
        self.host_path: Final = host_path
        self.container_path: Final = container_path
        self.options: Final = options
        self.required: Final = required


class Symlink(Record):
    """A symbolic link in the container; another link of that name is replaced."""

    __slots__ = ("container_path", "target")
    kind = "symlink"

    def __init__(self, container_path: str, target: str) -> None:
        self.container_path: Final = container_path
        self.target: Final = target


class TextFile(Record):
    """A small file written into the container (mode: permission bits)."""

    __slots__ = ("container_path", "content", "mode")
    kind = "text-file"

    def __init__(self, container_path: str, content: str, mode: int = 0o444) -> None:
        self.container_path: Final = container_path
        self.content: Final = content
        self.mode: Final = mode


class CachedLibrary(Record):
    """One ld.so.cache entry to be: ``name`` as looked up, ``flags`` as glibc's cache has them."""

    __slots__ = ("container_path", "flags", "name")

    def __init__(self, name: str, container_path: str, flags: int) -> None:
        self.name: Final = name
        self.container_path: Final = container_path
        self.flags: Final = flags


class LdCacheUpdate(Record):
    """Put libraries into the container's loader cache, as ldconfig would after the mounts."""

    __slots__ = ("libraries",)
    kind = "ld-cache"

    def __init__(self, libraries: tuple[CachedLibrary, ...]) -> None:
        self.libraries: Final = libraries


class EnvVar(Record):
    """A variable of the container's process; only a renderer that runs before create can set it."""

    __slots__ = ("name", "value")
    kind = "env"

    def __init__(self, name: str, value: str) -> None:
        self.name: Final = name
        self.value: Final = value


class AdditionalGid(Record):
    """A supplementary group of the container's process."""

    __slots__ = ("gid",)
    kind = "additional-gid"

    def __init__(self, gid: int) -> None:
        self.gid: Final = gid


if TYPE_CHECKING:
    Edit: TypeAlias = (
        DeviceNode
        | CgroupRule
        | Mount
        | Symlink
        | TextFile
        | LdCacheUpdate
        | EnvVar
        | AdditionalGid
    )


class Plan(Record):
    """An ordered tuple of edits."""

    __slots__ = ("edits",)

    def __init__(self, edits: "tuple[Edit, ...]") -> None:
        self.edits: Final = edits
