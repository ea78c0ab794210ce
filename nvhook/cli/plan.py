"""nvhook plan."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from nvhook.cli.options import config_option, json_option, load_config
from nvhook.core import explain
from nvhook.core.edits import (
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
from nvhook.core.platforms import CSV_DIRECTORY, TEGRA
from nvhook.errors import assert_never
from nvhook.record import fields, is_record

if TYPE_CHECKING:
    from rich.table import Table

    from nvhook.config import Config
    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Device
    from nvhook.core.request import Request
    from nvhook.create.pipeline import Outcome


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
    from nvhook.cli import output
    from nvhook.create import preview

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
            output.print_json(document(None, (), Plan(()), ()))
        else:
            click.echo("not a GPU container: nothing to do")
    else:
        missed = _missed(planned, config)
        parts = planned.request, planned.devices, planned.plan, missed
        if as_json:
            output.print_json(document(*parts))
        else:
            _print(*parts)


def _missed(planned: Outcome, config: Config) -> tuple[explain.Absent, ...]:
    """Return what was looked for and not found."""
    from nvhook.create import pipeline

    asked = planned.request
    if not asked.needs_driver:
        return ()
    host = pipeline.inventory(
        config, asked.devices, asked.driver_capabilities, asked.manages_mig, asked.every_csv
    )
    if host.platform == TEGRA:
        from nvhook.host.tegra import read_lists

        entries = read_lists(config.driver_root, config.dev_root, asked.every_csv).absent
        return tuple(
            [explain.Absent(each.kind, each.path, (), (CSV_DIRECTORY,)) for each in entries]
        )
    if host.platform:
        return ()
    return explain.absent(asked.driver_capabilities, host, pipeline.machine(), config.dev_root)


def document(
    asked: Request | None,
    devices: tuple[Device, ...],
    plan: Plan,
    missed: tuple[explain.Absent, ...],
) -> dict[str, object]:
    """Return the object that nvhook plan --json prints."""
    from nvhook.cli import output

    capabilities = () if asked is None else asked.driver_capabilities
    return {
        "gpu_container": asked is not None,
        "devices": [output.device_document(device) for device in devices],
        "driver_capabilities": [] if asked is None else sorted(asked.driver_capabilities),
        "requirements": [
            {"variable": variable, "text": text}
            for variable, text in (() if asked is None else asked.requirements)
        ],
        "asked_by": "" if asked is None else asked.source,
        "edits": [
            {"kind": edit.kind, **_fields(edit), "why": explain.why(edit, devices, capabilities)}
            for edit in plan.edits
        ],
        "not_found": [_fields(each) for each in missed],
    }


def _fields(record: object) -> dict[str, object]:
    return {name: _plain(value) for name, value in sorted(fields(record).items())}


def _plain(value: object) -> object:
    if is_record(value):
        return _fields(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _print(
    asked: Request,
    devices: tuple[Device, ...],
    plan: Plan,
    missed: tuple[explain.Absent, ...],
) -> None:
    from rich.markup import escape

    from nvhook.cli import output

    edits = output.table("edit", "what", "why")
    for edit in plan.edits:
        why = explain.why(edit, devices, asked.driver_capabilities)
        edits.add_row(edit.kind, escape(_describe(edit)), escape(why))
    names = [(str(output.device_document(device)["index"]), device.uuid) for device in devices]
    output.print_tables(
        f"asked for by {asked.source}: {', '.join(asked.devices) or 'none'}",
        f"GPUs {', '.join(f'{index} ({uuid})' for index, uuid in names) or 'none'}",
        f"driver capabilities {', '.join(asked.driver_capabilities) or 'none'}",
        *[f"satisfied: {escape(variable)} {escape(text)}" for variable, text in asked.requirements],
        edits,
        *(_not_found(missed) if missed else []),
    )


def _not_found(missed: tuple[explain.Absent, ...]) -> list[Table | str]:
    """Return a table of what is not there, and lines that say where each kind was looked for."""
    from rich.markup import escape

    from nvhook.cli import output

    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    places: dict[tuple[str, tuple[str, ...]], None] = {}
    for each in missed:
        rows.setdefault((each.kind, each.needed_by), []).append(each.name)
        places[each.kind, each.looked_in] = None
    table = output.table("not found", "what", "for")
    for (kind, needed_by), names in rows.items():
        needed = ", ".join(needed_by) or "every GPU container"
        table.add_row(kind, escape(", ".join(names)), needed)
    return [table, *[f"{kind}: looked in {' '.join(looked)}" for kind, looked in places]]


def _describe(edit: Edit) -> str:
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
