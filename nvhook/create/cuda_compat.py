"""Look for CUDA's forward-compatibility libraries in a container: read only, never mounted or run.

They are the image's files. All that comes of them are names in that container's own loader cache.
"""

from __future__ import annotations

from nvhook import observations
from nvhook.core.compat import CompatDirectory
from nvhook.core.edits import CachedLibrary
from nvhook.core.layout import COMPAT_DIRECTORY as DIRECTORY
from nvhook.errors import ContainerError, FormatError
from nvhook.formats import cuda_note, elf
from nvhook.formats.proc_driver import is_driver_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.kernel.root_view import RootView

MAX_NAMES = 1000
_LIBCUDA = "libcuda.so."


def find(rootfs: RootView) -> CompatDirectory | None:
    """Return a container's compatibility libraries; None without, with two, or with broken ones.

    What is wrong with them is the image's matter: the host's own libcuda works all the same.
    """
    names = rootfs.names(DIRECTORY)
    if len(names) > MAX_NAMES:
        return None
    versions = [name.removeprefix(_LIBCUDA) for name in names if name.startswith(_LIBCUDA)]
    versions = [version for version in versions if is_driver_version(version)]
    if len(versions) != 1:
        return None
    try:
        libraries = [library for name in names if (library := _library(rootfs, name)) is not None]
        note = _note(rootfs, _LIBCUDA + versions[0])
    except (ContainerError, FormatError, OSError):
        observations.spoil("the image's compatibility libraries are odd")
        return None
    if not any(library.name == "libcuda.so.1" for library in libraries):
        return None
    if note is None:
        return CompatDirectory(versions[0], tuple(libraries))
    return CompatDirectory(versions[0], tuple(libraries), note.drivers, note.cuda)


def _library(rootfs: RootView, name: str) -> CachedLibrary | None:
    """Return the entry of a name that the loader looks for: a soname, and libcuda.so."""
    if not name.startswith("lib") or ".so" not in name:
        return None
    reader = rootfs.reader(f"{DIRECTORY}/{name}")
    if reader is None:
        return None
    with reader as read:
        header = elf.parse_file(read)
    flags = elf.cache_flags(header)
    if flags is None or name not in (header.soname, "libcuda.so"):
        return None
    return CachedLibrary(name, f"{DIRECTORY}/{name}", flags)


def _note(rootfs: RootView, name: str) -> cuda_note.CudaNote | None:
    reader = rootfs.reader(f"{DIRECTORY}/{name}")
    if reader is None:
        return None
    with reader as read:
        return cuda_note.read_note(read)
