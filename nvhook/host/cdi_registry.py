"""The CDI devices of this host: what spec files of any vendor offer, by qualified name.

The same rules as in engines: only .json and .yaml, no subdirectories, a later directory wins, and a
device that two files of one directory define is nobody's.
"""

from __future__ import annotations

import os
import stat

from nvhook.errors import HostError, RequestError
from nvhook.formats.cdi_reader import EXTENSIONS, Finding, read
from nvhook.formats.cdi_rules import split_name
from nvhook.formats.cdi_spec import MAX_SIZE, CdiDevice, CdiDeviceNode, ContainerEdits, Spec, join
from nvhook.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPES = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}


@record
class Entry:
    """A device, the spec it is from, and that spec's file."""

    file: str
    spec: Spec
    device: CdiDevice


@record
class Registry:
    """What the directories offer.

    ``devices`` and ``conflicts`` are by qualified name; a conflict names the files. ``findings``
    say why a file or a directory is left out; ``bad_kinds`` has the kind of a file left out, empty
    if it can't be told.
    """

    directories: tuple[str, ...]
    devices: dict[str, Entry]
    conflicts: dict[str, tuple[str, ...]]
    findings: tuple[Finding, ...]
    bad_kinds: dict[str, str]


def resolve(names: Sequence[str], directories: Sequence[str]) -> ContainerEdits:
    """Return what these devices change in a container, ready to be put into its config.json.

    Edits of a spec come once, before those of its first device; devices in the order of names, each
    once. Device nodes have type, major, minor and, where the host has the node, its mode; empty
    ``permissions`` still mean ``rwm``.

    Raises: RequestError for a name that does not resolve, HostError for a device node that the host
    does not have.
    """
    registry = load(directories)
    parts: list[ContainerEdits] = []
    begun = set()
    for name in dict.fromkeys(names):
        entry = find(name, registry)
        if entry.file not in begun:
            begun.add(entry.file)
            parts.append(_completed(entry.spec.edits, entry.file))
        parts.append(_completed(entry.device.edits, entry.file))
    return join(parts)


def load(directories: Sequence[str]) -> Registry:
    """Return what the spec files in these directories offer; a later directory wins."""
    devices: dict[str, Entry] = {}
    conflicts: dict[str, tuple[str, ...]] = {}
    findings: list[Finding] = []
    bad_kinds: dict[str, str] = {}
    for directory in directories:
        offered: dict[str, list[Entry]] = {}
        for file in _files(directory, findings):
            spec, found = read_spec(file)
            findings += found
            if found:
                bad_kinds[file] = spec.kind
                continue
            for device in spec.devices:
                name = f"{spec.kind}={device.name}"
                offered.setdefault(name, []).append(Entry(file, spec, device))
        for name, entries in offered.items():
            devices.pop(name, None)
            conflicts.pop(name, None)
            if len(entries) == 1:
                devices[name] = entries[0]
            else:
                conflicts[name] = tuple([entry.file for entry in entries])
    return Registry(tuple(directories), devices, conflicts, tuple(findings), bad_kinds)


def find(name: str, registry: Registry) -> Entry:
    """Return a device by its qualified name.

    Raises: RequestError, which says why there is none.
    """
    entry = registry.devices.get(name)
    if entry is not None:
        return entry
    if name in registry.conflicts:
        files = " and ".join(registry.conflicts[name])
        raise RequestError(
            f"CDI device {name} is defined by {files}, so none of them counts",
            "remove one of the files",
        )
    split = split_name(name)
    if split is None:
        raise RequestError(
            f"{name!r} is no CDI device name", "write vendor/class=device, like nvidia.com/gpu=0"
        )
    for finding in registry.findings:
        if registry.bad_kinds.get(finding.file, "") in ("", split[0]):
            raise RequestError(
                f"unknown CDI device {name}, but {finding}",
                "nvhook cdi validate FILE shows all that is wrong with it",
            )
    raise RequestError(f"unknown CDI device {name}", _known(name, split[0], registry))


def _known(name: str, kind: str, registry: Registry) -> str:
    import difflib

    where = ", ".join(registry.directories) or "no directory"
    if not registry.devices:
        return f"{where} have no spec with a device; nvhook cdi generate makes one for NVIDIA GPUs"
    known = sorted(registry.devices)
    same_kind = [each.removeprefix(f"{kind}=") for each in known if each.startswith(f"{kind}=")]
    if same_kind:
        near = difflib.get_close_matches(name.removeprefix(f"{kind}="), same_kind, 4)
        names = [f"{kind}={device}" for device in sorted(near) or same_kind[:4]]
    else:
        names = difflib.get_close_matches(name, known, 4, 0.8) or known[:4]
    return f"known are {', '.join(names)}; nvhook cdi list shows all"


def _files(directory: str, findings: list[Finding]) -> list[str]:
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        findings.append(Finding(directory, "", f"can't be read: {error.strerror}"))
        return []
    paths = [os.path.join(directory, name) for name in names if name.endswith(EXTENSIONS)]
    # A link to nothing is left out, too: uninstalled drivers leave some.
    return [path for path in paths if os.path.exists(path) and not os.path.isdir(path)]


def read_spec(file: str) -> tuple[Spec, tuple[Finding, ...]]:
    """Return what can be understood of a spec file, and everything that is wrong with it."""
    try:
        data = _content(file)
    except OSError as error:
        return Spec("", "", ()), (Finding(file, "", f"can't be read: {error.strerror}"),)
    return read(data, file)


def _content(file: str) -> bytes:
    """Return the bytes of a regular file, at most one more than a spec may have."""
    # O_NONBLOCK: a FIFO of this name must not hang the caller.
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(fd, "rb") as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "not a regular file")
        return stream.read(MAX_SIZE + 1)


def _completed(edits: ContainerEdits, file: str) -> ContainerEdits:
    nodes = tuple([_with_numbers(node, file) for node in edits.device_nodes])
    return replace(edits, device_nodes=nodes)


def _with_numbers(node: CdiDeviceNode, file: str) -> CdiDeviceNode:
    """Return a node with what its spec leaves to the host: type, numbers, mode."""
    is_complete = node.type != "" and (node.major != 0 or node.type == "p")
    path = node.host_path or node.path
    remedy = f"{file} is out of date or for another host: generate it again"
    try:
        status = os.lstat(path)
    except OSError as error:
        if is_complete:
            return node
        raise HostError(f"CDI device node {path}: {error.strerror}", remedy) from None
    file_mode = stat.S_IMODE(status.st_mode) if node.file_mode is None else node.file_mode
    if is_complete:
        return replace(node, file_mode=file_mode)
    kind = _TYPES.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        raise HostError(f"{path} is not a device node, but {file} says so", remedy)
    if node.type not in ("", kind) and (node.type, kind) != ("u", "c"):
        raise HostError(f"device node {path} has type {kind}, not {node.type} as in {file}", remedy)
    if kind == "p":
        return replace(node, type=kind, file_mode=file_mode)
    if node.major != 0:
        return replace(node, type=kind, file_mode=file_mode)
    return replace(
        node,
        type=kind,
        major=os.major(status.st_rdev),
        minor=os.minor(status.st_rdev),
        file_mode=file_mode,
    )
