"""Make the container's loader find the injected libraries: ld.so.cache, and musl's path file."""

from nvhook.formats.ldcache_layout import MAX_BYTES
from nvhook.formats.ldcache_splice import splice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvhook.core.edits import CachedLibrary
    from nvhook.kernel.root import Root

LD_SO_CACHE = "/etc/ld.so.cache"
_MUSL_DEFAULT = "/lib:/usr/local/lib:/usr/lib"  # what musl searches without a path file
_MUSL_LIMIT = 1 << 16


def update(rootfs: "Root", libraries: "tuple[CachedLibrary, ...]", machine: str) -> str:
    """Add libraries to the container's loader cache; return what was done, for the log.

    Raises: FormatError if the cache is not understood (only ldconfig can rebuild it then),
        ContainerError if the container's files can't be replaced.
    """
    data = rootfs.read(LD_SO_CACHE, MAX_BYTES) or b""
    _extend_musl_path(rootfs, libraries, machine)
    spelled = _spelling(rootfs, data)
    additions = [
        (library.name, spelled(library.container_path), library.flags) for library in libraries
    ]
    merged = splice(data, additions)
    if merged == data:
        return "unchanged"
    rootfs.write(LD_SO_CACHE, merged)
    return f"{len(additions)} libraries"


def directories(libraries: "Iterable[CachedLibrary]") -> tuple[str, ...]:
    """Return the container directories of libraries, each once."""
    return tuple(dict.fromkeys(_directory(library.container_path) for library in libraries))


def _spelling(rootfs: "Root", data: bytes) -> "Callable[[str], str]":
    """Return a function that names a path as ldconfig would.

    With a merged /usr the cache says /lib/x86_64-linux-gnu for what nvhook calls
    /usr/lib/x86_64-linux-gnu: of two names of a directory ldconfig keeps the one it met first.
    """
    spellings: dict[str, str] = {}

    def spelled(path: str) -> str:
        directory = _directory(path)
        if directory not in spellings:
            alias = directory.removeprefix("/usr")
            used = alias != directory and f"\0{alias}/".encode() in data
            same = used and rootfs.identity(alias) == rootfs.identity(directory)
            spellings[directory] = alias if same else directory
        return spellings[directory] + path[len(directory) :]

    return spelled


def _extend_musl_path(rootfs: "Root", libraries: "tuple[CachedLibrary, ...]", machine: str) -> None:
    """musl ignores ld.so.cache: its directories stand in /etc/ld-musl-<machine>.path."""
    if not rootfs.has(f"/lib/ld-musl-{machine}.so.1"):
        return
    path = f"/etc/ld-musl-{machine}.path"
    data = rootfs.read(path, _MUSL_LIMIT)
    text = _MUSL_DEFAULT if data is None else data.decode("utf-8", "surrogateescape")
    present = text.replace("\n", ":").split(":")
    missing = [directory for directory in directories(libraries) if directory not in present]
    if missing:
        lines = ":".join([text.rstrip("\n"), *missing]) + "\n"
        rootfs.write(path, lines.encode("utf-8", "surrogateescape"))


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
