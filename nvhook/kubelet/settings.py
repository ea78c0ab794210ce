"""What the device plugin is told to do: the value of every flag and key of its file.

Names and meaning of the file's keys are NVIDIA's. Source: kubernetes reference, section 2.1.
"""

from dataclasses import dataclass, field
from typing import Literal

MigStrategy = Literal["none", "single", "mixed"]
ListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
IdStrategy = Literal["uuid", "index"]
SharingMethod = Literal["time-slicing", "mps"]
SharedPolicy = Literal["distributed", "packed"]
DeviceSelector = Literal["all"] | int | tuple[str, ...]

# Errors of the program, not of the GPU. Source: kubernetes reference, section 2.7.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


@dataclass(frozen=True, slots=True)
class SharedResource:
    """A resource that is handed out more than once.

    ``name`` is the full name before sharing (``nvidia.com/gpu``), ``rename`` the full name
    afterwards, empty for the usual one. ``devices``: ``all``, how many (the first ones), or a list
    of indices, UUIDs, PCI bus ids and model patterns.
    """

    name: str
    replicas: int
    rename: str = ""
    devices: DeviceSelector = "all"


@dataclass(frozen=True, slots=True)
class Sharing:
    """How GPUs are shared, and which."""

    method: SharingMethod
    resources: tuple[SharedResource, ...]
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool = False


@dataclass(frozen=True, slots=True)
class NameRule:
    """A resource name for the models, or MIG profiles, that match a shell pattern."""

    pattern: str
    name: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting.

    Paths ``driver_root``, ``dev_root``, ``mps_root``, ``cdi_hook_path`` and ``hook_config``
    (nvhook's own file, for that hook) are the host's, as the kubelet's answers and CDI specs name
    them; ``driver_root_here`` is where the plugin itself sees the driver root (in a container:
    /driver-root; empty: as nvhook's own file says). ``include`` and ``exclude`` select devices by
    index, UUID, PCI bus id or model pattern. ``ignored_xids`` is None where Xids are not watched.
    """

    mig_strategy: MigStrategy = "none"
    fail_on_init_error: bool = True
    driver_root: str = "/"
    driver_root_here: str = ""
    dev_root: str = ""
    list_strategies: tuple[ListStrategy, ...] = ("envvar",)
    id_strategy: IdStrategy = "uuid"
    pass_device_specs: bool = False
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    cdi_hook_path: str = ""
    hook_config: str = ""
    mps_root: str = ""
    shared_policy: SharedPolicy = "distributed"
    sharing: Sharing | None = None
    gpu_names: tuple[NameRule, ...] = ()
    mig_names: tuple[NameRule, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    ignored_xids: frozenset[int] | None = field(default=APPLICATION_XIDS)
    kubelet_socket: str = "/var/lib/kubelet/device-plugins/kubelet.sock"
    metrics_address: str = ""


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """When node labels are written, and where; ``interval`` is in seconds."""

    output_file: str = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
    oneshot: bool = False
    interval: float = 60.0
    no_timestamp: bool = False
    machine_type_file: str = "/sys/class/dmi/id/product_name"
