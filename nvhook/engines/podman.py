"""podman: a hook file that CRI-O reads as well, or a runtime in containers.conf.d."""

import json
from collections.abc import Sequence

from nvhook.engines import json_edit, toml_edit
from nvhook.engines.registration import Registration
from nvhook.engines.toml_edit import Assignment
from nvhook.errors import ConfigError

HOOK_DIRECTORIES = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
HOOK_FILE = f"{HOOK_DIRECTORIES[0]}/oci-nvhook.json"
RUNTIME_FILE = "/etc/containers/containers.conf.d/99-nvhook.conf"
CDI_FILE = "/etc/cdi/nvidia.yaml"

_NVIDIA_HOOKS = {
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-container-hook",
}
_RUNTIME = ("engine", "runtime")


def hook_text(launcher: str) -> str:
    """Return the hook file for the launcher at this path."""
    return f"""{{
  "version": "1.0.0",
  "hook": {{
    "path": {json.dumps(launcher)},
    "args": ["nvhook", "hook", "prestart"],
    "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
  }},
  "when": {{
    "always": true
  }},
  "stages": ["prestart"]
}}
"""


def register_hook(text: str | None, launcher: str, file: str) -> str:
    """Return the hook file; one that nvhook wrote for another launcher is replaced.

    Raises: ConfigError, also for a file that nvhook did not write.
    """
    if text is not None:
        unregister_hook(text, file)
    return hook_text(launcher)


def unregister_hook(text: str, file: str) -> None:
    """Return None, for a file that goes as a whole.

    Raises: ConfigError for a file that is not as nvhook writes it.
    """
    path = _hook_path(text, file)
    if path is None or _program(text, file) != "nvhook" or text != hook_text(path):
        raise ConfigError(
            f"{file} is not as nvhook writes it", "remove it yourself, or name another --file"
        )


def hook_conflicts(others: Sequence[tuple[str, str]]) -> list[str]:
    """Return which other hook files, (name, text), would inject GPUs a second time."""
    found = []
    for other, text in others:
        try:
            program = _program(text, other)
        except ConfigError as error:
            found.append(str(error))
            continue
        if program in _NVIDIA_HOOKS:
            found.append(f"{other} calls {program}, which injects GPUs, too: remove it")
        elif program == "nvhook":
            found.append(f"{other} calls nvhook, too: remove one of the two")
    return found


def register_runtime(text: str | None, wanted: Registration, file: str) -> str:
    """Return the drop-in of containers.conf with the runtime.

    One path only: podman takes the first that exists, so that with runc behind it a missing
    nvhook-runtime would go unnoticed.

    Raises: ConfigError.
    """
    earlier = toml_edit.parse(text or "", file)
    base = None if text is None else toml_edit.unregister(text)
    assignments: list[Assignment] = []
    if wanted.set_as_default or toml_edit.lookup(earlier, _RUNTIME) == wanted.runtime_name:
        assignments.append((_RUNTIME, wanted.runtime_name))
    assignments.append((("engine", "runtimes", wanted.runtime_name), [wanted.runtime_path]))
    return toml_edit.assign(base, assignments, file)


def unregister_runtime(text: str, file: str) -> str | None:
    """Return the text from before, None for a file that was not there; the same text if nothing is.

    Raises: ConfigError.
    """
    toml_edit.parse(text, file)
    return toml_edit.unregister(text)


def _program(text: str, file: str) -> str | None:
    path = _hook_path(text, file)
    return None if path is None else path.rpartition("/")[2]


def _hook_path(text: str, file: str) -> str | None:
    """Return the program of a hook file of schema 1.0.0, or 0.1.0, where "hook" is the path."""
    document = json_edit.parse(text, file)
    hook = document.get("hook") if isinstance(document, dict) else None
    path = hook.get("path") if isinstance(hook, dict) else hook
    return path if isinstance(path, str) else None
