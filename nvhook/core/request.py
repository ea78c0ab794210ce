"""What a container asks for: its environment and mounts, read by NVIDIA's rules.

Source: nvidia-container-stack reference, sections 1.2 and 4.3 and appendix G.
"""

from nvhook.core.catalog import CAPABILITIES, DEFAULT_CAPABILITIES
from nvhook.errors import RequestError
from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Protocol

    class Container(Protocol):
        """The part of config.json that a request is read from."""

        @property
        def env(self) -> dict[str, str]: ...
        @property
        def privileged(self) -> bool: ...
        @property
        def mounts(self) -> tuple[tuple[str, str], ...]: ...
        @property
        def annotations(self) -> dict[str, str]: ...

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
DEVICE_MOUNTS = "/var/run/nvidia-container-devices"
CDI_ANNOTATIONS = "cdi.k8s.io/"  # of the Container Device Interface, SPEC.md
# Kinds that mean nvhook's own GPUs, whoever wrote the specification for them.
_OWN_KINDS = frozenset(
    {"nvidia.com/gpu", "runtime.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu"}
)

# One variable can't be longer in a process's environment (MAX_ARG_STRLEN, Linux).
_MAX_VALUE = 128 << 10
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # Go's strconv.ParseBool

# Variable -> the capability of formats.mig.
_MIG_MANAGEMENT = {
    "NVIDIA_MIG_CONFIG_DEVICES": "config",
    "NVIDIA_MIG_MONITOR_DEVICES": "monitor",
}
REQUIRE = "NVIDIA_REQUIRE_"
DISABLE_REQUIRE = "NVIDIA_DISABLE_REQUIRE"
_JETPACK = "NVIDIA_REQUIRE_JETPACK"  # names files of a Jetson, requires nothing
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
IMEX_MOUNTS = "imex"
# Variable -> feature (core.features) that the value "enabled" gives.
_SWITCHES = {
    "NVIDIA_GDS": "gds",
    "NVIDIA_MOFED": "mofed",
    "NVIDIA_GDRCOPY": "gdrcopy",
    "NVIDIA_NVSWITCH": "nvswitch",
}


class Request(Record):
    """The devices and driver capabilities a container asks for.

    ``devices`` are ids as asked for, without duplicates, or ``("all",)``, or empty: driver files
    but no GPU. ``driver_capabilities`` is sorted. ``source`` says where the devices were asked for.
    ``cdi_devices`` are qualified names of other kinds, to be found in CDI specs; with nothing but
    those, ``needs_driver`` is false. ``manages_mig`` has ``config`` and ``monitor`` where the
    container may make MIG devices on its GPUs, or watch all of them. ``requirements`` are
    (variable, text) to be checked by core.requirements, ``features`` names of core.features,
    ``imex_channels`` numbers as asked for, or ``("all",)``.
    """

    __slots__ = (
        "cdi_devices",
        "devices",
        "driver_capabilities",
        "features",
        "imex_channels",
        "manages_mig",
        "needs_driver",
        "requirements",
        "source",
    )

    def __init__(
        self,
        devices: tuple[str, ...],
        driver_capabilities: tuple[str, ...],
        source: str,
        cdi_devices: tuple[str, ...] = (),
        needs_driver: bool = True,
        manages_mig: tuple[str, ...] = (),
        requirements: tuple[tuple[str, str], ...] = (),
        features: tuple[str, ...] = (),
        imex_channels: tuple[str, ...] = (),
    ) -> None:
        self.devices: Final = devices
        self.driver_capabilities: Final = driver_capabilities
        self.source: Final = source
        self.cdi_devices: Final = cdi_devices
        self.needs_driver: Final = needs_driver
        self.manages_mig: Final = manages_mig
        self.requirements: Final = requirements
        self.features: Final = features
        self.imex_channels: Final = imex_channels


