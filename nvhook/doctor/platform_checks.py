"""WSL 2 and Jetsons: in the place of the checks of NVIDIA's Linux driver and its nodes."""

from nvhook.config import Config
from nvhook.core.catalog import DEFAULT_CAPABILITIES
from nvhook.core.inventory import Inventory
from nvhook.core.layout import ContainerLayout
from nvhook.core.planner import driver_plan
from nvhook.core.platforms import NAMES
from nvhook.create import pipeline
from nvhook.doctor.check import Check, failed, listed, not_applicable, ok
from nvhook.errors import HostError, NvhookError
from nvhook.host import platforms
from nvhook.host.driver_texts import list_gpu_directories

# What is NVIDIA's Linux driver's, and not these machines'.
_NOT_HERE = (
    "driver-age",
    "loader-cache",
    "persistence-daemon",
    "nvidia-uvm",
    "nvidia-modeset",
    "capability-nodes",
)


def checks(config: Config) -> tuple[Check, ...] | None:
    """Check such a machine; None where NVIDIA's driver has the GPUs, or nothing has."""
    platform = platforms.name_of(config.driver_root, config.dev_root, config.sys_root)
    if not platform or list_gpu_directories(config.proc_root):
        return None
    name = NAMES[platform]
    try:
        found = pipeline.inventory(config)
    except NvhookError as error:
        return (failed("driver-loaded", error.message, f"{name} with NVIDIA's files", error.hint),)
    versions = f"driver {found.driver_version or 'unknown'}, CUDA {found.cuda_version or 'unknown'}"
    models = listed(gpu.model for gpu in found.gpus)
    return (
        ok("driver-loaded", f"{name}: {versions}"),
        ok("gpus", models),
        _libraries(found),
        _nodes(found),
        *[not_applicable(each, f"this is {name}") for each in _NOT_HERE],
    )


def _libraries(found: Inventory) -> Check:
    name = "driver-libraries"
    try:
        driver_plan(DEFAULT_CAPABILITIES, found, ContainerLayout())
    except HostError as error:
        return failed(name, error.message, "what compute and utility need", error.hint)
    return ok(name, f"{len(found.libraries)} libraries, {len(found.files)} other files")


def _nodes(found: Inventory) -> Check:
    if not found.nodes:
        what = "the device nodes that the lists name"
        return failed("gpu-nodes", "no device node is there", what, "dmesg | grep -i nvgpu")
    return ok("gpu-nodes", listed(node.name for node in found.nodes))
