"""A bundle's config.json: does anything in it give the container GPUs?"""

import os
from collections.abc import Iterable

from nvhook.doctor.check import Check, failed, listed, not_applicable, ok, warning
from nvhook.doctor.container import Asked
from nvhook.doctor.engine_checks import HOOKS

GOOD_STAGES = ("prestart", "createRuntime")
LATE_STAGES = ("createContainer", "startContainer", "poststart")


def injection(document: dict[str, object], asked: Asked) -> Check:
    """Check the GPU hooks, or the devices that a runtime or CDI has put in, of a config.json."""
    name = "bundle-hook"
    if asked.outcome is None and asked.refusal is None:
        return not_applicable(name, "the container asks for no GPU")
    fix = "nvhook configure docker|containerd|crio|podman; docs/install.md has the entry for runc"
    late = [path for stage in LATE_STAGES for path, _ in _hooks(document, stage)]
    if late:
        return failed(
            name,
            f"{listed(late)} is registered for a stage that runs in the container",
            f"only {' or '.join(GOOD_STAGES)}: later ones run with the image's environment",
            "move the entry to hooks.prestart",
        )
    hooks = [hook for stage in GOOD_STAGES for hook in _hooks(document, stage)]
    devices = _nvidia_devices(document)
    if not hooks and not devices:
        saw = "config.json has neither a GPU hook nor an NVIDIA device"
        return failed(name, saw, "a hook, or devices from nvhook-runtime or CDI", fix)
    if gone := [path for path, _ in hooks if not os.access(path, os.X_OK)]:
        saw = f"{listed(gone)} can't be executed"
        return failed(name, saw, "a hook that is a program", fix)
    if bare := [path for path, has_env in hooks if not has_env]:
        return warning(
            name,
            f"{listed(bare)} has no env",
            "an env with at least PATH: without one runtimes hand down their own environment",
            'add "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] to the hook\'s entry',
        )
    return ok(name, listed([*[path for path, _ in hooks], *devices]))


def _hooks(document: dict[str, object], stage: str) -> Iterable[tuple[str, bool]]:
    """Yield the path of each GPU hook of a stage, and whether it has an environment."""
    hooks = document.get("hooks")
    entries = hooks.get(stage) if isinstance(hooks, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        path = entry.get("path") if isinstance(entry, dict) else None
        if isinstance(path, str) and path.rpartition("/")[2] in HOOKS:
            yield path, bool(entry.get("env"))


def _nvidia_devices(document: dict[str, object]) -> list[str]:
    linux = document.get("linux")
    devices = linux.get("devices") if isinstance(linux, dict) else None
    paths = [
        str(device.get("path"))
        for device in (devices if isinstance(devices, list) else [])
        if isinstance(device, dict)
    ]
    return [path for path in paths if path.startswith("/dev/nvidia")]
