"""What few containers ask with, or for: loaded for those alone.

With annotations and mounts that name devices, and as images older than NVIDIA_REQUIRE_CUDA do; for
IMEX channels, for features beside GPUs, and to manage MIG.

Source: nvidia-container-stack reference, section 1.2.
"""

from __future__ import annotations

from nvhook.core.request import (
    ALL,
    CDI_ANNOTATIONS,
    DEVICE_MOUNTS,
    DISABLE_REQUIRE,
    IMEX_CHANNELS,
    MIG_MANAGEMENT,
    SWARM_PREFIX,
    SWITCHES,
    VISIBLE_DEVICES,
    has_lists,
    is_believed,
    is_legacy_image,
    items,
    parse_devices,
)
from nvhook.errors import RequestError
from nvhook.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvhook.core.request import Container, Request, Settings

IMEX_MOUNTS = "imex"


def from_lists(
    annotations: Mapping[str, str], mounted: list[str], settings: Settings
) -> tuple[list[str] | None, str]:
    """Return the devices that annotations name, or else mounts, and which of the two did.

    ``mounted`` is what mount_names returns. Raises: RequestError.
    """
    asked = _from_annotations(annotations, settings)
    if asked is not None:
        return asked, CDI_ANNOTATIONS
    return _from_mounts(mounted), DEVICE_MOUNTS


def with_the_rest(
    request: Request,
    container: Container,
    mounted: list[str],
    settings: Settings,
    warnings: list[str],
) -> Request:
    """Return a request with what the container asks for beside devices.

    Raises: RequestError.
    """
    return replace(
        request,
        manages_mig=_manages_mig(container),
        features=_features(container.env, warnings),
        imex_channels=_imex_channels(container, mounted, settings, warnings),
    )


def mount_names(
    mounts: tuple[tuple[str, str], ...], settings: Settings, warnings: list[str]
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


def _from_annotations(annotations: Mapping[str, str], settings: Settings) -> list[str] | None:
    """Return the qualified names of the CDI annotations."""
    if not settings.accept_cdi_annotations:
        return None
    asked = []
    for key, value in annotations.items():
        if key.startswith(CDI_ANNOTATIONS):
            for item in items(value, f"annotation {key}"):
                if "=" not in item or "/" not in item.partition("=")[0]:
                    raise RequestError(
                        f"{item} in annotation {key} is no CDI device name",
                        "they look like nvidia.com/gpu=0",
                    )
                asked.append(item)
    return asked or None


def _imex_channels(
    container: Container, mounted: list[str], settings: Settings, warnings: list[str]
) -> tuple[str, ...]:
    """Return the IMEX channels asked for: by mounts, or else by the variable, as for devices."""
    prefix = IMEX_MOUNTS + "/"
    asked = [name.removeprefix(prefix) for name in mounted if name.startswith(prefix)]
    if not asked:
        asked = items(container.env.get(IMEX_CHANNELS, ""), IMEX_CHANNELS)
        if asked and not is_believed(container, settings):
            warnings.append(
                f"{IMEX_CHANNELS} is not accepted from an unprivileged container: it gets no "
                "channel (accept-envvar-when-unprivileged is false)"
            )
            return ()
    return ALL if "all" in asked else tuple(dict.fromkeys(asked))


def _manages_mig(container: Container) -> tuple[str, ...]:
    """Return what of MIG a container may manage."""
    found = []
    for name, capability in MIG_MANAGEMENT.items():
        asked = items(container.env.get(name, ""), name)
        if not asked:
            continue
        if any(item != "all" for item in asked):
            raise RequestError(
                f"{name}={','.join(asked)[:60]} is not possible", "it can only be all"
            )
        if not container.privileged:
            raise RequestError(
                f"{name} is for privileged containers only",
                f"give it CAP_SYS_ADMIN, or unset the variable: -e {name}=",
            )
        found.append(capability)
    return tuple(found)


def _features(env: Mapping[str, str], warnings: list[str]) -> tuple[str, ...]:
    for name in SWITCHES:
        value = env.get(name, "")
        if value not in ("", "enabled", "disabled"):
            warnings.append(f"{name}={value[:40]} asks for nothing: only the value enabled does")
    return tuple([feature for name, feature in SWITCHES.items() if env.get(name) == "enabled"])


def legacy_requirement(version: str) -> str:
    """Return what an image with CUDA 10.2.89 requires: cuda>=10.2."""
    fields = version.strip().removeprefix("v").split(".")[:2]
    if not all(field.isascii() and field.isdigit() and len(field) < 10 for field in fields):
        raise RequestError(
            f"requirement error: CUDA_VERSION={version[:60]} is no version",
            f"correct it, or start without the check: -e {DISABLE_REQUIRE}=1",
        )
    return f"cuda>={'.'.join(fields)}"


def mounts_named(source: str, settings: Settings) -> RequestError:
    """Return why a variable with the directory of mounts for a device names none."""
    if settings.accept_volume_mounts:
        return RequestError(
            f"{source} names {DEVICE_MOUNTS}, but nothing is mounted there",
            "mount /dev/null on a name below it for each device",
        )
    return RequestError(
        f"{source} names {DEVICE_MOUNTS}, which is not a device but a list of mounts",
        "set accept-volume-mounts = true in nvhook's configuration",
    )


def may_ask(container: Container) -> bool:
    """Tell whether some configuration could make this a GPU container."""
    env = container.env
    if any(name.startswith(SWARM_PREFIX) for name in env):
        return True
    if has_lists(container):
        return True
    if VISIBLE_DEVICES in env:
        return parse_devices(env[VISIBLE_DEVICES]) is not None
    return is_legacy_image(env)
