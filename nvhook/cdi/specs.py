"""config + host -> a CDI spec, checked, in its file: what ``nvhook cdi generate`` does."""

import os
import stat
from dataclasses import dataclass

from nvhook.config import Config
from nvhook.core.cdi_render import VOID, build_spec, device_names, hook_entry
from nvhook.core.edits import Plan
from nvhook.core.features import FEATURES, IMEX, MANAGEMENT, channel_plans, feature_plan
from nvhook.core.layout import ContainerLayout
from nvhook.core.planner import device_plan, driver_plan, merge
from nvhook.core.platforms import check_whole
from nvhook.core.request import parse_capabilities, parse_devices
from nvhook.core.selection import select
from nvhook.create import pipeline
from nvhook.errors import HostError, RequestError
from nvhook.formats.cdi_rules import violations
from nvhook.formats.cdi_spec import CdiDeviceNode, Spec
from nvhook.host.feature_nodes import find_feature_files, find_feature_nodes

GPU = "gpu"
GPU_MODES = ("auto", GPU)
MODES = (*GPU_MODES, *FEATURES)
VENDOR = "nvidia.com"
NOTHING = Plan(())
LAUNCHER_VARIABLE = "NVHOOK_LAUNCHER"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a spec shall offer.

    ``devices`` and ``capabilities`` are lists as in NVIDIA_VISIBLE_DEVICES and
    NVIDIA_DRIVER_CAPABILITIES; ``launcher`` and ``config_path`` are absolute. Empty ``vendor`` and
    ``device_class`` mean what NVIDIA calls them in this mode.
    """

    launcher: str
    mode: str = GPU
    devices: str = "all"
    capabilities: str = "all"
    strategies: tuple[str, ...] = ("index", "uuid")
    all_device: bool = True
    vendor: str = ""
    device_class: str = ""
    config_path: str | None = None

    @property
    def kind(self) -> str:
        """The kind of the spec: ``nvidia.com/gpu``."""
        vendor = f"management.{VENDOR}" if self.mode == MANAGEMENT.name else VENDOR
        device_class = GPU if self.mode in GPU_MODES else FEATURES[self.mode].device_class
        return f"{self.vendor or vendor}/{self.device_class or device_class}"


def generate(wanted: Wanted, config: Config) -> Spec:
    """Return the spec for this host.

    Raises: RequestError for a device that does not exist, HostError for something missing.
    """
    if wanted.mode in GPU_MODES:
        return _gpus(wanted, config)
    if wanted.mode == MANAGEMENT.name:
        return _management(wanted, config)
    return _feature(wanted, config)


def _gpus(wanted: Wanted, config: Config) -> Spec:
    capabilities = parse_capabilities(wanted.capabilities, config.supported_driver_capabilities)
    asked = _devices(wanted)
    inventory = pipeline.inventory(config, asked, capabilities)
    devices = select(asked, inventory)
    driver = driver_plan(capabilities, inventory, ContainerLayout())
    named = [
        (device_names(each, wanted.strategies), device_plan(each, inventory)) for each in devices
    ]
    if inventory.platform and len(inventory.gpus) > 1:
        check_whole(devices, inventory)
        named = [(("all",), merge([plan for _, plan in named]))]
    return build_spec(
        wanted.kind,
        merge((Plan((VOID,)), driver)),
        named,
        (*inventory.nodes, *[drm.node for drm in inventory.drm]),
        hook_entry(wanted.launcher, capabilities, wanted.config_path),
        wanted.all_device,
    )


def _management(wanted: Wanted, config: Config) -> Spec:
    capabilities = parse_capabilities(wanted.capabilities, config.supported_driver_capabilities)
    inventory = pipeline.inventory(config)
    driver = driver_plan(capabilities, inventory, ContainerLayout(), uvm_required=False)
    nodes = find_feature_nodes(MANAGEMENT, config.dev_root)
    plan = feature_plan(MANAGEMENT, nodes, (), config.dev_root)
    # Without a GPU there are only the driver's own nodes, and a device must have something.
    rest = Plan(tuple([edit for edit in plan.edits if edit not in driver.edits]))
    return build_spec(
        wanted.kind,
        merge((Plan((VOID,)), driver)),
        [(("all",), rest if rest.edits else plan)],
        nodes,
        hook_entry(wanted.launcher, capabilities, wanted.config_path),
    )


def _feature(wanted: Wanted, config: Config) -> Spec:
    feature = FEATURES[wanted.mode]
    nodes = find_feature_nodes(feature, config.dev_root)
    if feature is IMEX:
        plans = channel_plans(_devices(wanted), nodes, config.dev_root)
        devices = [((str(number),), plan) for number, plan in plans.items()]
    else:
        files = find_feature_files(feature, config.driver_root, config.dev_root)
        devices = [(("all",), feature_plan(feature, nodes, files, config.dev_root))]
    return build_spec(wanted.kind, NOTHING, devices, nodes, None, wanted.all_device)


def _devices(wanted: Wanted) -> tuple[str, ...]:
    asked = parse_devices(wanted.devices, "--device-id")
    if not asked:
        raise RequestError("--device-id names no device", "a spec without devices is not valid")
    return asked


def launcher() -> str:
    """Return nvhook's own launcher: it says where it is; pip has it beside its interpreter."""
    named = os.environ.get(LAUNCHER_VARIABLE)
    if named:
        return named
    import sysconfig

    return os.path.join(sysconfig.get_path("scripts"), "nvhook")


def verify(spec: Spec) -> None:
    """Check a spec against the rules and against the nodes, files and hooks that exist.

    Raises: HostError, which names the first that is wrong.
    """
    for path, reason in violations(spec):
        raise HostError(f"the generated CDI spec is not valid: {path} {reason}")
    for edits in (spec.edits, *[device.edits for device in spec.devices]):
        for node in edits.device_nodes:
            _verify_node(node)
        for mount in edits.mounts:
            if not os.path.exists(mount.host_path):
                raise HostError(
                    f"{mount.host_path} has gone while the CDI spec was made",
                    "is the driver being updated? try again",
                )
        for hook in edits.hooks:
            if not os.access(hook.path, os.X_OK):
                raise HostError(
                    f"the hook {hook.path} is not a program",
                    "install nvhook, or name its launcher with --hook-path",
                )


def _verify_node(node: CdiDeviceNode) -> None:
    path = node.host_path or node.path
    remedy = "run nvidia-modprobe -u -c 0, then try again"
    try:
        status = os.lstat(path)
    except OSError as error:
        raise HostError(f"device node {path}: {error.strerror}", remedy) from None
    found = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if not stat.S_ISCHR(status.st_mode) or found != (node.major, node.minor):
        raise HostError(
            f"{path} is not character device {node.major}:{node.minor} any more", remedy
        )


def write(path: str, text: str) -> bool:
    """Replace a file (0644) in one step, making its directory; False if it has this text already.

    Readers watch the directory: they see the old file or the new one, and a rewrite only where
    there is a change.

    Raises: OSError; the old file is there then.
    """
    import tempfile  # not loaded for standard output

    data = text.encode()
    try:
        with open(path, "rb") as current:
            if current.read() == data:
                return False
    except FileNotFoundError:
        pass
    directory, name = os.path.split(os.path.abspath(path))
    os.makedirs(directory, 0o755, exist_ok=True)
    # Neither .json nor .yaml at the end: no reader takes it for a spec.
    fd, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".new", dir=directory)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(data)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return True
