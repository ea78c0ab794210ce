"""What CDI devices of any vendor change in a container, as additions to its config.json.

As the specification says: a device node comes with its rule, mounts keep their options.
"""

from __future__ import annotations

from nvhook.errors import UnsupportedError
from nvhook.formats.oci_edit import Additions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.formats.cdi_spec import CdiDeviceNode, CdiMount, ContainerEdits, Hook

_NO_RULE = "none"


def additions_of(edits: ContainerEdits, hook_environment: tuple[str, ...]) -> Additions:
    """Return what config.json gets.

    A hook without an environment of its own gets hook_environment: some runtimes would hand it the
    image's, LD_PRELOAD and all, with the host's rights.

    Raises: UnsupportedError for edits that nvhook-runtime does not make.
    """
    for wanted, name in ((edits.intel_rdt, "intelRdt"), (edits.net_devices, "netDevices")):
        if wanted:
            raise UnsupportedError(
                f"a CDI device wants {name}, which nvhook-runtime can't give",
                "use an engine that knows CDI by itself",
            )
    nodes = edits.device_nodes
    return Additions(
        env=edits.env,
        devices=tuple([_device(node) for node in nodes]),
        rules=tuple([_rule(node) for node in nodes if _has_rule(node)]),
        mounts=tuple([_mount(mount) for mount in edits.mounts]),
        gids=edits.additional_gids,
        hooks=tuple([(each.hook_name, _hook(each, hook_environment)) for each in edits.hooks]),
    )


def _has_rule(node: CdiDeviceNode) -> bool:
    return node.type != "p" and node.permissions != _NO_RULE


def _device(node: CdiDeviceNode) -> dict[str, object]:
    device: dict[str, object] = {"path": node.path, "type": node.type}
    if node.type != "p":
        device |= {"major": node.major, "minor": node.minor}
    for key, value in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
        if value is not None:
            device[key] = value
    return device


def _rule(node: CdiDeviceNode) -> dict[str, object]:
    return {
        "allow": True,
        "type": "b" if node.type == "b" else "c",
        "major": node.major,
        "minor": node.minor,
        "access": node.permissions or "rwm",
    }


def _mount(mount: CdiMount) -> dict[str, object]:
    return {
        "destination": mount.container_path,
        "type": mount.type or "bind",
        "source": mount.host_path,
        "options": list(mount.options),
    }


def _hook(hook: Hook, environment: tuple[str, ...]) -> dict[str, object]:
    value: dict[str, object] = {"path": hook.path, "env": list(hook.env or environment)}
    if hook.args:
        value["args"] = list(hook.args)
    if hook.timeout is not None:
        value["timeout"] = hook.timeout
    return value
