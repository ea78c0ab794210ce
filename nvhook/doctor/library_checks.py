"""What a container has of the driver's files: libraries, their version, /proc/driver/nvidia."""

import os

from nvhook._native import SyscallError, call, lib
from nvhook.config import Config
from nvhook.core.catalog import PROC_DRIVER, REQUIRED_LIBRARIES
from nvhook.core.edits import CachedLibrary, LdCacheUpdate
from nvhook.core.layout import COMPAT_DIRECTORY
from nvhook.create import loader_cache
from nvhook.create.pipeline import Outcome
from nvhook.doctor.check import Check, failed, listed, not_applicable, not_checked, ok, warning
from nvhook.doctor.container import Running
from nvhook.doctor.container_checks import RESTART
from nvhook.errors import ContainerError, FormatError
from nvhook.formats import ldcache
from nvhook.formats.proc_driver import is_driver_version, parse_params
from nvhook.host.driver_texts import driver_directory, read_text

PARAMS = f"{PROC_DRIVER}/params"
PROC_MAGIC = 0x9FA0  # PROC_SUPER_MAGIC, linux/magic.h
_MUSL_LIMIT = 1 << 16


def libraries(running: Running, outcome: Outcome, machine: str) -> Check:
    """Tell whether the container's loader finds the driver: by its own cache, not by running it."""
    name = "container-libraries"
    wanted = _required(outcome)
    if not wanted:
        return not_applicable(name, "compute and utility are not asked for")
    try:
        found = _lookup(running, wanted, machine)
    except (ContainerError, FormatError) as error:
        return failed(name, error.message, "a loader cache that can be read", RESTART)
    absent = [library for library in wanted if found[library.name] is None]
    if absent:
        names = listed(library.name for library in absent)
        mounted = [path for path in _mounted(running) if _of(path, absent)]
        there = f", though {listed(mounted)} is mounted" if mounted else ""
        return failed(
            name,
            f"{loader_cache.LD_SO_CACHE} of the container does not list {names}{there}",
            listed(library.container_path for library in absent),
            f"{RESTART}; or run ldconfig in it" if mounted else RESTART,
        )
    gone = [path for path in found.values() if path and not running.rootfs.has(path)]
    if gone:
        saw = f"the loader cache names {listed(gone)}, which does not exist"
        return failed(name, saw, "libraries at the places that the cache names", RESTART)
    return ok(name, listed(f"{key} = {path}" for key, path in found.items()))


def driver_version(running: Running, outcome: Outcome, version: str, machine: str) -> Check:
    """Compare the versions in the names of the container's driver libraries with the module's."""
    name = "container-driver-version"
    if not version:
        return not_checked(name, "no driver is loaded")
    paths = dict.fromkeys(_mounted(running))
    try:
        # CUDA's compatibility libraries are newer than the module by intention.
        drivers = [each for each in _required(outcome) if not _is_compat(each)]
        found = _lookup(running, drivers, machine)
        paths |= dict.fromkeys(path for each in found.values() if (path := _real(running, each)))
    except (ContainerError, FormatError):
        pass  # container-libraries says so; what is mounted can be told all the same
    versions = {path: _version_of(path) for path in paths}
    known = {path: other for path, other in versions.items() if other}
    if not known:
        return not_checked(name, "no driver library with a version in its name")
    wrong = [path for path, other in known.items() if other != version]
    if wrong:
        return failed(
            name,
            f"{listed(wrong)}, but the kernel module is {version}",
            f"libraries of {version}",
            f"{RESTART}: an update of the driver leaves old files mounted; remove driver packages "
            "from the image",
        )
    return ok(name, f"{listed(sorted(set(known.values())))}, as the kernel module")


