"""What a container asks for: its environment and mounts, read by NVIDIA's rules.

Source: nvidia-container-stack reference, sections 1.2 and 4.3 and appendix G.
"""

from __future__ import annotations

from nvhook.core.catalog import CAPABILITIES, DEFAULT_CAPABILITIES
from nvhook.errors import RequestError
from nvhook.formats.oci import OBSERVED_ANNOTATIONS, OBSERVED_MOUNTS
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Container(Protocol):
        """The part of config.json that a request is read from."""

        @property
        def env(self) -> Mapping[str, str]: ...
        @property
        def privileged(self) -> bool: ...
        @property
        def mounts(self) -> tuple[tuple[str, str], ...]: ...
        @property
        def annotations(self) -> Mapping[str, str]: ...

    class Settings(Protocol):
        """The settings that decide what a container may ask for."""

        @property
        def accept_envvar_when_unprivileged(self) -> bool: ...
        @property
        def accept_volume_mounts(self) -> bool: ...
        @property
        def accept_cdi_annotations(self) -> bool: ...
        @property
        def supported_driver_capabilities(self) -> tuple[str, ...]: ...
        @property
        def swarm_resource(self) -> tuple[str, ...]: ...
        @property
        def disable_require(self) -> bool: ...


ALL = ("all",)
REQUEST_PREFIX = "NVIDIA_"  # of all variables below that are not an engine's
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
SWARM_PREFIX = "DOCKER_RESOURCE"  # Docker Swarm names its variables DOCKER_RESOURCE_<KIND>
DEVICE_MOUNTS = OBSERVED_MOUNTS
CDI_ANNOTATIONS = OBSERVED_ANNOTATIONS  # of the Container Device Interface, SPEC.md
# Kinds that mean nvhook's own GPUs, whoever wrote the specification for them.
_OWN_KINDS = frozenset(
    {"nvidia.com/gpu", "runtime.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu"}
)

# One variable can't be longer in a process's environment (MAX_ARG_STRLEN, Linux).
_MAX_VALUE = 128 << 10
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # Go's strconv.ParseBool

REQUIRE = "NVIDIA_REQUIRE_"
DISABLE_REQUIRE = "NVIDIA_DISABLE_REQUIRE"
JETPACK = "NVIDIA_REQUIRE_JETPACK"  # names files of a Jetson, requires nothing
EVERY_CSV = "csv-mounts=all"  # value of JETPACK: what all the Jetson's lists name
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
# Variable -> feature (core.features) that the value "enabled" gives.
SWITCHES = {
    "NVIDIA_GDS": "gds",
    "NVIDIA_MOFED": "mofed",
    "NVIDIA_GDRCOPY": "gdrcopy",
    "NVIDIA_NVSWITCH": "nvswitch",
}
# Variable -> the capability of formats.mig_capabilities.
MIG_MANAGEMENT = {
    "NVIDIA_MIG_CONFIG_DEVICES": "config",
    "NVIDIA_MIG_MONITOR_DEVICES": "monitor",
}
_RARE = frozenset((*SWITCHES, *MIG_MANAGEMENT, IMEX_CHANNELS))


@record
class Request:
    """The devices and driver capabilities a container asks for.

    ``devices`` are ids as asked for, without duplicates, or ``("all",)``, or empty: driver files
    but no GPU. ``driver_capabilities`` is sorted. ``source`` says where the devices were asked for.
    ``cdi_devices`` are qualified names of other kinds, to be found in CDI specs; with nothing but
    those, ``needs_driver`` is false. ``manages_mig`` has ``config`` and ``monitor`` where the
    container may make MIG devices on its GPUs, or watch all of them. ``requirements`` are
    (variable, text) to be checked by core.requirements, ``features`` names of core.features,
    ``imex_channels`` numbers as asked for, or ``("all",)``. ``every_csv``: on a Jetson, all that
    its lists name.
    """

    devices: tuple[str, ...]
    driver_capabilities: tuple[str, ...]
    source: str
    cdi_devices: tuple[str, ...] = ()
    needs_driver: bool = True
    manages_mig: tuple[str, ...] = ()
    requirements: tuple[tuple[str, str], ...] = ()
    features: tuple[str, ...] = ()
    imex_channels: tuple[str, ...] = ()
    every_csv: bool = False


def from_container(
    container: Container, settings: Settings, warnings: list[str] | None = None
) -> Request | None:
    """Return what a container asks for, None if it is not a GPU container.

    Lines an operator should find in the log are added to warnings.

    Raises: RequestError.
    """
    warnings = [] if warnings is None else warnings
    asked, source = None, ""
    mounted: list[str] = []
    is_rare = has_lists(container) or not _RARE.isdisjoint(container.env)
    if is_rare:
        from nvhook.core import rare_requests  # most containers ask with variables, and for GPUs

        mounted = rare_requests.mount_names(container.mounts, settings, warnings)
        asked, source = rare_requests.from_lists(container.annotations, mounted, settings)
    if asked is None:
        asked, source = _from_variables(container, settings, warnings)
        if asked is None:
            return None
    own, others = _by_kind(asked)
    devices = parse_devices(",".join(own), source)
    if devices is None and (own or not others):  # void among them, or nothing at all
        return None
    request = Request(
        devices or (),
        _capabilities(container.env, settings),
        source,
        others,
        needs_driver=devices is not None,
        requirements=_requirements(container.env, settings),
        every_csv=container.env.get(JETPACK) == EVERY_CSV,
    )
    if not is_rare:
        return request
    from nvhook.core import rare_requests

    return rare_requests.with_the_rest(request, container, mounted, settings, warnings)