def from_container(
    container: "Container", settings: "Settings", warnings: list[str] | None = None
) -> Request | None:
    """Return what a container asks for, None if it is not a GPU container.

    Lines an operator should find in the log are added to warnings.

    Raises: RequestError.
    """
    warnings = [] if warnings is None else warnings
    mounted = _mount_names(container.mounts, settings, warnings)
    asked, source = _from_annotations(container.annotations, settings), CDI_ANNOTATIONS
    if asked is None:
        asked, source = _from_mounts(mounted), DEVICE_MOUNTS
    if asked is None:
        asked, source = _from_environment(container.env, settings)
        if asked is None:
            return None
        if not _is_believed(container, settings):
            warnings.append(
                f"{source} is not accepted from an unprivileged container: it gets no GPU "
                "(accept-envvar-when-unprivileged is false)"
            )
            return None
        if DEVICE_MOUNTS in asked:
            raise _names_the_mounts(source, settings)
    own, others = _by_kind(asked)
    devices = parse_devices(",".join(own), source)
    if devices is None and not others:
        return None
    if devices is None and own:  # void among them
        return None
    return Request(
        devices or (),
        _capabilities(container.env, settings),
        source,
        others,
        needs_driver=devices is not None,
        manages_mig=_manages_mig(container),
        requirements=_requirements(container.env, settings),
        features=_features(container.env, warnings),
        imex_channels=_imex_channels(container, mounted, settings, warnings),
    )


def may_ask(container: "Container") -> bool:
    """Tell whether some configuration could make this a GPU container."""
    env = container.env
    if any(name.startswith(SWARM_PREFIX) for name in env):
        return True
    if any(key.startswith(CDI_ANNOTATIONS) for key in container.annotations):
        return True
    if any(DEVICE_MOUNTS in destination for _, destination in container.mounts):
        return True
    if VISIBLE_DEVICES in env:
        return parse_devices(env[VISIBLE_DEVICES]) is not None
    return _is_legacy_image(env)


def parse_devices(text: str, source: str = VISIBLE_DEVICES) -> tuple[str, ...] | None:
    """Return the ids of a device list: ``("all",)``, empty for none, None for void or no entry.

    Raises: RequestError.
    """
    items = tuple(dict.fromkeys(_items(text, source)))
    if not items or "void" in items:
        return None
    for item in items:
        if item == "all":
            return ALL
        if item == "none":
            return ()
    return items


def parse_capabilities(text: str, supported: tuple[str, ...] = CAPABILITIES) -> tuple[str, ...]:
    """Return the sorted driver capabilities of a list, the default ones if it has no entry.

    Raises: RequestError for one that does not exist or that the configuration does not allow.
    """
    items = _items(text, DRIVER_CAPABILITIES)
    if "all" in items:
        return tuple(sorted(supported))
    if not items:
        return tuple(sorted(set(DEFAULT_CAPABILITIES).intersection(supported)))
    for item in items:
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
    return tuple(sorted(set(items)))


def _items(text: str, source: str) -> list[str]:
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


def _from_annotations(annotations: dict[str, str], settings: "Settings") -> list[str] | None:
    """Return the qualified names of the CDI annotations."""
    if not settings.accept_cdi_annotations:
        return None
    asked = []
    for key, value in annotations.items():
        if key.startswith(CDI_ANNOTATIONS):
            for item in _items(value, f"annotation {key}"):
                if "=" not in item or "/" not in item.partition("=")[0]:
                    raise RequestError(
                        f"{item} in annotation {key} is no CDI device name",
                        "they look like nvidia.com/gpu=0",
                    )
                asked.append(item)
    return asked or None


def _mount_names(
    mounts: tuple[tuple[str, str], ...], settings: "Settings", warnings: list[str]
) -> list[str]:
    """Return the names on which a volume-mount list mounts /dev/null, where that is accepted."""
    names = []
    for source, destination in mounts:
        directory, slash, name = destination.rstrip("/").partition(DEVICE_MOUNTS + "/")
        if source == "/dev/null" and not directory and slash and name:
            names.append(name)
    if names and not settings.accept_volume_mounts:
        warnings.append(
            f"{len(names)} mounts below {DEVICE_MOUNTS} are not accepted as a request "
            "(accept-volume-mounts is false)"
        )
        return []
    return names


def _from_mounts(names: list[str]) -> list[str] | None:
    """Return the devices of a volume-mount list."""
    devices = []
    for name in names:
        kind, _, rest = name.partition("/")
        if kind == IMEX_MOUNTS:
            continue
        if kind == "cdi":
            vendor_class, _, device = rest.rpartition("/")
            devices.append(rest if "=" in rest else f"{vendor_class}={device}")
        else:
            devices.append(name)
    return devices or None


