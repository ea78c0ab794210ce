"""What a container gets that was given devices: the kubelet's question and our answer. Pure.

The answer is stored by the kubelet and used again when the container restarts, so nothing in it
may be of the moment. Source: kubernetes reference, sections 1.2 (11) and 2.3.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from nvhook.core.catalog import CONTROL_NODES
from nvhook.core.cdi_render import device_names
from nvhook.core.features import GDRCOPY, GDS, IMEX, MOFED, Feature
from nvhook.core.inventory import Device
from nvhook.core.mig_plans import node_names
from nvhook.core.rare_requests import IMEX_MOUNTS
from nvhook.core.request import DEVICE_MOUNTS, IMEX_CHANNELS, VISIBLE_DEVICES
from nvhook.errors import HostError, RequestError
from nvhook.kubelet.resources import REPLICA, Resource
from nvhook.kubelet.selectors import index_of
from nvhook.kubelet.settings import Settings

CDI_VENDOR = "k8s.device-plugin.nvidia.com"
ANNOTATION = "nvidia-device-plugin"
MPS_IN_CONTAINER = "/mps"


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount; ``host_path`` is the host's."""

    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device node to make, with its device rule: permissions are some of ``rwm``."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the kubelet hands on to the runtime for one container."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What an answer needs to know of the host.

    ``dev_root`` is the host's own directory of device nodes, ``nodes`` those that exist, by their
    names below it: ``nvidiactl``, ``nvidia-caps-imex-channels/channel0``.
    """

    dev_root: str = "/dev"
    nodes: frozenset[str] = frozenset()


def allocate(
    resource: Resource, ids: tuple[str, ...], settings: Settings, host: HostFacts
) -> Answer:
    """Return the answer for one container that was given these ids of a resource.

    Raises: RequestError for an unknown id, or more replicas than one where that is forbidden;
        HostError for an IMEX channel that is required and missing.
    """
    if resource.one_only and len(ids) > 1 and any(REPLICA in each for each in ids):
        raise RequestError(
            f"{len(ids)} of {resource.name}: the maximum request size for shared resources is 1",
            "more replicas give no more of the GPU",
        )
    devices = resource.devices_of(ids)
    channels = imex_channels(settings, host)
    envs = _feature_variables(settings)
    mounts: list[Mount] = []
    strategies = settings.list_strategies
    # Of both, the mounts count: a container can't make them itself.
    if "volume-mounts" in strategies:
        envs[VISIBLE_DEVICES] = DEVICE_MOUNTS
        mounts += _mounted(devices, channels, settings)
    elif "envvar" in strategies:
        envs[VISIBLE_DEVICES] = ",".join(_name(device, settings) for device in devices)
        if channels:
            envs[IMEX_CHANNELS] = ",".join(map(str, channels))
    nodes: tuple[DeviceSpec, ...] = ()
    if settings.pass_device_specs and ("volume-mounts" in strategies or "envvar" in strategies):
        nodes = _device_specs(devices, channels, host)
    names: tuple[str, ...] = ()
    if "cdi-annotations" in strategies or "cdi-cri" in strategies:
        names = _cdi_names(devices, channels, settings)
    annotations = {}
    if "cdi-annotations" in strategies:
        key = f"{settings.cdi_annotation_prefix}{ANNOTATION}_{_digest(resource.name, ids)}"
        annotations[key] = ",".join(names)
    if resource.sharing == "mps" and any(device in resource.shared for device in devices):
        pipe = f"{MPS_IN_CONTAINER}/{resource.name}/pipe"
        envs["CUDA_MPS_PIPE_DIRECTORY"] = pipe
        mounts.append(Mount(pipe, mps_pipe_directory(settings.mps_root, resource.name), False))
        mounts.append(Mount("/dev/shm", mps_shm_directory(settings.mps_root), False))  # noqa: S108
    return Answer(envs, tuple(mounts), nodes, annotations, names if "cdi-cri" in strategies else ())


def imex_channels(settings: Settings, host: HostFacts) -> tuple[int, ...]:
    """Return the IMEX channels that containers get: those configured that exist.

    Raises: HostError for a missing one, where they are required.
    """
    for channel in settings.imex_channels:
        if settings.imex_required and _channel_node(channel) not in host.nodes:
            raise HostError(f"IMEX channel {channel} does not exist on this host", IMEX.remedy)
    return tuple(each for each in settings.imex_channels if _channel_node(each) in host.nodes)


def mps_pipe_directory(mps_root: str, resource_name: str) -> str:
    """Return where a resource's MPS daemon has its pipes."""
    return f"{mps_root.rstrip('/')}/{resource_name}/pipe"


def mps_shm_directory(mps_root: str) -> str:
    """Return the directory that MPS daemons and their clients have for /dev/shm."""
    return f"{mps_root.rstrip('/')}/shm"


def features(settings: Settings) -> tuple[Feature, ...]:
    """Return what containers get beside their devices."""
    chosen = ((settings.gdrcopy, GDRCOPY), (settings.gds, GDS), (settings.mofed, MOFED))
    return tuple(feature for wanted, feature in chosen if wanted)


def _feature_variables(settings: Settings) -> dict[str, str]:
    return {f"NVIDIA_{feature.name.upper()}": "enabled" for feature in features(settings)}


def _name(device: Device, settings: Settings) -> str:
    return index_of(device) if settings.id_strategy == "index" else device.uuid


def _mounted(
    devices: tuple[Device, ...], channels: tuple[int, ...], settings: Settings
) -> list[Mount]:
    names = [_name(device, settings) for device in devices]
    names += [f"{IMEX_MOUNTS}/{channel}" for channel in channels]
    return [Mount(f"{DEVICE_MOUNTS}/{name}", "/dev/null") for name in names]


def _device_specs(
    devices: tuple[Device, ...], channels: tuple[int, ...], host: HostFacts
) -> tuple[DeviceSpec, ...]:
    names = [name for name in CONTROL_NODES if name in host.nodes]
    names += [name for device in devices for name in node_names(device)]
    names += map(_channel_node, channels)
    directory = host.dev_root.rstrip("/")
    return tuple(DeviceSpec(f"/dev/{name}", f"{directory}/{name}") for name in dict.fromkeys(names))


def _cdi_names(
    devices: tuple[Device, ...], channels: tuple[int, ...], settings: Settings
) -> tuple[str, ...]:
    order = ("index", "uuid") if settings.id_strategy == "index" else ("uuid", "index")
    names = [("gpu", device_names(device, order)[0]) for device in devices]
    names += [(IMEX.device_class, str(channel)) for channel in channels]
    names += [(feature.device_class, "all") for feature in features(settings)]
    return tuple(f"{CDI_VENDOR}/{device_class}={name}" for device_class, name in names)


def _channel_node(channel: int) -> str:
    return f"nvidia-caps-imex-channels/channel{channel}"


def _digest(resource_name: str, ids: tuple[str, ...]) -> str:
    text = "\n".join((resource_name, *sorted(ids)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