def has_lists(container: Container) -> bool:
    """Tell whether annotations or mounts may name devices."""
    return any(key.startswith(CDI_ANNOTATIONS) for key in container.annotations) or any(
        DEVICE_MOUNTS in destination for _, destination in container.mounts
    )


def parse_devices(text: str, source: str = VISIBLE_DEVICES) -> tuple[str, ...] | None:
    """Return the ids of a device list: ``("all",)``, empty for none, None for void or no entry.

    Raises: RequestError.
    """
    found = tuple(dict.fromkeys(items(text, source)))
    if not found or "void" in found:
        return None
    for item in found:
        if item == "all":
            return ALL
        if item == "none":
            return ()
    return found


def parse_capabilities(text: str, supported: tuple[str, ...] = CAPABILITIES) -> tuple[str, ...]:
    """Return the sorted driver capabilities of a list, the default ones if it has no entry.

    Raises: RequestError for one that does not exist or that the configuration does not allow.
    """
    found = items(text, DRIVER_CAPABILITIES)
    if "all" in found:
        return tuple(sorted(supported))
    if not found:
        return tuple(sorted(set(DEFAULT_CAPABILITIES).intersection(supported)))
    for item in found:
        if item not in CAPABILITIES:
            raise RequestError(
                f"unknown driver capability {item} in {DRIVER_CAPABILITIES}",
                f"known are all, {', '.join(CAPABILITIES)}",
            )
        if item not in supported:
            raise RequestError(
                f"driver capability {item} is not allowed on this host",
                f"supported-driver-capabilities lists {', '.join(sorted(supported)) or 'none'}",
            )
    return tuple(sorted(set(found)))


def items(text: str, source: str) -> list[str]:
    """Return the entries of a list that are not empty.

    Raises: RequestError for a list longer than an environment can have.
    """
    if len(text) > _MAX_VALUE:
        raise RequestError(f"{source} is longer than {_MAX_VALUE} characters")
    return [item for part in text.split(",") if (item := part.strip())]


def _by_kind(asked: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the ids of nvhook's own GPUs, and the qualified names of other kinds, each once."""
    own = []
    others: dict[str, None] = {}
    for item in asked:
        kind, equals, name = item.partition("=")
        if not equals or "/" not in kind:
            own.append(item)
        elif kind in _OWN_KINDS:
            own.append(name)
        else:
            others[item] = None
    return own, tuple(others)


def is_believed(container: Container, settings: Settings) -> bool:
    """Tell whether a container's variables count."""
    return container.privileged or settings.accept_envvar_when_unprivileged


def _from_variables(
    container: Container, settings: Settings, warnings: list[str]
) -> tuple[list[str] | None, str]:
    """Return the devices that variables name, None where they name none or are not believed."""
    asked, source = _from_environment(container.env, settings)
    if asked is None:
        return None, source
    if not is_believed(container, settings):
        warnings.append(
            f"{source} is not accepted from an unprivileged container: it gets no GPU "
            "(accept-envvar-when-unprivileged is false)"
        )
        return None, source
    if DEVICE_MOUNTS in asked:
        from nvhook.core.rare_requests import mounts_named

        raise mounts_named(source, settings)
    return asked, source


def _from_environment(env: Mapping[str, str], settings: Settings) -> tuple[list[str] | None, str]:
    """Return the device entries of the variables that count, and their names."""
    names = [name for name in settings.swarm_resource if name in env]
    if not names and VISIBLE_DEVICES in env:
        names = [VISIBLE_DEVICES]
    if not names:
        # Images older than NVIDIA_REQUIRE_CUDA mean all GPUs without saying so.
        return (["all"], "CUDA_VERSION") if is_legacy_image(env) else (None, "")
    source = "+".join(names)
    asked = [item for name in names for item in items(env[name], name)]
    return (asked if asked and "void" not in asked else None), source


def is_legacy_image(env: Mapping[str, str]) -> bool:
    return bool(env.get("CUDA_VERSION")) and not env.get("NVIDIA_REQUIRE_CUDA")


def _capabilities(env: Mapping[str, str], settings: Settings) -> tuple[str, ...]:
    supported = settings.supported_driver_capabilities
    if DRIVER_CAPABILITIES not in env and is_legacy_image(env):
        return tuple(sorted(supported))
    return parse_capabilities(env.get(DRIVER_CAPABILITIES, ""), supported)


def _requirements(env: Mapping[str, str], settings: Settings) -> tuple[tuple[str, str], ...]:
    if settings.disable_require or env.get(DISABLE_REQUIRE) in _TRUE:
        return ()
    found = [
        (name, value)
        for name, value in env.items()
        if name.startswith(REQUIRE) and not name.startswith(JETPACK) and value.strip()
    ]
    if is_legacy_image(env):
        from nvhook.core.rare_requests import legacy_requirement

        found.append(("CUDA_VERSION", legacy_requirement(env["CUDA_VERSION"])))
    return tuple(found)
