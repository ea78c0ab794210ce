"""What a CDI spec must be beside well-typed: the rules that engines refuse specs by.

Source: the checks of the Go library (pkg/cdi, pkg/parser 1.1), stricter than the JSON schema.
"""

from __future__ import annotations

from nvhook.formats.cdi_spec import HOOK_NAMES, VERSIONS, minimum_version
from nvhook.record import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nvhook.formats.cdi_spec import (
        CdiDeviceNode,
        CdiMount,
        ContainerEdits,
        Hook,
        IntelRdt,
        NetDevice,
        Spec,
    )

    Violations = Iterator[tuple[str, str]]

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ALPHANUMERIC = _LETTERS | frozenset("0123456789")
_KIND = _ALPHANUMERIC | frozenset("_-.")
_DEVICE = _KIND | frozenset(":")
_NODE_TYPES = ("", "b", "c", "u", "p")
_MAX_ANNOTATIONS = 256 << 10


def violations(spec: Spec) -> Violations:
    """Yield (place inside the document, reason) for everything that is wrong."""
    yield from _version(spec)
    yield from _kind(spec.kind)
    yield from _annotations(spec.annotations, "annotations")
    yield from _edits(spec.edits, "containerEdits")
    if not spec.devices:
        yield "devices", "there must be at least one device"
    seen: dict[str, int] = {}
    for index, device in enumerate(spec.devices):
        path = f"devices[{index}]"
        if not is_device_name(device.name):
            yield (
                f"{path}.name",
                f"{device.name!r} is no device name: letters, digits, _ - . : inside",
            )
        elif device.name in seen:
            yield f"{path}.name", f"devices[{seen[device.name]}] is called {device.name!r}, too"
        seen.setdefault(device.name, index)
        yield from _annotations(device.annotations, f"{path}.annotations")
        if not any(value for value in _parts(device.edits)):
            yield f"{path}.containerEdits", "is empty: a device must change something"
        yield from _edits(device.edits, f"{path}.containerEdits")


def is_kind(kind: str) -> bool:
    """Tell whether this is a vendor and a class: ``nvidia.com/gpu``."""
    return not any(_kind(kind))


def is_device_name(name: str) -> bool:
    """Tell whether a device may be called so."""
    return _is_name(name, _ALPHANUMERIC, _DEVICE)


def split_name(name: str) -> tuple[str, str] | None:
    """Return kind and device of a qualified name (``vendor/class=device``), None if it is none."""
    kind, equals, device = name.partition("=")
    return (kind, device) if equals and is_kind(kind) and is_device_name(device) else None


def _is_name(name: str, first: frozenset[str], inside: frozenset[str]) -> bool:
    return bool(name) and name[0] in first and name[-1] in _ALPHANUMERIC and inside.issuperset(name)


def _version(spec: Spec) -> Violations:
    order = [version for version, _ in VERSIONS]
    version = spec.version.removeprefix("v")
    if version not in order:
        yield "cdiVersion", f"{spec.version!r} is not known; known are {order[-1]} to {order[0]}"
        return
    needed = minimum_version(spec)
    if order.index(version) > order.index(needed):
        yield "cdiVersion", f"{spec.version} does not have all that is used here: {needed} does"


def _kind(kind: str) -> Violations:
    vendor, slash, device_class = kind.partition("/")
    if not slash:
        yield "kind", f"{kind!r} is not a vendor and a class: nvidia.com/gpu"
        return
    for what, name in (("vendor", vendor), ("class", device_class)):
        if not _is_name(name, _LETTERS, _KIND):
            yield "kind", f"{name!r} is no {what}: a letter first, letters, digits, _ - . inside"


def _annotations(annotations: Mapping[str, str], path: str) -> Violations:
    """Check as Kubernetes does; the Go library (1.1.2) has the rule, too, but never comes to it."""
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        is_name = len(name) <= 63 and _is_name(name, _ALPHANUMERIC, _KIND)
        if not is_name or (slash and not _is_subdomain(prefix.lower())):
            yield f"{path}.{key}", "is no annotation key: [domain/]name of at most 63 characters"
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _MAX_ANNOTATIONS:
        yield path, f"has {size} bytes, more than {_MAX_ANNOTATIONS}"


def _is_subdomain(text: str) -> bool:
    inside = _ALPHANUMERIC | {"-"}
    labels = text.split(".")
    return len(text) <= 253 and all(_is_name(label, _ALPHANUMERIC, inside) for label in labels)


def _parts(edits: ContainerEdits) -> tuple[object, ...]:
    rdt = edits.intel_rdt is not None
    return (*[value for name, value in fields(edits).items() if name != "intel_rdt"], rdt)


def _edits(edits: ContainerEdits, path: str) -> Violations:
    yield from _env(edits.env, f"{path}.env")
    for index, node in enumerate(edits.device_nodes):
        yield from _node(node, f"{path}.deviceNodes[{index}]")
    for index, hook in enumerate(edits.hooks):
        yield from _hook(hook, f"{path}.hooks[{index}]")
    for index, mount in enumerate(edits.mounts):
        yield from _mount(mount, f"{path}.mounts[{index}]")
    if edits.intel_rdt is not None:
        yield from _rdt(edits.intel_rdt, f"{path}.intelRdt")
    yield from _net_devices(edits.net_devices, f"{path}.netDevices")


def _env(env: tuple[str, ...], path: str) -> Violations:
    for index, entry in enumerate(env):
        if entry.find("=") <= 0:
            yield f"{path}[{index}]", f"{entry!r} is not NAME=value"


def _node(node: CdiDeviceNode, path: str) -> Violations:
    if not node.path:
        yield f"{path}.path", "is missing"
    if node.type not in _NODE_TYPES:
        yield f"{path}.type", f"{node.type!r} is not one of b, c, u, p"
    for name, number in (("major", node.major), ("minor", node.minor)):
        if number < 0:
            yield f"{path}.{name}", f"{number} is negative: the device cgroup would take it as all"
    if node.permissions != "none" and not set(node.permissions) <= set("rwm"):
        yield f"{path}.permissions", f"{node.permissions!r} is not some of r, w, m, or none"


def _hook(hook: Hook, path: str) -> Violations:
    if hook.hook_name not in HOOK_NAMES:
        yield f"{path}.hookName", f"{hook.hook_name!r} is not one of {', '.join(HOOK_NAMES)}"
    if not hook.path:
        yield f"{path}.path", "is missing"
    yield from _env(hook.env, f"{path}.env")


def _mount(mount: CdiMount, path: str) -> Violations:
    if not mount.host_path:
        yield f"{path}.hostPath", "is missing"
    if not mount.container_path:
        yield f"{path}.containerPath", "is missing"


def _rdt(rdt: IntelRdt, path: str) -> Violations:
    name = rdt.clos_id
    if name == "/":  # the root group
        return
    if len(name.encode()) >= 4096 or name in {".", ".."} or "/" in name or "\n" in name:
        yield f"{path}.closID", "is not the name of a file"


def _net_devices(devices: tuple[NetDevice, ...], path: str) -> Violations:
    seen: dict[tuple[str, str], int] = {}
    for index, device in enumerate(devices):
        names = (("hostInterfaceName", device.host_interface_name), ("name", device.name))
        for field, name in names:
            if not name:
                yield f"{path}[{index}].{field}", "is missing"
            elif (field, name) in seen:
                first = seen[field, name]
                yield f"{path}[{index}].{field}", f"netDevices[{first}] has {name!r}, too"
            seen.setdefault((field, name), index)
