"""nvhook plan."""

import os

import click

from nvhook.cli.options import config_option, json_option, load_config
from nvhook.core import catalog
from nvhook.core.edits import (
    SOCKET_OPTIONS,
    AdditionalGid,
    CgroupRule,
    DeviceNode,
    EnvVar,
    LdCacheUpdate,
    Mount,
    Plan,
    Symlink,
    TextFile,
)
from nvhook.core.inventory import MigDevice
from nvhook.core.layout import COMPAT_DIRECTORY
from nvhook.core.mig import node_names
from nvhook.errors import assert_never
from nvhook.formats import mig
from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Device
    from nvhook.core.request import Request


# Part of a path in the container, and why it is there.
_REASONS = (
    ("/dev/dri/", "rendering and screens of the container's GPUs"),
    (catalog.PROFILE_FILE, "EGL uses the container's own GPUs only"),
    (catalog.PROC_DRIVER, "only the container's own GPUs are visible"),
    ("/firmware/", "firmware of the GPU's own processor"),
    ("/OpenCL/", "OpenCL finds the driver"),
    ("/vulkan/", "Vulkan finds the driver"),
    ("/glvnd/", "EGL finds the driver"),
    ("/egl/", "EGL finds the driver"),
    ("/gbm/", "EGL finds the driver"),
    ("/nvoptix.bin", "OptiX's own data"),
    ("/xorg", "Xorg finds the driver"),
    ("/X11", "Xorg finds the driver"),
)


@click.command("plan")
@click.option(
    "--bundle", metavar="DIR", type=click.Path(), help="A container's bundle, with config.json."
)
@click.option("--gpus", metavar="LIST", help="As NVIDIA_VISIBLE_DEVICES: all, none, 0,2, GPU-...")
@click.option(
    "--capabilities",
    metavar="LIST",
    default="",
    help="As NVIDIA_DRIVER_CAPABILITIES, with --gpus; by default compute,utility.",
)
@json_option
@config_option
def command(bundle: str | None, gpus: str | None, capabilities: str, as_json: bool) -> None:
    """Show what a container would get, edit by edit.

    \b
    Examples:
      nvhook plan --gpus 0
      nvhook plan --gpus all --capabilities utility --json
      nvhook plan --bundle /run/containerd/io.containerd.runtime.v2.task/default/c1
    """
    from nvhook import preview
    from nvhook.cli import output

    if (bundle is None) == (gpus is None):
        raise click.UsageError("give one of --bundle DIR and --gpus LIST")
    if bundle is not None and capabilities:
        raise click.UsageError("--capabilities goes with --gpus: a bundle says its own")
    config = load_config()
    warnings: list[str] = []
    planned = (
        preview.plan_for_gpus(gpus or "", capabilities, config)
        if bundle is None
        else preview.plan_for_bundle(os.path.abspath(bundle), config, warnings)
    )
    for warning in warnings:
        click.echo(f"nvhook: {warning}", err=True)
    if planned is None:
        if as_json:
            output.print_json(document(None, (), Plan(())))
        else:
            click.echo("not a GPU container: nothing to do")
    elif as_json:
        output.print_json(document(planned.request, planned.devices, planned.plan))
    else:
        _print(planned.request, planned.devices, planned.plan)


def _device(device: "Device") -> dict[str, object]:
    if isinstance(device, MigDevice):
        own: dict[str, object] = {"kind": "mig", "index": device.name}
        gpu = device.gpu
    else:
        own = {"kind": "gpu", "index": device.index}
        gpu = device
    return {
        **own,
        "uuid": device.uuid,
        "minor": gpu.minor,
        "pci_bus_id": gpu.pci_bus_id,
    }


def document(
    asked: "Request | None", devices: "tuple[Device, ...]", plan: Plan
) -> dict[str, object]:
    """Return the object that nvhook plan --json prints."""
    return {
        "gpu_container": asked is not None,
        "devices": [_device(device) for device in devices],
        "driver_capabilities": [] if asked is None else sorted(asked.driver_capabilities),
        "requirements": [
            {"variable": variable, "text": text}
            for variable, text in (() if asked is None else asked.requirements)
        ],
        "edits": [{"kind": edit.kind, **_fields(edit)} for edit in plan.edits],
    }


