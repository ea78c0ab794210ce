"""Find the driver's libraries of the loaded version below a driver root.

The loader cache is asked first, then the catalogue's directories for what it does not know. Names
are compared before anything is opened: resolving every entry of a cache costs more than the rest.
"""

from __future__ import annotations

import os

from nvhook.core.catalog import LIBRARIES, OWN_VERSION, REQUIRED_LIBRARIES
from nvhook.core.inventory import Library
from nvhook.core.layout import TRIPLETS
from nvhook.core.places import LIBRARY_DIRECTORIES, LIBRARY_DIRECTORIES_32
from nvhook.errors import FormatError, HostError, UnsupportedError
from nvhook.formats import elf, ldcache
from nvhook.formats.proc_driver import is_driver_version
from nvhook.host.root_paths import join_root, list_directory, open_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LOADER_CACHE = "/etc/ld.so.cache"
MAX_CACHE_BYTES = 16 << 20
NAMES = tuple(dict.fromkeys([name for names in LIBRARIES.values() for name in names]))

# Loader cache flags of the ABIs a machine runs. A 32-bit x86 library that needs neither libc nor
# libm is plain ELF (1) to ldconfig.
FLAGS_64 = {"x86_64": (0x0303,), "aarch64": (0x0A03,)}
_FLAGS_32 = {"x86_64": (0x0003, 0x0001)}


def find_libraries(driver_root: str, driver_version: str, machine: str) -> tuple[Library, ...]:
    """Return the libraries in catalogue order, each name and ABI once, 64-bit first.

    At the end come those that no catalogue has: whatever carries the driver's version beside the
    libraries that one has.
    ``machine`` is what ``uname -m`` prints. Raises: HostError if only libraries of another driver
    version are there, UnsupportedError for a machine nvhook does not know.
    """
    if machine not in FLAGS_64:
        raise UnsupportedError(
            f"no support for {machine}", f"machines: {', '.join(sorted(FLAGS_64))}"
        )
    search = _Search(driver_root, driver_version)
    entries = _cache_entries(driver_root)
    for bits, flags, directories in (
        (64, FLAGS_64[machine], LIBRARY_DIRECTORIES),
        (32, _FLAGS_32.get(machine, ()), LIBRARY_DIRECTORIES_32),
    ):
        if not flags:
            continue
        cached = [entry.path for entry in entries if entry.flags in flags]
        search.try_files(cached, bits, flags)
        expanded = [path.format(triplet=TRIPLETS[machine]) for path in directories]
        search.try_files(_directory_files(driver_root, expanded), bits, flags)
        search.try_unlisted(bits, flags)
    if search.other_versions and not search.has_driver():
        name, version = next(iter(search.other_versions.items()))
        raise HostError(
            f"driver/library version mismatch: kernel module {driver_version}, {name} {version}",
            "reboot, or reload the nvidia modules, after a driver update; or set driver-root",
        )
    order = {name: position for position, name in enumerate(NAMES)}
    last = len(order)
    key = lambda library: (order.get(library.name, last), library.name, -library.bits)  # noqa: E731
    return tuple(sorted(search.found.values(), key=key))


def catalogue_name(file_name: str) -> str | None:
    """Return ``libcuda.so`` for ``libcuda.so.1`` and the like; None for no driver library."""
    stem, dot_so, suffix = file_name.partition(".so")
    name = stem + dot_so
    return name if name in NAMES and (not suffix or suffix.startswith(".")) else None


class _Search:
    """What was found so far; the first file of a name and ABI counts, as it does for the loader."""

    def __init__(self, driver_root: str, driver_version: str) -> None:
        self.driver_root = driver_root
        self.driver_version = driver_version
        self.found: dict[tuple[str, int], Library] = {}
        self.other_versions: dict[str, str] = {}

    def has_driver(self) -> bool:
        """Tell whether anything of the loaded version is there."""
        return any(name not in OWN_VERSION for name, _ in self.found)

    def try_files(self, paths: Iterable[str], bits: int, flags: tuple[int, ...]) -> None:
        for path in paths:
            name = catalogue_name(path.rpartition("/")[2])
            if name is None or not path.startswith("/") or (name, bits) in self.found:
                continue
            self._try_file(name, path, bits, flags)

    def try_unlisted(self, bits: int, flags: tuple[int, ...]) -> None:
        """Take what carries the driver's version beside the libraries found."""
        libraries = [each for each in self.found.values() if each.bits == bits]
        directories = [library.path.rpartition("/")[0] for library in libraries]
        suffix = f".so.{self.driver_version}"
        for directory in dict.fromkeys(directories):
            listed = list_directory(self.driver_root, directory)
            for file_name in listed[0] if listed is not None else ():
                name = file_name.removesuffix(suffix) + ".so"
                if not file_name.startswith("lib") or not file_name.endswith(suffix):
                    continue
                if name not in NAMES and (name, bits) not in self.found:
                    self._try_file(name, f"{directory}/{file_name}", bits, flags)

    def _try_file(self, name: str, path: str, bits: int, flags: tuple[int, ...]) -> None:
        opened = open_file(self.driver_root, path)
        if opened is None:
            return
        fd, resolved = opened
        try:
            library = self._library(fd, name, resolved)
        except (FormatError, OSError):
            return  # a broken file is as good as none: the required set says what is missing
        finally:
            os.close(fd)
        if library is not None and library.bits == bits and library.flags in flags:
            self.found[name, bits] = library

    def _library(self, fd: int, name: str, resolved: str) -> Library | None:
        file_name = resolved.rpartition("/")[2]
        if name not in OWN_VERSION and not file_name.endswith("." + self.driver_version):
            version = file_name.partition(".so.")[2]
            is_required = any(name in names for names in REQUIRED_LIBRARIES.values())
            if is_required and is_driver_version(version):
                self.other_versions.setdefault(name, version)
            return None
        header = elf.parse_file(lambda offset, size: os.pread(fd, size, offset))
        flags = elf.cache_flags(header)
        if flags is None:
            return None
        host_path = join_root(self.driver_root, resolved)
        return Library(name, header.soname, resolved, host_path, flags, header.bits)


def _cache_entries(driver_root: str) -> tuple[ldcache.Entry, ...]:
    """Return the entries of the root's loader cache; none where it is absent (Nix, musl) or odd."""
    opened = open_file(driver_root, LOADER_CACHE)
    if opened is None:
        return ()
    fd = opened[0]
    try:
        with open(fd, "rb") as file:
            return ldcache.parse(file.read(MAX_CACHE_BYTES)).entries
    except (FormatError, OSError):
        return ()


def _directory_files(driver_root: str, directories: list[str]) -> Iterable[str]:
    """Yield the driver libraries' paths; directories that are the same one are read once."""
    seen = set()
    for directory in directories:
        listed = list_directory(driver_root, directory)
        if listed is None or listed[1] in seen:
            continue
        names, resolved = listed
        seen.add(resolved)
        for name in names:
            if catalogue_name(name) is not None:
                yield f"{resolved.rstrip('/')}/{name}"
