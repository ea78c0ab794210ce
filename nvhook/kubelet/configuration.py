"""Flags, variables and the file -> Settings, checked. The first of these that says so counts."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

from nvhook.errors import ConfigError
from nvhook.kubelet import config_file
from nvhook.kubelet.config_file import Loaded
from nvhook.kubelet.options import option_of
from nvhook.kubelet.settings import (
    APPLICATION_XIDS,
    LABEL_OPTIONS,
    OPTIONS,
    LabelSettings,
    Settings,
)
from nvhook.settings import Setting

# All numbers that NVIDIA's list of Xids has, and room.
ALL_XIDS = frozenset(range(1024))
DISABLE, ENABLE = "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"
# Where manifests mount the driver root of the host.
IN_CONTAINER = "/driver-root"
_NVIDIAS_HOOKS = ("nvidia-ctk", "nvidia-cdi-hook")


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says: flag -> text, and where the file is; ``own`` is nvhook's own."""

    flags: Mapping[str, str]
    config_file: str = ""
    config_name: str = ""
    own: str = ""


def read(
    given: Given,
    environment: Mapping[str, str],
    is_directory: Callable[[str], bool] = os.path.isdir,
) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings, and a line for each thing that is said in vain.

    Where nobody says anything of the driver's place, ``driver_root_here`` is empty: nvhook's own
    configuration has it.

    Raises: ConfigError.
    """
    loaded = _loaded(given)
    warnings = [*loaded.warnings]
    values = _values(Settings, OPTIONS, given, environment, loaded)
    values["ignored_xids"] = ignored_xids(environment, warnings)
    settings = _complete(Settings(**values), values, is_directory, warnings)  # type: ignore[arg-type]
    # A container's file is none of the host's, where the hook runs.
    if given.own and settings.driver_root_here in {"", settings.driver_root}:
        settings = replace(settings, hook_config=given.own)
    check(settings)
    return settings, tuple(warnings)


def read_labels(given: Given, environment: Mapping[str, str]) -> LabelSettings:
    """Return the settings of node-labels; what they are of, ``read`` tells.

    Raises: ConfigError.
    """
    values = _values(LabelSettings, LABEL_OPTIONS, given, environment, _loaded(given))
    return LabelSettings(**values)  # type: ignore[arg-type]


def _loaded(given: Given) -> Loaded:
    return config_file.load(given.config_file, given.config_name) if given.config_file else Loaded()


def _values(
    kind: type[Settings] | type[LabelSettings],
    options: Iterable[Setting],
    given: Given,
    environment: Mapping[str, str],
    loaded: Loaded,
) -> dict[str, object]:
    """Return what is said of this kind of settings, by field."""
    known = {each.name for each in fields(kind)}
    values = {name: value for name, value in loaded.values.items() if name in known}
    for option in options:
        said = said_of(option, given.flags, environment)
        if said is not None:
            where, text = said
            value = option.kind.of_text(text)
            if value is None:
                raise ConfigError(f"{where} must be {option.kind.wanted}, not {text!r}")
            values |= {option.attribute: value} if option.attribute else {}
    return values


def said_of(
    option: Setting, flags: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, str] | None:
    """Return (where, text) of an option on the command line, or else in the environment."""
    for name in option.flags:
        if name in flags:
            return name, flags[name]
    # Manifests set variables to nothing to leave them out.
    for name in option.variables:
        if environment.get(name):
            return name, environment[name]
    return None


def ignored_xids(environment: Mapping[str, str], warnings: list[str]) -> frozenset[int] | None:
    """Return the Xids that say nothing of a GPU's health; None: none is listened to.

    Source: kubernetes reference, section 2.7.
    """
    disabled, without = _xids(DISABLE, environment, ("all", "xids"), warnings)
    enabled, everything = _xids(ENABLE, environment, ("all",), warnings)
    if without and not (enabled or everything):
        return None
    ignored = ALL_XIDS if without else APPLICATION_XIDS | disabled
    return frozenset() if everything else ignored - enabled


def _xids(
    variable: str, environment: Mapping[str, str], words: tuple[str, ...], warnings: list[str]
) -> tuple[frozenset[int], bool]:
    """Return the numbers that a variable lists, and whether it has one of the words."""
    items = [item.strip().lower() for item in environment.get(variable, "").split(",")]
    numbers = [item for item in items if item.isascii() and item.isdigit() and len(item) < 6]
    warnings += [
        f"{variable}: {item!r} is no Xid"
        for item in items
        if item and item not in words and item not in numbers
    ]
    return frozenset(map(int, numbers)), any(item in words for item in items)


def _complete(
    settings: Settings,
    values: Mapping[str, object],
    is_directory: Callable[[str], bool],
    warnings: list[str],
) -> Settings:
    """Return settings with what follows from them where nobody said it."""
    if settings.cdi_hook_path.rpartition("/")[2] in _NVIDIAS_HOOKS:
        warnings.append(f"{settings.cdi_hook_path} is not used: nvhook's specs call nvhook's hook")
        settings = replace(settings, cdi_hook_path="")
    if not settings.driver_root_here:
        seen = IN_CONTAINER if is_directory(IN_CONTAINER) else values.get("driver_root", "")
        settings = replace(settings, driver_root_here=str(seen))
    return settings


def check(settings: Settings) -> None:
    """Check what no single option can tell.

    Raises: ConfigError.
    """
    shared = settings.sharing
    if shared is None or shared.method != "mps":
        return
    if settings.mig_strategy == "mixed":
        raise ConfigError(
            "MPS does not go with MIG strategy mixed", "use timeSlicing, or migStrategy: none"
        )
    if not settings.mps_root:
        option = option_of("mps_root", OPTIONS)
        raise ConfigError(
            "MPS needs a directory on the host for its daemons",
            f"{option.flags[0]}, {option.variables[0]} or {option.key}: /run/nvidia/mps",
        )
