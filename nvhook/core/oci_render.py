"""A Plan for a container that is not created yet: what its config.json says, what the hook does.

The runtime makes the devices and sets the rules, so that it, and systemd, own them: they survive
``runc update`` and ``systemctl daemon-reload``. A spec can't say links, files and the loader cache;
the library mounts it can, but runc needs 0.7 ms for each, the hook 0.06.
"""

from nvhook.core.edits import (
    MOUNTS_BY_HOOK,
    MOUNTS_IN_SPEC,
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
from nvhook.errors import assert_never
from nvhook.formats.oci_edit import Additions

_HOOK_NAMES = frozenset({"nvidia-container-runtime-hook", "nvidia-container-toolkit"})


def render(plan: Plan, user_namespace: bool, mounts: str = MOUNTS_BY_HOOK) -> Additions:
    """Return what config.json gets of a plan; planner.rest is the other part.

    In a user namespace most is the hook's: a runtime can't make a node there, it binds the host's
    of the same path, and the driver's may be elsewhere; it can't make mount points in an image
    that belongs to the host; and a group of the host means nothing.
    """
    if user_namespace:
        mounts = MOUNTS_BY_HOOK
    env: list[str] = []
    devices, rules, binds = [], [], []
    gids: list[int] = []
    for edit in plan.edits:
        match edit:
            case DeviceNode():
                if not user_namespace:
                    devices.append(_device(edit))
            case CgroupRule():
                rules.append(_rule(edit))
            case Mount():
                if mounts == MOUNTS_IN_SPEC and _can_stand_in_spec(edit):
                    binds.append(_mount(edit))
            case EnvVar():
                env.append(f"{edit.name}={edit.value}")
            case AdditionalGid():
                if not user_namespace:
                    gids.append(edit.gid)
            case Symlink() | TextFile() | LdCacheUpdate():
                pass  # the hook's
            case _:
                assert_never(edit)
    return Additions(tuple(env), tuple(devices), tuple(rules), tuple(binds), tuple(gids))


def is_gpu_hook(hook: dict[str, object]) -> bool:
    """Tell whether a hook entry of config.json is NVIDIA's or nvhook's own."""
    path, arguments = hook.get("path"), hook.get("args")
    name = path.rpartition("/")[2] if isinstance(path, str) else ""
    if name in _HOOK_NAMES:
        return True
    return name == "nvhook" and isinstance(arguments, list) and arguments[1:2] == ["hook"]


def gave_cdi(document: dict[str, object]) -> bool:
    """Tell whether the engine has put one of nvhook's CDI specs into a config.json.

    It leaves the annotation that asked for it where it was.
    """
    hooks = document.get("hooks")
    entries = hooks.get("createRuntime") if isinstance(hooks, dict) else None
    hooks_there = entries if isinstance(entries, list) else []
    return any(
        is_gpu_hook(hook) and "--cdi" in (hook.get("args") or ())
        for hook in hooks_there
        if isinstance(hook, dict)
    )


def _device(edit: DeviceNode) -> dict[str, object]:
    return {
        "path": edit.container_path,
        "type": "c",
        "major": edit.major,
        "minor": edit.minor,
        "fileMode": edit.mode,
        "uid": edit.uid,
        "gid": edit.gid,
    }


def _rule(edit: CgroupRule) -> dict[str, object]:
    return {
        "allow": True,
        "type": edit.type,
        "major": edit.major,
        "minor": edit.minor,
        "access": edit.access,
    }


def _can_stand_in_spec(edit: Mount) -> bool:
    """Runtimes refuse mounts below /proc, and a spec has no optional ones that may be missing."""
    return bool(edit.host_path) and not edit.container_path.startswith("/proc/")


def _mount(edit: Mount) -> dict[str, object]:
    return {
        "destination": edit.container_path,
        "type": "bind",
        "source": edit.host_path,
        "options": [*edit.options, "rbind", "rprivate"],
    }
