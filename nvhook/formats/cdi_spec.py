"""CDI specs (Container Device Interface) as values, and the version they need.

Source: CDI specification 1.1.0; field names are its own, in snake case. An empty text, a number 0
and None mean that the field is not there, as in the Go library that engines read specs with.
"""

from __future__ import annotations

from nvhook.record import EMPTY, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAX_SIZE = 4 << 20
HOOK_NAMES = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)


@record
class CdiDeviceNode:
    """A device node.

    ``path`` in the container, ``host_path`` if it differs there; ``type`` is b, c, u or p;
    ``permissions`` of the device cgroup: some of ``rwm``, ``none``, or empty for ``rwm``;
    ``file_mode`` holds permission bits.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


@record
class NetDevice:
    """A network interface of the host that moves into the container, where it is called name."""

    host_interface_name: str
    name: str


@record
class Hook:
    """An OCI hook; ``args[0]`` is the program's name, ``timeout`` is in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@record
class CdiMount:
    """A mount of a host path."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


@record
class IntelRdt:
    """Settings of Intel's resource director; ``schemata`` is None where the spec has no list."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False


@record
class ContainerEdits:
    """What an engine changes in a container's config.json; ``env`` entries are ``NAME=value``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[CdiDeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()


NO_EDITS = ContainerEdits()


@record
class CdiDevice:
    """A device that can be asked for, as ``kind=name``."""

    name: str
    edits: ContainerEdits
    annotations: Mapping[str, str] = EMPTY


@record
class Spec:
    """A spec file. ``kind`` is ``vendor/class``; ``edits`` are made once for any of its devices."""

    version: str
    kind: str
    devices: tuple[CdiDevice, ...]
    edits: ContainerEdits = NO_EDITS
    annotations: Mapping[str, str] = EMPTY


def join(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """Return the edits of all parts, in order; the last intelRdt wins."""
    every = tuple(parts)
    rdt = [each.intel_rdt for each in every if each.intel_rdt is not None]
    return ContainerEdits(
        env=tuple(entry for each in every for entry in each.env),
        device_nodes=tuple(node for each in every for node in each.device_nodes),
        net_devices=tuple(device for each in every for device in each.net_devices),
        hooks=tuple(hook for each in every for hook in each.hooks),
        mounts=tuple(mount for each in every for mount in each.mounts),
        intel_rdt=rdt[-1] if rdt else None,
        additional_gids=tuple(gid for each in every for gid in each.additional_gids),
    )


def all_edits(spec: Spec) -> tuple[ContainerEdits, ...]:
    """Return the spec's own edits and those of each device."""
    return (spec.edits, *[device.edits for device in spec.devices])


def _uses_net_devices_or_schemata(spec: Spec) -> bool:
    return any(
        edits.net_devices
        or (
            edits.intel_rdt is not None
            and (edits.intel_rdt.schemata is not None or edits.intel_rdt.enable_monitoring)
        )
        for edits in all_edits(spec)
    )


def _uses_rdt_or_gids(spec: Spec) -> bool:
    return any(edits.intel_rdt or edits.additional_gids for edits in all_edits(spec))


def _uses_annotations_or_dotted_class(spec: Spec) -> bool:
    annotated = spec.annotations or any(device.annotations for device in spec.devices)
    return bool(annotated) or "." in spec.kind.partition("/")[2]


def _uses_host_path_or_digit(spec: Spec) -> bool:
    digit = any("0" <= device.name[:1] <= "9" for device in spec.devices)
    return digit or any(node.host_path for edits in all_edits(spec) for node in edits.device_nodes)


def _uses_mount_type(spec: Spec) -> bool:
    return any(mount.type for edits in all_edits(spec) for mount in edits.mounts)


def _never(_spec: Spec) -> bool:
    return False


# Newest first, with what only a spec of that version or a newer one may have.
VERSIONS: tuple[tuple[str, Callable[[Spec], bool]], ...] = (
    ("1.1.0", _uses_net_devices_or_schemata),
    ("1.0.0", _never),
    ("0.8.0", _never),
    ("0.7.0", _uses_rdt_or_gids),
    ("0.6.0", _uses_annotations_or_dotted_class),
    ("0.5.0", _uses_host_path_or_digit),
    ("0.4.0", _uses_mount_type),
    ("0.3.0", _never),
)


def minimum_version(spec: Spec) -> str:
    """Return the lowest version that has everything this spec uses.

    Older engines know few versions: a spec says no more than it needs.
    """
    return next((version for version, uses in VERSIONS if uses(spec)), VERSIONS[-1][0])
