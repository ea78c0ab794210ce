"""What the device plugin is told to do: every setting and what it is called.

Names and meaning are NVIDIA's; those without a key in NVIDIA's file are nvhook's own. Source:
kubernetes reference, section 2.1.
"""

from dataclasses import dataclass
from typing import Literal

from nvhook.kubelet.options import (
    ADDRESS,
    CHANNELS,
    DURATION,
    PLACE,
    SELECTORS,
    named,
    option,
    options_of,
)
from nvhook.settings import FLAG, TEXT, one_of

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

    mig_strategy: MigStrategy = option(
        "none",
        "--mig-strategy MIG_STRATEGY GFD_MIG_STRATEGY flags.migStrategy",
        "How MIG devices are offered: none, single or mixed.",
    )
    fail_on_init_error: bool = option(
        True,
        "--fail-on-init-error FAIL_ON_INIT_ERROR GFD_FAIL_ON_INIT_ERROR flags.failOnInitError",
        "End where there is no driver; false: wait for one.",
    )
    driver_root: str = option(
        "/",
        "--driver-root --nvidia-driver-root NVIDIA_DRIVER_ROOT flags.nvidiaDriverRoot",
        "Where the driver is installed on the host.",
        PLACE,
    )
    dev_root: str = option(
        "",
        "--dev-root --nvidia-dev-root NVIDIA_DEV_ROOT flags.nvidiaDevRoot",
        "The host's directory with dev/nvidiaN in it.",
        PLACE,
    )
    pass_device_specs: bool = option(
        False,
        "--pass-device-specs PASS_DEVICE_SPECS flags.plugin.passDeviceSpecs",
        "Name the device nodes, too, for the CPU manager's sake.",
    )
    list_strategies: tuple[ListStrategy, ...] = option(
        ("envvar",),
        "--device-list-strategy DEVICE_LIST_STRATEGY flags.plugin.deviceListStrategy",
        "How the runtime is told: some of envvar, volume-mounts, cdi-annotations, cdi-cri.",
    )
    id_strategy: IdStrategy = option(
        "uuid",
        "--device-id-strategy DEVICE_ID_STRATEGY flags.plugin.deviceIDStrategy",
        "What devices are called: uuid or index.",
    )
    gdrcopy: bool = option(
        False, "--gdrcopy-enabled GDRCOPY_ENABLED flags.gdrcopyEnabled", "Give containers GDRCopy."
    )
    gds: bool = option(
        False, "--gds-enabled GDS_ENABLED flags.gdsEnabled", "Give containers GPUDirect Storage."
    )
    mofed: bool = option(
        False, "--mofed-enabled MOFED_ENABLED flags.mofedEnabled", "Give containers Mellanox OFED."
    )
    cdi_annotation_prefix: str = option(
        "cdi.k8s.io/",
        "--cdi-annotation-prefix CDI_ANNOTATION_PREFIX flags.plugin.cdiAnnotationPrefix",
        "What annotations with CDI names begin with.",
    )
    cdi_hook_path: str = option(
        "",
        "--nvidia-cdi-hook-path --nvidia-ctk-path NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH"
        " flags.plugin.nvidiaCTKPath",
        "nvhook's launcher on the host, for CDI specs.",
        PLACE,
    )
    driver_root_here: str = option(
        "",
        "--driver-root-ctr-path --container-driver-root DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT"
        " flags.plugin.containerDriverRoot",
        "Where the plugin itself sees the driver root.",
        PLACE,
    )
    mps_root: str = option(
        "", "--mps-root MPS_ROOT flags.mpsRoot", "The host's directory for MPS daemons.", PLACE
    )
    shared_policy: SharedPolicy = option(
        "distributed",
        "--shared-devices-allocation-policy SHARED_DEVICES_ALLOCATION_POLICY"
        " flags.plugin.sharedDevicesAllocationPolicy",
        "Which GPU's replica is taken first: distributed or packed.",
    )
    imex_channels: tuple[int, ...] = option(
        (),
        "--imex-channel-ids IMEX_CHANNEL_IDS imex.channelIDs",
        "IMEX channels that containers get: none, or 0.",
        CHANNELS,
    )
    imex_required: bool = option(
        False,
        "--imex-required IMEX_REQUIRED imex.required",
        "Fail where the IMEX channel does not exist.",
    )
    kubelet_socket: str = option(
        "/var/lib/kubelet/device-plugins/kubelet.sock",
        "--kubelet-socket KUBELET_SOCKET",
        "The kubelet's socket; empty: serve, and don't register.",
    )
    include: tuple[str, ...] = option(
        (),
        "--include-devices INCLUDE_DEVICES flags.includeDevices",
        "Offer these only: indices, UUIDs, PCI bus ids, model patterns.",
        SELECTORS,
    )
    exclude: tuple[str, ...] = option(
        (),
        "--exclude-devices EXCLUDE_DEVICES flags.excludeDevices",
        "Don't offer these.",
        SELECTORS,
    )
    metrics_address: str = option(
        "",
        "--metrics-address METRICS_ADDRESS flags.metricsAddress",
        "Serve metrics, /healthz and /readyz here: HOST:PORT; empty: nowhere.",
        ADDRESS,
    )
    # What the file alone says, other variables, or what follows from the rest.
    hook_config: str = ""
    sharing: Sharing | None = None
    gpu_names: tuple[NameRule, ...] = ()
    mig_names: tuple[NameRule, ...] = ()
    ignored_xids: frozenset[int] | None = APPLICATION_XIDS


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """When node labels are written, and where; ``interval`` is in seconds."""

    output_file: str = option(
        "/etc/kubernetes/node-feature-discovery/features.d/gfd",
        "--output --output-file -o GFD_OUTPUT_FILE OUTPUT_FILE flags.gfd.outputFile",
        "File to write; - is standard output.",
    )
    oneshot: bool = option(
        False, "--oneshot GFD_ONESHOT ONESHOT flags.gfd.oneshot", "Write once, and end."
    )
    interval: float = option(
        60.0,
        "--interval --sleep-interval GFD_SLEEP_INTERVAL SLEEP_INTERVAL flags.gfd.sleepInterval",
        "How long to wait before looking again; by default 60s.",
        DURATION,
    )
    no_timestamp: bool = option(
        False,
        "--no-timestamp GFD_NO_TIMESTAMP NO_TIMESTAMP flags.gfd.noTimestamp",
        "Leave the time out.",
    )
    machine_type_file: str = option(
        "/sys/class/dmi/id/product_name",
        "--machine-type-file GFD_MACHINE_TYPE_FILE MACHINE_TYPE_FILE flags.gfd.machineTypeFile",
        "Where the machine's name stands.",
        PLACE,
    )


# Accepted, because manifests have them.
IGNORED = (
    named(
        one_of(("auto", "nvml")),
        "--device-discovery-strategy DEVICE_DISCOVERY_STRATEGY flags.deviceDiscoveryStrategy",
        "No effect: auto or nvml.",
    ),
    named(
        TEXT, "--cdi-feature-flags CDI_FEATURE_FLAGS", "No effect: nvhook's specs have one hook."
    ),
    named(
        TEXT, "--cdi-disable-hooks CDI_DISABLE_HOOKS", "No effect: nvhook's specs have one hook."
    ),
    named(
        FLAG,
        "--use-node-feature-api USE_NODE_FEATURE_API flags.useNodeFeatureAPI",
        "No effect: nvhook node-labels writes a file.",
    ),
)
OPTIONS = options_of(Settings) + IGNORED
LABEL_OPTIONS = options_of(LabelSettings)
