"""nvhook inject."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from nvhook.cli.container import Chosen, container_options
from nvhook.cli.deadline import go_on_in_child, recover, timeout_option
from nvhook.cli.options import config_option, json_option, load_config
from nvhook.errors import one_line

if TYPE_CHECKING:
    from nvhook.core.edits import AdditionalGid, EnvVar
    from nvhook.live.inject import Attached
    from nvhook.live.journal import Step


@click.command("inject")
@container_options
@click.option(
    "--gpus",
    metavar="LIST",
    required=True,
    help="As NVIDIA_VISIBLE_DEVICES: all, none, 0,2, GPU-..., 0:1, MIG-...",
)
@click.option(
    "--capabilities",
    metavar="LIST",
    default="",
    help="As NVIDIA_DRIVER_CAPABILITIES, by default compute,utility.",
)
@click.option("--force", is_flag=True, help="Also in the host's own namespaces.")
@timeout_option
@json_option
@config_option
def command(
    pid: int | None,
    docker: str | None,
    podman: str | None,
    containerd: str | None,
    gpus: str,
    capabilities: str,
    force: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Give a running container a GPU.

    It gets nodes, driver files, device rules and loader cache entries, or nothing: what fails is
    taken back. A second time changes nothing.

    \b
    Examples:
      nvhook inject --pid 4711 --gpus 0
      nvhook inject --docker web --gpus 1,2 --capabilities compute,utility,video
      nvhook inject --containerd k8s.io/1f2e3d --gpus GPU-8a1f... --json
    """
    which = pid, docker, podman, containerd
    # First of all: what is imported before has to be copied, page by page, for the child.
    go_on_in_child("inject", timeout, lambda: recover(Chosen(*which).pid, force))
    from nvhook.core.request import Request, parse_capabilities, parse_devices
    from nvhook.errors import RequestError
    from nvhook.live import inject
    from nvhook.live.container import LiveContainer
    from nvhook.log import Log

    chosen = Chosen(*which)
    settings = load_config()
    asked = parse_devices(gpus, "--gpus")
    if asked is None:
        raise RequestError("--gpus names no GPU", "use all, none, indices, UUIDs or PCI bus ids")
    wanted = parse_capabilities(capabilities, settings.supported_driver_capabilities)
    log = Log(settings.log_path, settings.log_level)
    log.bind(pid=chosen.pid)
    with LiveContainer(chosen.pid, settings.state_directory, force) as container:
        done = inject.inject(container, Request(asked, wanted, "--gpus"), settings, log)
    log.info(
        "injected",
        gpus=",".join(map(inject.name_of, done.devices)) or "none",
        capabilities=",".join(wanted),
        source="inject",
        edits=len(done.steps),
    )
    if as_json:
        from nvhook.cli import output

        output.print_json(_document(chosen, done))
    else:
        _print(chosen, done)


def _document(chosen: Chosen, done: Attached) -> dict[str, object]:
    """Return the object that nvhook inject --json prints."""
    from nvhook.cli import output

    return {
        "pid": chosen.pid,
        "gpus": [output.device_document(device) for device in done.devices],
        "changed": bool(done.steps),
        "recovered": done.recovered,
        "steps": steps_document(done.steps),
        "notes": list(done.notes),
        "not_given": _not_given(chosen, done.missed),
    }


def steps_document(steps: Iterable[Step]) -> list[dict[str, object]]:
    """Return steps as both commands print them."""
    return [{"kind": step.kind, "gpu": step.owner, "what": describe(step)} for step in steps]


def describe(step: Step) -> str:
    """Say what a step changed; a container can have chosen the name of its cgroup."""
    if step.kind == "rules":
        return one_line(f"{step.new} in cgroup v{step.numbers[0]} {step.path}")
    return one_line(f"{step.path} -> {step.new}" if step.kind == "link" else step.path)


def _not_given(chosen: Chosen, missed: Iterable[EnvVar | AdditionalGid]) -> list[str]:
    from nvhook.core.edits import EnvVar

    return [
        f"variable {edit.name}: {chosen.with_variable(edit.name, edit.value)}"
        if isinstance(edit, EnvVar)
        else f"group {edit.gid}, which the nodes belong to: {chosen.with_group(edit.gid)}"
        for edit in missed
    ]


def _print(chosen: Chosen, done: Attached) -> None:
    from rich.markup import escape

    from nvhook.cli import output

    if done.recovered:
        click.echo(done.recovered)
    documents = map(output.device_document, done.devices)
    named = ", ".join(f"{each['index']} ({each['uuid']})" for each in documents) or "none"
    if done.steps:
        table = output.table("step", "what", "GPU")
        for step in done.steps:
            table.add_row(step.kind, escape(describe(step)), step.owner)
        output.print_tables(f"process {chosen.pid} has GPUs {named}", table)
    else:
        click.echo(f"process {chosen.pid} has GPUs {named} already: nothing done")
    for note in done.notes:
        click.echo(one_line(note))
    for line in _not_given(chosen, done.missed):
        click.echo(f"a running process can't be given {line}")