def _fields(record: Record) -> dict[str, object]:
    names: tuple[str, ...] = record.__slots__
    return {name: _plain(getattr(record, name)) for name in names}


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return _fields(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _print(asked: "Request", devices: "tuple[Device, ...]", plan: Plan) -> None:
    from rich.markup import escape

    from nvhook.cli import output

    edits = output.table("edit", "what", "why")
    for edit in plan.edits:
        why = _why(edit, devices, asked.driver_capabilities)
        edits.add_row(edit.kind, escape(_describe(edit)), escape(why))
    names = [(str(_device(device)["index"]), device.uuid) for device in devices]
    output.print_tables(
        f"asked for by {asked.source}: {', '.join(asked.devices) or 'none'}",
        f"GPUs {', '.join(f'{index} ({uuid})' for index, uuid in names) or 'none'}",
        f"driver capabilities {', '.join(asked.driver_capabilities) or 'none'}",
        *[f"satisfied: {escape(variable)} {escape(text)}" for variable, text in asked.requirements],
        edits,
    )


def _describe(edit: "Edit") -> str:
    match edit:
        case DeviceNode():
            text = f"{edit.container_path} = {edit.host_path} ({edit.major}:{edit.minor})"
        case CgroupRule():
            text = f"{edit.type} {edit.major}:{edit.minor} {edit.access}"
        case Mount():
            text = f"{edit.container_path} = {edit.host_path or 'tmpfs'} ({','.join(edit.options)})"
        case Symlink():
            text = f"{edit.container_path} -> {edit.target}"
        case TextFile():
            text = f"{edit.container_path} ({len(edit.content)} characters, {edit.mode:04o})"
        case LdCacheUpdate():
            text = f"{len(edit.libraries)} libraries: " + ", ".join(
                library.name for library in edit.libraries
            )
        case EnvVar():
            text = f"{edit.name}={edit.value}"
        case AdditionalGid():
            text = str(edit.gid)
        case _:
            assert_never(edit)
    return text


def _paths(device: MigDevice) -> list[str]:
    """Return the container paths of a MIG device's own nodes and files."""
    gpu, gi = device.gpu.minor, device.gpu_instance
    names = (mig.gpu_instance(gpu, gi), mig.compute_instance(gpu, gi, device.compute_instance))
    files = [f"{catalog.PROC_DRIVER}/capabilities/{mig.path_of(name)}" for name in names]
    return [*files, *[f"/dev/{name}" for name in node_names(device)]]


def _why(edit: "Edit", devices: "tuple[Device, ...]", capabilities: tuple[str, ...]) -> str:
    """Return what an edit is for: a GPU, or the capabilities that need it."""
    if isinstance(edit, LdCacheUpdate):
        in_image = any(each.container_path.startswith(COMPAT_DIRECTORY) for each in edit.libraries)
        first = f", those in {COMPAT_DIRECTORY} first" if in_image else ""
        return f"the container's loader finds the libraries{first}"
    if isinstance(edit, CgroupRule):
        return "without the rule, opening the node is refused"
    if isinstance(edit, AdditionalGid):
        return "the host gives its nodes to this group only"
    if isinstance(edit, EnvVar):
        return "NVIDIA's programs expect it"
    path = edit.container_path
    for device in devices:
        gpu = device.gpu if isinstance(device, MigDevice) else device
        if path == f"/dev/nvidia{gpu.minor}" or path.endswith(f"/gpus/{gpu.pci_bus_id}"):
            return f"GPU {gpu.index}"
        if isinstance(device, MigDevice) and path in _paths(device):
            return f"MIG device {device.name}"
    name = path.rpartition("/")[2]
    if name in catalog.CONTROL_NODES:
        return ", ".join(catalog.CONTROL_NODES[name][2]) or "every GPU container"
    needed = [
        capability
        for capability in capabilities
        if name in catalog.BINARIES.get(capability, ())
        or _library_name(name) in catalog.LIBRARIES.get(capability, ())
    ]
    if needed:
        return ", ".join(needed)
    if isinstance(edit, Mount) and edit.options == SOCKET_OPTIONS:
        return "a service of the driver on the host"
    return _why_by_place(path)


def _why_by_place(path: str) -> str:
    for part, reason in _REASONS:
        if part in path:
            return reason
    name = path.rpartition("/")[2]
    if name.startswith("lib") and ".so." in name and _library_name(name) not in catalog.LISTED:
        return "unlisted: it carries the driver's version (inject-unlisted-driver-libraries)"
    return "driver"


def _library_name(file_name: str) -> str:
    """Return libcuda.so of libcuda.so.1."""
    stem, dot_so, _ = file_name.partition(".so")
    return stem + dot_so