def params_mask(running: Running, config: Config) -> Check:
    """Tell whether programs in the container are told to make device nodes by themselves."""
    name = "container-params"
    fd = running.rootfs.existing(PARAMS)
    if fd is None:
        return not_applicable(name, f"the container has no {PARAMS}")
    try:
        is_hosts = call(lib.nvh_filesystem_magic, fd) == PROC_MAGIC
    except SyscallError as error:
        return not_checked(name, str(error))
    finally:
        os.close(fd)
    if is_hosts:
        text = read_text(f"{driver_directory(config.proc_root)}/params") or ""
    else:
        try:
            text = (running.rootfs.read(PARAMS, 1 << 16) or b"").decode("utf-8", "replace")
        except ContainerError as error:
            return not_checked(name, error.message)
    value = parse_params(text).get("ModifyDeviceFiles", "1, which absent means")
    if value == "0":
        return ok(name, "ModifyDeviceFiles: 0")
    return warning(
        name,
        f"ModifyDeviceFiles: {value}",
        "ModifyDeviceFiles: 0, so that programs make no nodes of other GPUs in the container",
        RESTART,
    )


def _required(outcome: Outcome) -> list[CachedLibrary]:
    """Return the loader's entries that the container can't do without, 64-bit ones."""
    prefixes = tuple(
        f"{name}."
        for capability in outcome.request.driver_capabilities
        for name in REQUIRED_LIBRARIES.get(capability, ())
    )
    updates = [edit for edit in outcome.plan.edits if isinstance(edit, LdCacheUpdate)]
    every = [library for update in updates for library in update.libraries]
    first: dict[str, CachedLibrary] = {}
    for library in every:
        if prefixes and library.name.startswith(prefixes):
            first.setdefault(library.name, library)
    return [first[name] for name in sorted(first)]


def _is_compat(library: CachedLibrary) -> bool:
    return library.container_path.startswith(f"{COMPAT_DIRECTORY}/")


def _lookup(running: Running, wanted: list[CachedLibrary], machine: str) -> dict[str, str | None]:
    """Return where the container's loader finds each library.

    Raises: ContainerError, FormatError.
    """
    if running.rootfs.has(f"/lib/ld-musl-{machine}.so.1"):
        data = running.rootfs.read(f"/etc/ld-musl-{machine}.path", _MUSL_LIMIT) or b""
        directories = data.decode("utf-8", "replace").replace("\n", ":").split(":")
    else:
        directories = []
    # What the loader looks at first.
    directories = [*running.declared.env.get("LD_LIBRARY_PATH", "").split(":"), *directories]
    cache = ldcache.parse(running.rootfs.read(loader_cache.LD_SO_CACHE, ldcache.MAX_BYTES) or b"")
    found: dict[str, str | None] = {}
    for library in wanted:
        places = [f"{each.rstrip('/')}/{library.name}" for each in directories if each[:1] == "/"]
        listed_paths = [
            entry.path
            for entry in cache.entries
            if (entry.name, entry.flags) == (library.name, library.flags)
        ]
        there = [path for path in places if running.rootfs.has(path)]
        found[library.name] = next(iter((*there, *listed_paths)), None)
    return found


def _mounted(running: Running) -> list[str]:
    """Return where driver libraries with the required names are mounted."""
    names = tuple({f"/{name}." for each in REQUIRED_LIBRARIES.values() for name in each})
    return [
        mount.mount_point for mount in running.mounts if any(n in mount.mount_point for n in names)
    ]


def _of(path: str, libraries: list[CachedLibrary]) -> bool:
    stem = path.rpartition("/")[2].partition(".so")[0]
    return any(library.name.partition(".so")[0] == stem for library in libraries)


def _real(running: Running, path: str | None) -> str | None:
    """Return a path of the container without links, None if there is nothing."""
    fd = None if path is None else running.rootfs.existing(path)
    if fd is None:
        return None
    try:
        return os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
    finally:
        os.close(fd)


def _version_of(path: str) -> str:
    """Return the driver version that ends a library's name, empty if none does."""
    suffix = path.rpartition("/")[2].partition(".so.")[2]
    return suffix if is_driver_version(suffix) else ""
