"""What nvhook itself keeps: its log, its inventory, and the CDI specs of its devices."""

import os
import stat
from collections.abc import Iterable

from nvhook.create import recording
from nvhook.doctor.check import Check, failed, listed, not_applicable, not_checked, ok
from nvhook.doctor.facts import HostFacts
from nvhook.doctor.host_checks import NO_DRIVER
from nvhook.errors import NvhookError
from nvhook.formats.cdi_reader import Finding
from nvhook.formats.cdi_spec import ContainerEdits
from nvhook.host import cdi_registry, inventory_cache
from nvhook.host.cdi_registry import Entry, Registry
from nvhook.host.discovery import discover

NVIDIA = "nvidia.com/"


def checks(facts: HostFacts) -> tuple[Check, ...]:
    """Check nvhook's files."""
    return (
        log_file(facts.config.log_path),
        inventory(facts),
        recordings(facts),
        cdi_specs(facts),
    )


def log_file(path: str) -> Check:
    """Tell whether the log can be written: crun hides what a hook says, so it is needed."""
    name = "log"
    if not path:
        return not_applicable(name, "log-path is empty: no log is kept")
    expected = "a regular file, no link, in a directory that root may write to"
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        directory = os.path.dirname(path)
        if os.access(directory, os.W_OK | os.X_OK):
            return ok(name, f"{path} will be made")
        if os.geteuid() != 0:
            return not_checked(name, f"whether root can make {path} only root can tell")
        return failed(name, f"{path} can't be made", expected, f"mkdir -p {directory}")
    except OSError as error:
        return failed(name, f"{path}: {error.strerror}", expected, "set log-path")
    if not stat.S_ISREG(status.st_mode):
        kind = "link" if stat.S_ISLNK(status.st_mode) else "directory or special file"
        return failed(name, f"{path} is a {kind}", expected, f"rm {path}, or set log-path")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        if os.geteuid() != 0:
            return not_checked(name, f"{path} is root's: {error.strerror}")
        return failed(name, f"{path}: {error.strerror}", expected, "set log-path")
    return ok(name, path)


def recordings(facts: HostFacts) -> Check:
    """Tell whether starts are recorded and repeated, and why some are not."""
    name = "recordings"
    path = recording.path()
    if not facts.config.recordings:
        return ok(name, "recordings = false: Python gives each container its GPUs")
    try:
        status = os.lstat(path)
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        return ok(name, "none yet: the first container's start makes one")
    except OSError as error:
        return not_checked(name, f"{path}: {error.strerror}")
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != 0
        or stat.S_IMODE(status.st_mode) & 0o077
    ):
        return failed(
            name,
            f"{path} is not root's alone: it is not used, and each start needs Python",
            "a directory of root's with mode 0700",
            f"rm -r {path}",
        )
    kinds = {each.partition(".")[0] for each in names if each[-1:].isdigit() and "." in each}
    refused = [each for each in names if each.endswith(recording.REASON)]
    saw = f"{len(kinds)} kinds of containers start without Python"
    if refused:
        reasons = sorted({_reason(f"{path}/{each}") for each in refused})
        saw += f"; {len(refused)} do not: {listed(reasons, 2)}"
    return ok(name, saw)


def _reason(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(200)
    except OSError as error:
        return error.strerror or "unknown"


def inventory(facts: HostFacts) -> Check:
    """Tell whether what is remembered of the host is still so."""
    name = "inventory-cache"
    if not facts.version:
        return not_checked(name, NO_DRIVER)
    config = facts.config
    path = inventory_cache.cache_path(config.state_directory)
    roots = (config.driver_root, config.dev_root, config.proc_root, config.sys_root)
    if not os.path.lexists(path):
        return ok(name, "none yet: the first container's start makes it")
    try:
        if not inventory_cache.holds(*roots, config.state_directory):
            return ok(name, f"{path} is of another driver or boot: the next start makes it anew")
        found = discover(*roots)
        remembered = inventory_cache.load(*roots, config.state_directory)
    except NvhookError as error:
        return not_checked(name, str(error))
    parts = ("gpus", "libraries", "files")
    stale = [part for part in parts if getattr(found, part) != getattr(remembered, part)]
    if not stale:
        return ok(name, f"{path} is as the host is")
    return failed(
        name,
        f"{path} has other {' and '.join(stale)} than the host",
        "what discovery finds now; was the driver changed without ldconfig?",
        f"rm {path}",
    )


def cdi_specs(facts: HostFacts) -> Check:
    """Compare the CDI specs for NVIDIA's devices with the nodes and files that exist."""
    name = "cdi-specs"
    registry = cdi_registry.load(facts.config.cdi_spec_directories)
    conflicts = [
        f"{device} is in {' and '.join(files)}"
        for device, files in registry.conflicts.items()
        if NVIDIA in device
    ]
    if conflicts:
        return failed(name, listed(conflicts, 2), "each device in one file", "remove one of them")
    if bad := _left_out(registry):
        fix = f"nvhook cdi validate {bad[0].file}"
        return failed(name, listed(map(str, bad), 2), "specs that engines accept", fix)
    entries = [entry for device, entry in sorted(registry.devices.items()) if NVIDIA in device]
    if not entries:
        return not_applicable(name, f"no NVIDIA device in {listed(registry.directories)}")
    files = dict.fromkeys(entry.file for entry in entries)
    problems = {file: tuple(_stale(e for e in entries if e.file == file)) for file in files}
    stale = {file: found for file, found in problems.items() if found}
    if stale:
        file, found = next(iter(stale.items()))
        return failed(
            name,
            f"{file} is out of date: {listed(found, 3)}",
            "device numbers and files as they are on this host",
            f"nvhook cdi generate --output {file}",
        )
    return ok(name, f"{listed(files)}: {len(entries)} devices, all nodes and files as they are")


def _left_out(registry: Registry) -> list[Finding]:
    """Return why files of NVIDIA's kinds, or of kinds that can't be told, are left out."""
    kinds = {finding: registry.bad_kinds.get(finding.file, "") for finding in registry.findings}
    return [finding for finding, kind in kinds.items() if not kind or NVIDIA in kind]


def _stale(entries: Iterable[Entry]) -> Iterable[str]:
    """Yield what one spec says of the host that is not so, each once."""
    every: dict[str, None] = {}
    for entry in entries:
        for edits in (entry.spec.edits, entry.device.edits):
            every.update(dict.fromkeys(_stale_edits(edits)))
    return every


def _stale_edits(edits: ContainerEdits) -> Iterable[str]:
    for node in edits.device_nodes:
        path = node.host_path or node.path
        try:
            status = os.lstat(path)
        except OSError as error:
            yield f"{path}: {error.strerror}"
            continue
        numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
        if node.major and numbers != (node.major, node.minor):
            yield f"{path} is {numbers[0]}:{numbers[1]}, not {node.major}:{node.minor}"
    for mount in edits.mounts:
        if mount.host_path.startswith("/") and not os.path.exists(mount.host_path):
            yield f"{mount.host_path} does not exist"
    for hook in edits.hooks:
        if not os.access(hook.path, os.X_OK):
            yield f"the hook {hook.path} can't be executed"
