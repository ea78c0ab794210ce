"""Load the inventory from a file that one discovery per boot leaves behind: part of every start.

What changes without a trace (nodes, sockets, majors, driver texts) is read anew and never cached. A
file that is not exactly what this version wrote for exactly this host is ignored and replaced.
"""

from __future__ import annotations

import os

from nvhook import observations, state
from nvhook.core.catalog import BINARY_DIRECTORIES, ICD_DIRECTORIES
from nvhook.core.inventory import Gpu, HostFile, Inventory, Library
from nvhook.errors import FormatError
from nvhook.formats import json_text
from nvhook.formats.proc_driver import is_known_uuid
from nvhook.host.driver_texts import (
    driver_directory,
    list_gpu_directories,
    read_driver_version,
    read_majors,
    read_proc_files,
    read_text,
)
from nvhook.host.nodes import find_nodes, find_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    Row = TypeVar("Row")

FILE_NAME = "inventory.json"
MAX_BYTES = 4 << 20
# Raise it with every change of the file's content or of what discovery finds.
SCHEMA = 4

GPU_FIELDS = (("index", int), ("uuid", str), ("minor", int), ("pci_bus_id", str), ("model", str))
LIBRARY_FIELDS = (
    ("name", str),
    ("soname", str),
    ("path", str),
    ("host_path", str),
    ("flags", int),
    ("bits", int),
)
FILE_FIELDS = (("group", str), ("name", str), ("path", str), ("host_path", str))


def load(
    driver_root: str,
    dev_root: str,
    proc_root: str,
    sys_root: str,
    state_directory: str,
    every_csv: bool = False,
) -> Inventory:
    """Return the host's inventory, discovering it only where the cache does not hold.

    ``every_csv`` is for Jetsons: see host.platforms. Raises: what discovery.discover raises.
    """
    gpu_directories = list_gpu_directories(proc_root)
    if not gpu_directories:
        from nvhook.host import platforms  # not loaded where the driver has a GPU

        roots = driver_root, dev_root, proc_root, sys_root
        other = platforms.find(*roots, state_directory, every_csv)
        if other is not None:
            observations.spoil("WSL 2 and Jetsons are looked at anew for each container")
            return other
    version = read_driver_version(proc_root, sys_root)
    majors = read_majors(proc_root)
    key = _key((driver_root, dev_root, proc_root, sys_root), version, majors, gpu_directories)
    path = cache_path(state_directory)
    cached = _read(path, key)
    if cached is None or _has_new_uuid(cached[0], proc_root):
        from nvhook.host.discovery import discover

        with observations.Paused():
            found = discover(driver_root, dev_root, proc_root, sys_root)
        # The key was taken first: what changed meanwhile makes the next start discover again.
        remember(path, key, _content(found))
        files = tuple([file for file in found.files if file.group != "socket"])
        cached = found.gpus, found.libraries, files, found.cuda_version
    gpus, libraries, files, cuda_version = cached
    return Inventory(
        driver_version=version,
        cuda_version=cuda_version,
        driver_root=driver_root,
        proc_root=proc_root,
        majors=majors,
        gpus=gpus,
        nodes=find_nodes(dev_root),
        libraries=libraries,
        files=(*files, *find_sockets(driver_root)),
        proc_files=read_proc_files(proc_root),
    )


def cache_path(state_directory: str) -> str:
    """Return where the cache is."""
    return f"{state_directory.rstrip('/')}/{FILE_NAME}"


def holds(
    driver_root: str, dev_root: str, proc_root: str, sys_root: str, state_directory: str
) -> bool:
    """Tell whether the next start would take the cache for this host's.

    Raises: HostError where no driver is loaded, FormatError.
    """
    version = read_driver_version(proc_root, sys_root)
    roots = driver_root, dev_root, proc_root, sys_root
    key = _key(roots, version, read_majors(proc_root), list_gpu_directories(proc_root))
    cached = _read(cache_path(state_directory), key)
    return cached is not None and not _has_new_uuid(cached[0], proc_root)


