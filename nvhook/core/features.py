"""What beside GPUs NVIDIA's drivers offer to containers: nodes and files by feature.

Nothing here is looked for unless it is asked for.

Source: nvidia-container-stack reference, sections 1.2 and 2.2 and appendix D.
"""

from __future__ import annotations

from nvhook.core.device_edits import device_edits
from nvhook.core.edits import Mount, Plan
from nvhook.errors import HostError, RequestError
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.inventory import HostFile, HostNode

# 2^20, the driver's own limit
MAX_IMEX_CHANNEL = (1 << 20) - 1
_CHANNEL = "nvidia-caps-imex-channels/channel"


@record
class Feature:
    """A feature: what its nodes are called below the dev root, and its files.

    ``patterns`` are shell patterns, ``without`` those of names that are left out; ``files`` stand
    below the driver root and ``machine_files`` beside the dev root, both optional. ``remedy`` says
    what to do where no node is found. ``device_class`` is the class of its CDI kind.
    """

    name: str
    device_class: str
    patterns: tuple[str, ...]
    remedy: str
    without: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    machine_files: tuple[str, ...] = ()


GDS = Feature(
    "gds",
    "gds",
    ("nvidia-fs*",),
    "install GPUDirect Storage and run 'modprobe nvidia-fs'",
    files=("/etc/cufile.json",),
    machine_files=("/run/udev",),
)
MOFED = Feature(
    "mofed",
    "mofed",
    ("infiniband/uverbs*", "infiniband/rdma_cm"),
    "load the RDMA drivers: modprobe ib_uverbs rdma_ucm",
)
GDRCOPY = Feature("gdrcopy", "gdrcopy", ("gdrdrv",), "install GDRCopy and run 'modprobe gdrdrv'")
NVSWITCH = Feature(
    "nvswitch",
    "nvswitch",
    ("nvidia-nvswitchctl", "nvidia-nvswitch*"),
    "does this machine have NVSwitches, and does its fabric manager run?",
)
IMEX = Feature(
    "imex",
    "imex-channel",
    (f"{_CHANNEL}*",),
    "make a channel: nvidia-modprobe -i 0, or load the driver with NVreg_CreateImexChannel0=1",
)
# Everything an operator's own containers (exporters, fabric managers) administrate GPUs with.
MANAGEMENT = Feature(
    "management",
    "gpu",
    ("nvidia*", "nvidia-caps/*", f"{_CHANNEL}*"),
    "is the driver loaded? try nvhook list",
    without=("nvidia-fs*", "nvidia-nvswitch*", "nvidia-nvlink*"),
)
FEATURES = {feature.name: feature for feature in (GDS, MOFED, GDRCOPY, NVSWITCH, IMEX, MANAGEMENT)}


def feature_plan(
    feature: Feature, nodes: tuple[HostNode, ...], files: tuple[HostFile, ...], dev_root: str
) -> Plan:
    """Return the plan that gives a feature; nodes and files are those found for it.

    Raises: HostError where the host has no node of it.
    """
    if not nodes:
        names = ", ".join(f"{dev_root}/{pattern}" for pattern in feature.patterns)
        raise HostError(f"this host has no {feature.name}: there is no {names}", feature.remedy)
    edits = [edit for node in nodes for edit in device_edits(node)]
    edits += [Mount(file.host_path, file.path) for file in files]
    return Plan(tuple(edits))


def channel_plans(
    channels: tuple[str, ...], nodes: tuple[HostNode, ...], dev_root: str
) -> dict[int, Plan]:
    """Return the plans of IMEX channels by number, in order; channels are numbers, or all.

    Raises: HostError where the host has none, RequestError for one that it does not have.
    """
    feature_plan(IMEX, nodes, (), dev_root)
    found = {}
    for node in nodes:
        number = _channel(node.name.removeprefix(_CHANNEL))
        if number is not None:
            found[number] = Plan(tuple(device_edits(node)))
    if channels == ("all",):
        return dict(sorted(found.items()))
    wanted = set()
    for name in channels:
        number = _channel(name)
        if number is None:
            raise RequestError(
                f"{name[:100]!r} is no IMEX channel", f"use all, or 0 to {MAX_IMEX_CHANNEL}"
            )
        if number not in found:
            have = ", ".join(str(each) for each in sorted(found)[:16])
            raise RequestError(
                f"IMEX channel {number} does not exist", f"this host has {have}; {IMEX.remedy}"
            )
        wanted.add(number)
    return {number: found[number] for number in sorted(wanted)}


def _channel(text: str) -> int | None:
    digits = text.isascii() and text.isdigit() and len(text) <= 7
    return int(text) if digits and int(text) <= MAX_IMEX_CHANNEL else None
