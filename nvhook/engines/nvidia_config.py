"""NVIDIA's own configuration, /etc/nvidia-container-runtime/config.toml, as nvhook's settings.

Source: nvidia-container-stack reference, section 1.4.
"""

from __future__ import annotations

import sys

from nvhook.errors import ConfigError
from nvhook.settings import FLAG_SHAPE, TEXT_SHAPE, shaped, words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATH = "/etc/nvidia-container-runtime/config.toml"
_CLI, _RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"

# NVIDIA's key -> nvhook's, and the value's shape; comma is a text that is a list, opposite a flag.
_SAME: dict[str, tuple[str, str]] = {
    "disable-require": ("disable-require", "flag"),
    "accept-nvidia-visible-devices-envvar-when-unprivileged": (
        "accept-envvar-when-unprivileged",
        "flag",
    ),
    "accept-nvidia-visible-devices-as-volume-mounts": ("accept-volume-mounts", "flag"),
    "swarm-resource": ("swarm-resource", "comma"),
    "supported-driver-capabilities": ("supported-driver-capabilities", "comma"),
    f"{_CLI}.root": ("driver-root", "text"),
    f"{_CLI}.debug": ("log-path", "text"),
    f"{_CLI}.no-cgroups": ("device-rules", "opposite"),
    f"{_RUNTIME}.debug": ("log-path", "text"),
    f"{_RUNTIME}.log-level": ("log-level", "text"),
    f"{_RUNTIME}.runtimes": ("handler.runtimes", "list"),
    f"{_RUNTIME}.modes.cdi.spec-dirs": ("cdi-spec-directories", "list"),
    "features.disable-cuda-compat-lib-hook": ("cuda-forward-compatibility", "opposite"),
}
# Values that mean nothing to nvhook, by NVIDIA's key: they are the same as the default.
_NOTHING = {f"{_CLI}.debug": "/dev/null", f"{_RUNTIME}.debug": "/dev/null"}
# Keys without an equivalent that change nothing either.
_NOT_NEEDED = {
    f"{_CLI}.path": "nvhook calls no other program",
    f"{_CLI}.ldcache": "it is looked for below driver-root",
    f"{_CLI}.ldconfig": "nvhook writes the loader cache itself",
    f"{_CLI}.load-kmods": "nvhook loads no kernel modules: nvidia-modprobe does at boot",
    f"{_CLI}.no-pivot": "nvhook does not pivot",
    f"{_CLI}.user": "nvhook drops its rights in another way",
    f"{_CLI}.environment": "nvhook's environment is fixed",
    "nvidia-container-runtime-hook.path": "nvhook's hook is found by itself",
    "nvidia-container-runtime-hook.skip-mode-detection": "nvhook has one mode",
    "nvidia-ctk.path": "nvhook calls no other program",
    f"{_RUNTIME}.modes.cdi.default-kind": "nvidia.com/gpu, as nvhook has it",
    f"{_RUNTIME}.modes.cdi.annotation-prefixes": "cdi.k8s.io/, see accept-cdi-annotations",
    f"{_RUNTIME}.modes.csv.mount-spec-path": "nvhook reads the usual place",
}
_COMPAT_MODE = f"{_RUNTIME}.modes.legacy.cuda-compat-mode"
_MODE = f"{_RUNTIME}.mode"
_LEVELS = {"trace": "debug", "warn": "warning", "fatal": "error", "panic": "error"}
_SWARM_PREFIX = "DOCKER_RESOURCE"


def translate(text: str, name: str) -> tuple[dict[str, object], list[str]]:
    """Return nvhook's settings by key, and a line about each key without an equivalent.

    name is the file's, for errors.

    Raises: ConfigError for a text that is not TOML, or a value of the wrong type.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is not TOML: {error}", "give NVIDIA's config.toml") from None
    values: dict[str, object] = {}
    notes: list[str] = []
    for key, value in _flat(document).items():
        if key in _SAME:
            _take(key, value, name, values, notes)
        elif key == _COMPAT_MODE:
            _take_compat_mode(value, values, notes)
        elif key == _MODE and value in ("auto", "legacy", "jit-cdi", "cdi", "csv"):
            notes.append(f"{key}: not needed, nvhook sees what machine this is")
        elif key in _NOT_NEEDED:
            notes.append(f"{key}: not needed, {_NOT_NEEDED[key]}")
        else:
            notes.append(f"{key} = {str(value)[:40]!r}: no equivalent, left out")
    return values, notes


def _flat(document: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _take(key: str, value: object, name: str, values: dict[str, object], notes: list[str]) -> None:
    setting, kind = _SAME[key]
    converted = _convert(kind, value)
    if converted is None:
        raise ConfigError(f"{name}: {key} has a value of the wrong type: {str(value)[:40]!r}")
    if converted in ("", [], _NOTHING.get(key)):
        return
    if key == "swarm-resource" and isinstance(converted, list):
        others = [each for each in converted if not each.startswith(_SWARM_PREFIX)]
        converted = [each for each in converted if each.startswith(_SWARM_PREFIX)]
        notes += [f"{key}: {each[:40]} left out, no {_SWARM_PREFIX}..." for each in others]
        if not converted:
            return
    if setting == "log-level":
        converted = _LEVELS.get(str(converted), converted)
    # NVIDIA's hook and runtime have a log each, nvhook one for both; the same for two flags.
    if setting in values and values[setting] != converted:
        notes.append(f"{key}: {setting} is set by this key, the one before it is left out")
    values[setting] = converted


def _take_compat_mode(value: object, values: dict[str, object], notes: list[str]) -> None:
    if value == "disabled":
        values["cuda-forward-compatibility"] = False
    elif value not in ("ldconfig", "hook"):
        notes.append(
            f"{_COMPAT_MODE} = {str(value)[:40]!r}: no equivalent, nvhook mounts nothing of an "
            "image; its loader cache names the libraries"
        )


def _convert(kind: str, value: object) -> bool | str | list[str] | None:
    shape = {"opposite": FLAG_SHAPE, "comma": TEXT_SHAPE}.get(kind, kind)
    plain = shaped(shape, value)
    if kind == "opposite" and plain is not None:
        return not plain
    if kind == "comma" and isinstance(plain, str):
        return words(plain)
    return [*plain] if isinstance(plain, tuple) else plain