def _key(
    roots: tuple[str, ...], version: str, majors: dict[str, int], gpu_directories: list[str]
) -> list[str]:
    driver_root, _, proc_root, _ = roots
    boot_id = read_text(proc_root.rstrip("/") + "/sys/kernel/random/boot_id", 64) or ""
    # A package of programs or ICD files alone changes no loader cache, but a directory.
    watched = ("/etc/ld.so.cache", *BINARY_DIRECTORIES, *ICD_DIRECTORIES)
    return [
        str(SCHEMA),
        *roots,
        boot_id.strip(),
        version,
        *[_stamp(driver_root.rstrip("/") + path) for path in watched],
        " ".join([f"{name}={majors[name]}" for name in sorted(majors)]),
        " ".join(gpu_directories),
    ]


def _stamp(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        if not observations.is_absent(error):
            raise observations.unknown(path, error) from error
        observations.stamp(path, None)
        return "absent"
    observations.stamp(path, status)
    fields = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    return ":".join([str(field) for field in fields])


def _read(
    path: str, key: list[str]
) -> tuple[tuple[Gpu, ...], tuple[Library, ...], tuple[HostFile, ...], str] | None:
    content = remembered(path, key)
    cuda_version = content.get("cuda_version")
    if not isinstance(cuda_version, str):
        return None
    try:
        return (
            rows(content.get("gpus"), Gpu, GPU_FIELDS),
            rows(content.get("libraries"), Library, LIBRARY_FIELDS),
            rows(content.get("files"), HostFile, FILE_FIELDS),
            cuda_version,
        )
    except FormatError:
        return None


def remembered(path: str, key: list[str]) -> dict[str, object]:
    """Return what a cache file says, empty if it can't be trusted or is not for this key."""
    version = _status(path)  # before it is read: where it is replaced meanwhile, the older counts
    data = state.read(path, MAX_BYTES)
    try:
        content = json_text.parse(data, path, MAX_BYTES) if data is not None else None
    except FormatError:
        return {}
    if not isinstance(content, dict) or content.get("key") != key:
        return {}
    observations.version(path, version)
    return content


def remember(path: str, key: list[str], content: dict[str, object]) -> None:
    """Write a cache file, where that can be done."""
    import json  # once per boot

    text = json.dumps({"key": key, **content}, separators=(",", ":"))
    written = state.write(path, text.encode())
    observations.version(path, _status(path) if written else None)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def rows(
    found: object, record: Callable[..., Row], fields: tuple[tuple[str, type], ...]
) -> tuple[Row, ...]:
    """Return the records of the rows of a cache file.

    Raises: FormatError where they are not exactly of these fields.
    """
    types = [field_type for _, field_type in fields]
    if not isinstance(found, list):
        raise FormatError("the inventory has no list of rows")
    for row in found:
        # type(), not isinstance(): true is an int to the latter
        if not isinstance(row, list) or [type(value) for value in row] != types:
            raise FormatError("a row of the inventory is wrong")
    return tuple([record(*row) for row in found])


def _content(inventory: Inventory) -> dict[str, object]:
    """Return what the file says; sockets are left out, their daemons come and go."""
    return {
        "cuda_version": inventory.cuda_version,
        "gpus": values(inventory.gpus, GPU_FIELDS),
        "libraries": values(inventory.libraries, LIBRARY_FIELDS),
        "files": values([file for file in inventory.files if file.group != "socket"], FILE_FIELDS),
    }


def values(records: Iterable[object], fields: tuple[tuple[str, type], ...]) -> list[list[object]]:
    """Return records as the rows of a cache file."""
    return [[getattr(record, name) for name, _ in fields] for record in records]


def _has_new_uuid(gpus: tuple[Gpu, ...], proc_root: str) -> bool:
    """Return whether the driver has learnt a UUID since: it does with the first use of a GPU."""
    for gpu in gpus:
        if is_known_uuid(gpu.uuid):
            continue
        from nvhook.formats.gpu_information import parse_information

        path = f"{driver_directory(proc_root)}/gpus/{gpu.pci_bus_id}/information"
        try:
            if is_known_uuid(parse_information(read_text(path) or "")[0].uuid):
                return True
        except FormatError:
            return True  # discovery says what is wrong with it
    return False