def _imex_channels(
    container: "Container", mounted: list[str], settings: "Settings", warnings: list[str]
) -> tuple[str, ...]:
    """Return the IMEX channels asked for: by mounts, or else by the variable, as for devices."""
    prefix = IMEX_MOUNTS + "/"
    asked = [name.removeprefix(prefix) for name in mounted if name.startswith(prefix)]
    if not asked:
        asked = _items(container.env.get(IMEX_CHANNELS, ""), IMEX_CHANNELS)
        if asked and not _is_believed(container, settings):
            warnings.append(
                f"{IMEX_CHANNELS} is not accepted from an unprivileged container: it gets no "
                "channel (accept-envvar-when-unprivileged is false)"
            )
            return ()
    return ALL if "all" in asked else tuple(dict.fromkeys(asked))


def _is_believed(container: "Container", settings: "Settings") -> bool:
    return container.privileged or settings.accept_envvar_when_unprivileged


def _from_environment(env: dict[str, str], settings: "Settings") -> tuple[list[str] | None, str]:
    """Return the device entries of the variables that count, and their names."""
    names = [name for name in settings.swarm_resource if name in env]
    if not names and VISIBLE_DEVICES in env:
        names = [VISIBLE_DEVICES]
    if not names:
        # Images older than NVIDIA_REQUIRE_CUDA mean all GPUs without saying so.
        return (["all"], "CUDA_VERSION") if _is_legacy_image(env) else (None, "")
    source = "+".join(names)
    asked = [item for name in names for item in _items(env[name], name)]
    return (asked if asked and "void" not in asked else None), source


def _is_legacy_image(env: dict[str, str]) -> bool:
    return bool(env.get("CUDA_VERSION")) and not env.get("NVIDIA_REQUIRE_CUDA")


def _capabilities(env: dict[str, str], settings: "Settings") -> tuple[str, ...]:
    supported = settings.supported_driver_capabilities
    if DRIVER_CAPABILITIES not in env and _is_legacy_image(env):
        return tuple(sorted(supported))
    return parse_capabilities(env.get(DRIVER_CAPABILITIES, ""), supported)


def _manages_mig(container: "Container") -> tuple[str, ...]:
    """Return what of MIG a container may manage."""
    found = []
    for name, capability in _MIG_MANAGEMENT.items():
        items = _items(container.env.get(name, ""), name)
        if not items:
            continue
        if any(item != "all" for item in items):
            raise RequestError(
                f"{name}={','.join(items)[:60]} is not possible", "it can only be all"
            )
        if not container.privileged:
            raise RequestError(
                f"{name} is for privileged containers only",
                f"give it CAP_SYS_ADMIN, or unset the variable: -e {name}=",
            )
        found.append(capability)
    return tuple(found)


def _features(env: dict[str, str], warnings: list[str]) -> tuple[str, ...]:
    for name in _SWITCHES:
        value = env.get(name, "")
        if value not in ("", "enabled", "disabled"):
            warnings.append(f"{name}={value[:40]} asks for nothing: only the value enabled does")
    return tuple([feature for name, feature in _SWITCHES.items() if env.get(name) == "enabled"])


def _requirements(env: dict[str, str], settings: "Settings") -> tuple[tuple[str, str], ...]:
    if settings.disable_require or env.get(DISABLE_REQUIRE) in _TRUE:
        return ()
    found = [
        (name, value)
        for name, value in env.items()
        if name.startswith(REQUIRE) and not name.startswith(_JETPACK) and value.strip()
    ]
    if _is_legacy_image(env):
        found.append(("CUDA_VERSION", _legacy_requirement(env["CUDA_VERSION"])))
    return tuple(found)


def _legacy_requirement(version: str) -> str:
    """Return what an image with CUDA 10.2.89 requires: cuda>=10.2."""
    fields = version.strip().removeprefix("v").split(".")[:2]
    if not all(field.isascii() and field.isdigit() and len(field) < 10 for field in fields):
        raise RequestError(
            f"requirement error: CUDA_VERSION={version[:60]} is no version",
            f"correct it, or start without the check: -e {DISABLE_REQUIRE}=1",
        )
    return f"cuda>={'.'.join(fields)}"


def _names_the_mounts(source: str, settings: "Settings") -> RequestError:
    if settings.accept_volume_mounts:
        return RequestError(
            f"{source} names {DEVICE_MOUNTS}, but nothing is mounted there",
            "mount /dev/null on a name below it for each device",
        )
    return RequestError(
        f"{source} names {DEVICE_MOUNTS}, which is not a device but a list of mounts",
        "set accept-volume-mounts = true in nvhook's configuration",
    )
