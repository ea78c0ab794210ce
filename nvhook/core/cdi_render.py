"""Plans -> a CDI spec: the common plan becomes the spec's own edits, each device plan a device.

What a spec can't say (links, texts, the loader cache, the masked /proc) is left to one hook, which
plans the same again for the device nodes it finds in the container's config.json.
"""

from __future__ import annotations

from nvhook.core.edits import (
    AdditionalGid,
    CgroupRule,
    DeviceNode,
    EnvVar,
    LdCacheUpdate,
    Mount,
    Plan,
    Symlink,
    TextFile,
)
from nvhook.core.inventory import MigDevice
from nvhook.core.planner import merge
from nvhook.errors import HostError, UnsupportedError, assert_never
from nvhook.formats import cdi_spec
from nvhook.formats.proc_driver import is_known_uuid
from nvhook.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Device, HostNode

ALL = "all"
STRATEGIES = ("index", "uuid", "type-index")
HOOK_STAGE = "createRuntime"
HOOK_ENV = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
# Stops NVIDIA's hook or wrapper, and ours, from giving a second time what the spec gave.
VOID = EnvVar("NVIDIA_VISIBLE_DEVICES", "void")
_BIND = ("rbind", "rprivate")
_OTHERS_READ_WRITE = 0o006


@record
class Rendered:
    """The edits a spec can say, and those that are left to the hook."""

    edits: cdi_spec.ContainerEdits
    delegated: tuple[Edit, ...]


def build_spec(
    kind: str,
    common: Plan,
    devices: Sequence[tuple[tuple[str, ...], Plan]],
    nodes: Iterable[HostNode],
    hook: cdi_spec.Hook | None,
    all_device: bool = True,
) -> cdi_spec.Spec:
    """Return the spec that gives common and any of devices, in the lowest version that can.

    Each device is (its names, its plan); ``nodes`` are the host's, for their modes and groups.
    ``hook`` is put into the spec if something is left to it.

    Raises: UnsupportedError if something would be left to a hook and there is none.
    """
    host = {node.host_path: node for node in nodes}
    named = [(names, render(plan, host)) for names, plan in devices]
    every = render(merge([plan for _, plan in devices]), host)
    rendered = render(common, host)
    edits = rendered.edits
    delegated = (*rendered.delegated, *every.delegated)
    if delegated:
        if hook is None:
            raise UnsupportedError(f"a CDI spec can't express the edit {delegated[0].kind}")
        edits = replace(edits, hooks=(hook,))
    listed = [cdi_spec.CdiDevice(name, each.edits) for names, each in named for name in names]
    if all_device and ALL not in [device.name for device in listed]:
        listed.append(cdi_spec.CdiDevice(ALL, every.edits))
    spec = cdi_spec.Spec("", kind, tuple(listed), edits)
    return replace(spec, version=cdi_spec.minimum_version(spec))


def hook_entry(launcher: str, capabilities: tuple[str, ...], config: str | None) -> cdi_spec.Hook:
    """Return a spec's one hook; launcher is absolute, capabilities are what the spec is for."""
    arguments = ["nvhook", "hook", HOOK_STAGE, "--cdi", ",".join(capabilities)]
    arguments += ["--config", config] if config is not None else []
    return cdi_spec.Hook(HOOK_STAGE, launcher, tuple(arguments), HOOK_ENV)


def device_names(device: Device, strategies: Iterable[str]) -> tuple[str, ...]:
    """Return what a device is called; what the driver or NVML does not tell yet is left out.

    Raises: HostError if it has no name then.
    """
    if isinstance(device, MigDevice):
        kind, index, remedy = "mig", device.name, "does nvidia-smi -L list it?"
        numbered = device.index >= 0
    else:
        kind, index, numbered = "gpu", str(device.index), True
        remedy = "use it once (nvidia-smi does), or choose --device-name-strategy index"
    names = []
    for strategy in strategies:
        if strategy == "uuid":
            # CDI knows no slash, which is in MIG devices' UUIDs before driver 470.
            names += [device.uuid] if is_known_uuid(device.uuid) and "/" not in device.uuid else []
        elif numbered:
            names.append(index if strategy == "index" else f"{kind}{index}")
    if not names:
        raise HostError(f"the driver does not know the UUID of {kind.upper()} {index} yet", remedy)
    return tuple(names)


def render(plan: Plan, host: dict[str, HostNode]) -> Rendered:
    """Return a plan as CDI edits; host has the nodes by host path.

    Raises: UnsupportedError for a device rule without its node, which no spec can say.
    """
    rules = {(e.type, e.major, e.minor): e.access for e in plan.edits if isinstance(e, CgroupRule)}
    nodes: list[cdi_spec.CdiDeviceNode] = []
    mounts: list[cdi_spec.CdiMount] = []
    env: list[str] = []
    gids: dict[int, None] = {}
    delegated: list[Edit] = []
    for edit in plan.edits:
        match edit:
            case DeviceNode():
                access = rules.get(("c", edit.major, edit.minor), "none")
                nodes.append(_node(edit, access, host.get(edit.host_path)))
                gid = nodes[-1].gid
                gids |= {gid: None} if gid else {}
            case CgroupRule():
                pass  # checked below: it is the access of its node
            case Mount():
                if _is_left_out(edit):
                    delegated.append(edit)
                else:
                    options = (*edit.options, *_BIND)
                    mounts.append(cdi_spec.CdiMount(edit.host_path, edit.container_path, options))
            case Symlink() | TextFile() | LdCacheUpdate():
                delegated.append(edit)
            case EnvVar():
                env.append(f"{edit.name}={edit.value}")
            case AdditionalGid():
                gids[edit.gid] = None
            case _:
                assert_never(edit)
    _refuse_bare_rules(rules, nodes)
    return Rendered(
        cdi_spec.ContainerEdits(
            env=tuple(env),
            device_nodes=tuple(nodes),
            mounts=tuple(mounts),
            additional_gids=tuple(gids),
        ),
        tuple(delegated),
    )


def _is_left_out(mount: Mount) -> bool:
    """Tell whether a spec can't have this mount: a tmpfs, or one below /proc (runc refuses)."""
    return not mount.host_path or (mount.container_path + "/").startswith("/proc/")


def _node(edit: DeviceNode, access: str, host: HostNode | None) -> cdi_spec.CdiDeviceNode:
    node = cdi_spec.CdiDeviceNode(
        edit.container_path,
        edit.host_path if edit.host_path != edit.container_path else "",
        "c",
        edit.major,
        edit.minor,
        permissions=access,
    )
    # An engine makes the node with mode 0666 unless told otherwise: where the host lets a group in
    # only (0660 root:video), the container gets the same, and the group.
    if host is None or host.mode & _OTHERS_READ_WRITE == _OTHERS_READ_WRITE:
        return node
    return replace(node, file_mode=host.mode, uid=host.uid, gid=host.gid)


def _refuse_bare_rules(
    rules: dict[tuple[str, int, int], str], nodes: Iterable[cdi_spec.CdiDeviceNode]
) -> None:
    have = {(node.type, node.major, node.minor) for node in nodes}
    for kind, major, minor in rules:
        if (kind, major, minor) not in have:
            raise UnsupportedError(
                f"a CDI spec can't allow device {kind} {major}:{minor} without its node"
            )
