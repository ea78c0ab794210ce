"""Make the container's loader find the injected libraries: ld.so.cache, and musl's path file."""

from __future__ import annotations

from nvhook.formats.ldcache_layout import MAX_BYTES
from nvhook.formats.ldcache_splice import splice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.core.edits import CachedLibrary
    from nvhook.kernel.root import Root
    from nvhook.kernel.root_view import RootView

LD_SO_CACHE = "/etc/ld.so.cache"
_MUSL_DEFAULT = "/lib:/usr/local/lib:/usr/lib"  # what musl searches without a path file
_MUSL_LIMIT = 1 << 16


class Merge:
    """A file of the container and what it became; ``basis`` is what that depends on beside it.

    ``before`` is None where there was no file.
    """

    __slots__ = ("after", "basis", "before", "path")

    def __init__(self, path: str, basis: object, before: bytes | None, after: bytes) -> None:
        self.path = path
        self.basis = basis
        self.before = before
        self.after = after

    @property
    def is_change(self) -> bool:
        """Whether the file becomes another one."""
        return self.after != (self.before or b"")


def update(rootfs: Root, libraries: tuple[CachedLibrary, ...], machine: str) -> list[Merge]:
    """Add libraries to the container's loader cache, and to musl's path file where that is.

    Raises: FormatError if the cache is not understood (only ldconfig can rebuild it then),
        ContainerError if the container's files can't be replaced.
    """
    merges = []
    # musl ignores ld.so.cache, whatever is in that.
    if rootfs.has(f"/lib/ld-musl-{machine}.so.1"):
        merges.append(_written(rootfs, _musl_path(rootfs, libraries, machine)))
    merges.append(_written(rootfs, _cache(rootfs, libraries)))
    return merges


def _written(rootfs: Root, merge: Merge) -> Merge:
    if merge.is_change:
        rootfs.write(merge.path, merge.after)
    return merge


def _cache(rootfs: Root, libraries: tuple[CachedLibrary, ...]) -> Merge:
    before = rootfs.read(LD_SO_CACHE, MAX_BYTES)
    data = before or b""
    aliases = _aliases(rootfs, libraries)
    used = {name: alias for name, alias in aliases.items() if f"\0{alias}/".encode() in data}
    additions = [(each.name, _spelled(each.container_path, used), each.flags) for each in libraries]
    basis = [
        *aliases.items(),
        *[(each.name, each.container_path, each.flags) for each in libraries],
    ]
    return Merge(LD_SO_CACHE, basis, before, splice(data, additions))


def directories(libraries: Iterable[CachedLibrary]) -> tuple[str, ...]:
    """Return the container directories of libraries, each once."""
    return tuple(dict.fromkeys(_directory(library.container_path) for library in libraries))


def look(rootfs: RootView, libraries: Iterable[CachedLibrary]) -> None:
    """Take the looks that update() decides from, before directories are made for the libraries.

    Whether the names of one that is made lead to the same place depends on the directory above, or
    on a link to what is not there yet; such a link matters only to a cache that names its files.
    """
    for directory in directories(libraries):
        alias = directory.removeprefix("/usr")
        if alias != directory:
            rootfs.same(alias, directory)
            rootfs.same(_directory(alias) or "/", _directory(directory))


def _aliases(rootfs: Root, libraries: tuple[CachedLibrary, ...]) -> dict[str, str]:
    """Return another name for each directory that has one, by a merged /usr.

    A cache that says /lib/x86_64-linux-gnu for what nvhook calls /usr/lib/x86_64-linux-gnu goes on
    so: of two names of a directory ldconfig keeps the one it met first.
    """
    found = {}
    for directory in directories(libraries):
        alias = directory.removeprefix("/usr")
        if alias != directory and rootfs.same(alias, directory):
            found[directory] = alias
    return found


def _spelled(path: str, aliases: dict[str, str]) -> str:
    directory = _directory(path)
    return aliases.get(directory, directory) + path[len(directory) :]


def _musl_path(rootfs: Root, libraries: tuple[CachedLibrary, ...], machine: str) -> Merge:
    path = f"/etc/ld-musl-{machine}.path"
    data = rootfs.read(path, _MUSL_LIMIT)
    text = _MUSL_DEFAULT if data is None else data.decode("utf-8", "surrogateescape")
    present = text.replace("\n", ":").split(":")
    wanted = directories(libraries)
    missing = [directory for directory in wanted if directory not in present]
    after = data or b""
    if missing:
        lines = ":".join([text.rstrip("\n"), *missing]) + "\n"
        after = lines.encode("utf-8", "surrogateescape")
    return Merge(path, wanted, data, after)


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
