"""Every option of the device plugin: its flags, its variables, its key in the file. Data.

Names and meaning are NVIDIA's; those without a key in NVIDIA's file are nvhook's own. Source:
kubernetes reference, section 2.1.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from nvhook.formats.yaml_text import Unquoted
from nvhook.kubelet.settings import IdStrategy, ListStrategy, MigStrategy, SharedPolicy

Kind = Literal[
    "flag", "text", "path", "address", "choice", "choices", "channels", "selectors", "duration"
]
# Go's strconv.ParseBool; files have YAML's words as well.
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_YAML_TRUE = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_YAML_FALSE = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_UNITS = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}
_PART = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|h|m|s)", re.ASCII)
_DURATION = re.compile(f"(?:{_PART.pattern})+", re.ASCII)
_ADDRESS = re.compile(r".*:([0-9]{1,5})", re.ASCII)
_CHANNELS: dict[tuple[str, ...], tuple[int, ...]] = {(): (), ("0",): (0,)}


@dataclass(frozen=True, slots=True)
class Option:
    """An option.

    ``field`` is that of Settings, empty for one that is accepted and has no effect; the first of
    ``flags`` and ``variables`` is the name to use, the others are older ones. ``key`` is dotted.
    """

    field: str
    flags: tuple[str, ...]
    variables: tuple[str, ...]
    key: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        return {
            "flag": "true or false",
            "text": "a text",
            "path": "an absolute path",
            "address": "HOST:PORT, or :PORT for every address of this host",
            "choice": f"one of {', '.join(self.choices)}",
            "choices": f"a list of some of {', '.join(self.choices)}",
            "channels": "empty, or 0: other IMEX channels are given by a DRA driver",
            "selectors": "a list of indices, UUIDs, PCI bus ids and model patterns",
            "duration": "60s, 1h30m, a number of seconds, or infinite",
        }[self.kind]


OPTIONS = (
    Option(
        "mig_strategy",
        ("--mig-strategy",),
        ("MIG_STRATEGY", "GFD_MIG_STRATEGY"),
        "flags.migStrategy",
        "choice",
        "How MIG devices are offered: none, single or mixed.",
        get_args(MigStrategy),
    ),
    Option(
        "fail_on_init_error",
        ("--fail-on-init-error",),
        ("FAIL_ON_INIT_ERROR", "GFD_FAIL_ON_INIT_ERROR"),
        "flags.failOnInitError",
        "flag",
        "End where there is no driver; false: wait for one.",
    ),
    Option(
        "driver_root",
        ("--driver-root", "--nvidia-driver-root"),
        ("NVIDIA_DRIVER_ROOT",),
        "flags.nvidiaDriverRoot",
        "path",
        "Where the driver is installed on the host.",
    ),
    Option(
        "dev_root",
        ("--dev-root", "--nvidia-dev-root"),
        ("NVIDIA_DEV_ROOT",),
        "flags.nvidiaDevRoot",
        "path",
        "The host's directory with dev/nvidiaN in it.",
    ),
    Option(
        "pass_device_specs",
        ("--pass-device-specs",),
        ("PASS_DEVICE_SPECS",),
        "flags.plugin.passDeviceSpecs",
        "flag",
        "Name the device nodes, too, for the CPU manager's sake.",
    ),
    Option(
        "list_strategies",
        ("--device-list-strategy",),
        ("DEVICE_LIST_STRATEGY",),
        "flags.plugin.deviceListStrategy",
        "choices",
        "How the runtime is told: some of envvar, volume-mounts, cdi-annotations, cdi-cri.",
        get_args(ListStrategy),
    ),
    Option(
        "id_strategy",
        ("--device-id-strategy",),
        ("DEVICE_ID_STRATEGY",),
        "flags.plugin.deviceIDStrategy",
        "choice",
        "What devices are called: uuid or index.",
        get_args(IdStrategy),
    ),
    Option(
        "gdrcopy",
        ("--gdrcopy-enabled",),
        ("GDRCOPY_ENABLED",),
        "flags.gdrcopyEnabled",
        "flag",
        "Give containers GDRCopy.",
    ),
    Option(
        "gds",
        ("--gds-enabled",),
        ("GDS_ENABLED",),
        "flags.gdsEnabled",
        "flag",
        "Give containers GPUDirect Storage.",
    ),
    Option(
        "mofed",
        ("--mofed-enabled",),
        ("MOFED_ENABLED",),
        "flags.mofedEnabled",
        "flag",
        "Give containers Mellanox OFED.",
    ),
    Option(
        "cdi_annotation_prefix",
        ("--cdi-annotation-prefix",),
        ("CDI_ANNOTATION_PREFIX",),
        "flags.plugin.cdiAnnotationPrefix",
        "text",
        "What annotations with CDI names begin with.",
    ),
    Option(
        "cdi_hook_path",
        ("--nvidia-cdi-hook-path", "--nvidia-ctk-path"),
        ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        "flags.plugin.nvidiaCTKPath",
        "path",
        "nvhook's launcher on the host, for CDI specs.",
    ),
    Option(
        "driver_root_here",
        ("--driver-root-ctr-path", "--container-driver-root"),
        ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        "flags.plugin.containerDriverRoot",
        "path",
        "Where the plugin itself sees the driver root.",
    ),
    Option(
        "mps_root",
        ("--mps-root",),
        ("MPS_ROOT",),
        "flags.mpsRoot",
        "path",
        "The host's directory for MPS daemons.",
    ),
    Option(
        "shared_policy",
        ("--shared-devices-allocation-policy",),
        ("SHARED_DEVICES_ALLOCATION_POLICY",),
        "flags.plugin.sharedDevicesAllocationPolicy",
        "choice",
        "Which GPU's replica is taken first: distributed or packed.",
        get_args(SharedPolicy),
    ),
    Option(
        "imex_channels",
        ("--imex-channel-ids",),
        ("IMEX_CHANNEL_IDS",),
        "imex.channelIDs",
        "channels",
        "IMEX channels that containers get: none, or 0.",
    ),
    Option(
        "imex_required",
        ("--imex-required",),
        ("IMEX_REQUIRED",),
        "imex.required",
        "flag",
        "Fail where the IMEX channel does not exist.",
    ),
    Option(
        "kubelet_socket",
        ("--kubelet-socket",),
        ("KUBELET_SOCKET",),
        "",
        "text",
        "The kubelet's socket; empty: serve, and don't register.",
    ),
    Option(
        "include",
        ("--include-devices",),
        ("INCLUDE_DEVICES",),
        "flags.includeDevices",
        "selectors",
        "Offer these only: indices, UUIDs, PCI bus ids, model patterns.",
    ),
    Option(
        "exclude",
        ("--exclude-devices",),
        ("EXCLUDE_DEVICES",),
        "flags.excludeDevices",
        "selectors",
        "Don't offer these.",
    ),
    Option(
        "metrics_address",
        ("--metrics-address",),
        ("METRICS_ADDRESS",),
        "flags.metricsAddress",
        "address",
        "Serve metrics, /healthz and /readyz here: HOST:PORT; empty: nowhere.",
    ),
    # Accepted, because manifests have them.
    Option(
        "",
        ("--device-discovery-strategy",),
        ("DEVICE_DISCOVERY_STRATEGY",),
        "flags.deviceDiscoveryStrategy",
        "choice",
        "No effect: auto or nvml.",
        ("auto", "nvml"),
    ),
    Option(
        "",
        ("--cdi-feature-flags",),
        ("CDI_FEATURE_FLAGS",),
        "",
        "text",
        "No effect: nvhook's specs have one hook.",
    ),
    Option(
        "",
        ("--cdi-disable-hooks",),
        ("CDI_DISABLE_HOOKS",),
        "",
        "text",
        "No effect: nvhook's specs have one hook.",
    ),
    Option(
        "",
        ("--use-node-feature-api",),
        ("USE_NODE_FEATURE_API",),
        "flags.useNodeFeatureAPI",
        "flag",
        "No effect: nvhook node-labels writes a file.",
    ),
)

LABEL_OPTIONS = (
    Option(
        "output_file",
        ("--output", "--output-file", "-o"),
        ("GFD_OUTPUT_FILE", "OUTPUT_FILE"),
        "flags.gfd.outputFile",
        "text",
        "File to write; - is standard output.",
    ),
    Option(
        "oneshot",
        ("--oneshot",),
        ("GFD_ONESHOT", "ONESHOT"),
        "flags.gfd.oneshot",
        "flag",
        "Write once, and end.",
    ),
    Option(
        "interval",
        ("--interval", "--sleep-interval"),
        ("GFD_SLEEP_INTERVAL", "SLEEP_INTERVAL"),
        "flags.gfd.sleepInterval",
        "duration",
        "How long to wait before looking again; by default 60s.",
    ),
    Option(
        "no_timestamp",
        ("--no-timestamp",),
        ("GFD_NO_TIMESTAMP", "NO_TIMESTAMP"),
        "flags.gfd.noTimestamp",
        "flag",
        "Leave the time out.",
    ),
    Option(
        "machine_type_file",
        ("--machine-type-file",),
        ("GFD_MACHINE_TYPE_FILE", "MACHINE_TYPE_FILE"),
        "flags.gfd.machineTypeFile",
        "path",
        "Where the machine's name stands.",
    ),
)


def from_text(option: Option, text: str) -> object:
    """Return the value of a flag or variable; None if it is none of this option."""
    if option.kind == "flag":
        return True if text in _TRUE else False if text in _FALSE else None
    if option.kind in {"choices", "channels", "selectors"}:
        return _from_words(option, [word.strip() for word in text.split(",") if word.strip()])
    return _from_word(option, text)


def from_yaml(option: Option, value: object) -> object:
    """Return the value of a key; None if it is none of this option."""
    if option.kind == "flag":
        is_word = isinstance(value, Unquoted)
        return (
            (True if value in _YAML_TRUE else False if value in _YAML_FALSE else None)
            if (is_word)
            else None
        )
    if option.kind in {"choices", "channels", "selectors"}:
        if isinstance(value, str):  # a list of one may be a text
            return from_text(option, value)
        words = value if isinstance(value, list) else [None]
        if not all(isinstance(word, str) for word in words):
            return None
        return _from_words(option, [str(word) for word in words])
    return _from_word(option, str(value)) if isinstance(value, str) else None


def _from_words(option: Option, words: list[str]) -> object:
    unique = tuple(dict.fromkeys(words))
    if option.kind == "channels":
        return _CHANNELS.get(unique)
    if option.kind == "selectors":
        return unique
    return unique if unique and set(unique).issubset(option.choices) else None


def _from_word(option: Option, text: str) -> object:
    if "\0" in text:
        return None
    if option.kind == "duration":
        return _seconds(text)
    if option.kind == "choice":
        return text if text in option.choices else None
    if option.kind == "path":
        return text if text.startswith("/") or not text else None
    if option.kind == "address":
        found = _ADDRESS.fullmatch(text)
        return text if not text or (found and int(found[1]) < 1 << 16) else None
    return text


def _seconds(text: str) -> float | None:
    """Return the seconds of a duration as Go writes it, or of a plain number."""
    if text == "infinite":
        return math.inf
    if _DURATION.fullmatch(text) is None:
        return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def option_of_field(field: str, options: Iterable[Option] = OPTIONS) -> Option:
    """Return the option that sets a field."""
    return next(option for option in options if option.field == field)
