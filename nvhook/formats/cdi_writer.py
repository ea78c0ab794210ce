"""CDI specs as text: JSON and YAML."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvhook.formats.cdi_spec import (
        CdiDeviceNode,
        CdiMount,
        ContainerEdits,
        Hook,
        IntelRdt,
        Spec,
    )


def dump_json(spec: Spec) -> str:
    """Return a spec as JSON text."""
    import json

    return json.dumps(_document(spec), indent=2, ensure_ascii=False) + "\n"


def dump_yaml(spec: Spec) -> str:
    """Return a spec as YAML text."""
    import yaml

    # libyaml's writer, where it is there: the same bytes in a tenth of the time.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(
        _document(spec), Dumper=dumper, sort_keys=False, width=1000, explicit_start=True
    )
    return text


def _document(spec: Spec) -> dict[str, object]:
    devices = [
        {
            "name": device.name,
            **_filled({"annotations": dict(device.annotations)}),
            "containerEdits": _edits(device.edits),
        }
        for device in spec.devices
    ]
    return {
        "cdiVersion": spec.version,
        "kind": spec.kind,
        **_filled({"annotations": dict(spec.annotations)}),
        "devices": devices,
        **_filled({"containerEdits": _edits(spec.edits)}),
    }


def _filled(fields: Mapping[str, object]) -> dict[str, object]:
    """Leave out what has no value; 0 is a value."""
    return {key: value for key, value in fields.items() if value not in (None, "", [], {})}


def _edits(edits: ContainerEdits) -> dict[str, object]:
    rdt = edits.intel_rdt
    return _filled(
        {
            "env": list(edits.env),
            "deviceNodes": [_node(node) for node in edits.device_nodes],
            "netDevices": [
                {"hostInterfaceName": device.host_interface_name, "name": device.name}
                for device in edits.net_devices
            ],
            "hooks": [_hook(hook) for hook in edits.hooks],
            "mounts": [_mount(mount) for mount in edits.mounts],
            "additionalGids": list(edits.additional_gids),
        }
    ) | ({} if rdt is None else {"intelRdt": _rdt(rdt)})


def _node(node: CdiDeviceNode) -> dict[str, object]:
    # A device of major 0 does not exist, and a minor says something only beside its major.
    has_number = node.major != 0 or node.minor != 0
    return {
        "path": node.path,
        **_filled(
            {
                "hostPath": node.host_path,
                "type": node.type,
                "major": node.major if has_number else None,
                "minor": node.minor if has_number else None,
                "fileMode": node.file_mode,
                "permissions": node.permissions,
                "uid": node.uid,
                "gid": node.gid,
            }
        ),
    }


def _hook(hook: Hook) -> dict[str, object]:
    optional = {"args": list(hook.args), "env": list(hook.env), "timeout": hook.timeout}
    return {"hookName": hook.hook_name, "path": hook.path, **_filled(optional)}


def _mount(mount: CdiMount) -> dict[str, object]:
    optional = {"options": list(mount.options), "type": mount.type}
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        **_filled(optional),
    }


def _rdt(rdt: IntelRdt) -> dict[str, object]:
    fields = _filled(
        {
            "closID": rdt.clos_id,
            "l3CacheSchema": rdt.l3_cache_schema,
            "memBwSchema": rdt.mem_bw_schema,
            "enableMonitoring": rdt.enable_monitoring or None,
        }
    )
    return fields | ({} if rdt.schemata is None else {"schemata": list(rdt.schemata)})
