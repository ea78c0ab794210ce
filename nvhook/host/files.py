"""Find the driver's programs, firmware images and configuration files below a driver root."""

from __future__ import annotations

import os
import stat

from nvhook.core.catalog import BINARIES, BINARY_DIRECTORIES, NAMED_LIBRARIES
from nvhook.core.inventory import HostFile
from nvhook.core.layout import TRIPLETS
from nvhook.core.places import (
    DATA_DIRECTORIES,
    DATA_FILES,
    FIRMWARE_DIRECTORIES,
    LIBRARY_DIRECTORIES,
    STANDARD_DATA_DIRECTORIES,
    XORG_DIRECTORIES,
    XORG_MODULES,
)
from nvhook.errors import FormatError
from nvhook.formats import json_text
from nvhook.host.driver_texts import read_text
from nvhook.host.root_paths import join_root, list_directory, open_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def find_binaries(driver_root: str) -> tuple[HostFile, ...]:
    """Return the driver's programs, each from the first directory that has it executable."""
    found = []
    for name in dict.fromkeys([name for names in BINARIES.values() for name in names]):
        for directory in BINARY_DIRECTORIES:
            path = _regular_file(driver_root, f"{directory}/{name}", executable=True)
            if path is not None:
                found.append(HostFile("binary", name, path, join_root(driver_root, path)))
                break
    return tuple(found)


def find_firmware(
    driver_root: str, driver_version: str, sys_root: str, release: str
) -> tuple[HostFile, ...]:
    """Return the GSP images of this driver version from the first directory that has any.

    ``release`` is what ``uname -r`` prints. The kernel's own search order: the path parameter of
    firmware_class first.
    """
    directories = [path.format(release=release) for path in FIRMWARE_DIRECTORIES]
    parameter = read_text(sys_root.rstrip("/") + "/module/firmware_class/parameters/path", 4096)
    if parameter and parameter.strip():
        directories.insert(0, _inside(driver_root, parameter.strip()))
    for directory in directories:
        listed = list_directory(driver_root, f"{directory}/nvidia/{driver_version}")
        if listed is None:
            continue
        names, resolved = listed
        found = []
        for name in names:
            if not (name.startswith("gsp") and name.endswith(".bin")):
                continue
            path = _regular_file(driver_root, f"{resolved}/{name}", executable=False)
            if path is not None:
                found.append(HostFile("firmware", name, path, join_root(driver_root, path)))
        if found:
            return tuple(found)
    return ()


def find_data_files(driver_root: str, machine: str) -> tuple[HostFile, ...]:
    """Return what the driver tells Vulkan, EGL, OpenCL, OptiX and Xorg, by group.

    ``name`` is the path to be in a container; ``machine`` is what ``uname -m`` prints.
    """
    found = []
    for group, home, names in DATA_FILES:
        places = [
            (directory, name.format(machine=machine))
            for name in names
            for directory in DATA_DIRECTORIES
        ]
        for directory, name in places:
            path = _regular_file(driver_root, f"{directory}/{name}", executable=False)
            if path is not None:
                kept = directory if directory in STANDARD_DATA_DIRECTORIES else home
                host_path = join_root(driver_root, path)
                found.append(HostFile(group, f"{kept}/{name}", path, host_path))
                break
    return tuple(found)


def find_named_libraries(driver_root: str, data_files: Iterable[HostFile]) -> tuple[HostFile, ...]:
    """Return the libraries that files for Vulkan and EGL name by an absolute path.

    Most have a bare name, which the loader looks up. ``name`` is the path as it stands there.
    """
    found = {}
    for file in data_files:
        if file.name.endswith(".json"):
            for name in _library_paths(read_text(file.host_path) or ""):
                path = _regular_file(driver_root, name, executable=False)
                if path is not None:
                    host_path = join_root(driver_root, path)
                    found[name] = HostFile(NAMED_LIBRARIES, name, path, host_path)
    return tuple(found.values())


def _library_paths(text: str) -> list[str]:
    """Return the absolute library paths of a manifest.

    Source: the Vulkan loader's driver and layer interfaces; glvnd's EGL ICD enumeration.
    """
    try:
        document = json_text.parse(text.encode(), "manifest")
    except FormatError:
        return []
    parts = [document.get(key) for key in ("ICD", "layer")] if isinstance(document, dict) else []
    paths = [part.get("library_path") for part in parts if isinstance(part, dict)]
    return [path for path in paths if isinstance(path, str) and path[:1] == "/"]


def find_xorg_modules(driver_root: str, driver_version: str, machine: str) -> tuple[HostFile, ...]:
    """Return Xorg's modules of this driver version; ``name`` is the path to be in a container."""
    libraries = [path.format(triplet=TRIPLETS[machine]) for path in LIBRARY_DIRECTORIES]
    found = []
    for module, link in XORG_MODULES:
        name = module.format(version=driver_version)
        paths = [*_xorg_paths(libraries, name), *_xorg_paths(libraries, link)]
        places = [(path, _regular_file(driver_root, path, False)) for path in paths]
        present = [
            (f"{os.path.dirname(path)}/{name}", resolved)
            for path, resolved in places
            if resolved is not None and os.path.basename(resolved) == name
        ]
        # Where it is itself before where links lead to it: /usr/lib64 may be a link to /usr/lib.
        present.sort(key=lambda place: place[0] != place[1])
        for path, resolved in present[:1]:
            found.append(HostFile("xorg", path, resolved, join_root(driver_root, resolved)))
    return tuple(found)


def _xorg_paths(libraries: Iterable[str], name: str) -> Iterable[str]:
    for pattern in XORG_DIRECTORIES:
        for library in libraries if "{" in pattern else [""]:
            yield f"{pattern.format(library=library)}/{name}"


def _inside(driver_root: str, path: str) -> str:
    """Return a host path as the driver root sees it: driver containers write the host's view."""
    prefix = driver_root.rstrip("/") + "/"
    return "/" + path.removeprefix(prefix).lstrip("/")


def _regular_file(driver_root: str, path: str, executable: bool) -> str | None:
    opened = open_file(driver_root, path)
    if opened is None:
        return None
    fd, resolved = opened
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
    finally:
        os.close(fd)
    return resolved if not executable or mode & 0o111 else None
