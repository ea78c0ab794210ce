"""nvhook eject."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nvhook.cli.container import Chosen, container_options
from nvhook.cli.deadline import go_on_in_child, recover, timeout_option
from nvhook.cli.options import config_option, json_option, load_config
from nvhook.errors import ContainerError, one_line

if TYPE_CHECKING:
    from nvhook.config import Config
    from nvhook.core.inventory import Device
    from nvhook.live.eject import Detached


@click.command("eject")
@container_options
@click.option("--gpus", metavar="LIST", help="As for inject; by default all that it has.")
@click.option("--force", is_flag=True, help="Also in the host's own namespaces.")
@timeout_option
@json_option
@config_option
def command(
    pid: int | None,
    docker: str | None,
    podman: str | None,
    containerd: str | None,
    gpus: str | None,
    force: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Take a GPU from a running container.

    Access goes first, then nodes and files. With the last GPU the driver's files go, too, and the
    container is as it was before inject. Of a GPU that it has from its creation, access and node
    are taken. Files that a process holds open stay open: its pid is shown. Exit status 1 if a GPU
    can still be opened.

    \b
    Examples:
      nvhook eject --pid 4711
      nvhook eject --docker web --gpus 1
      nvhook eject --podman web --gpus GPU-8a1f... --json
    """
    which = pid, docker, podman, containerd
    # First of all: what is imported before has to be copied, page by page, for the child.
    go_on_in_child("eject", timeout, lambda: recover(Chosen(*which).pid, force))
    from nvhook.live import eject
    from nvhook.live.container import LiveContainer
    from nvhook.log import Log

    chosen = Chosen(*which)
    settings = load_config()
    selected = _select(gpus, settings)
    with LiveContainer(chosen.pid, settings.state_directory, force) as container:
        done = eject.eject(container, selected, settings)
    log = Log(settings.log_path, settings.log_level)
    log.info(
        "ejected",
        pid=chosen.pid,
        gpus=",".join(done.gpus) or "none",
        left=len(done.left) + len(done.unrevoked),
    )
    if as_json:
        from nvhook.cli import output

        output.print_json(_document(chosen, done))
    else:
        _print(chosen, done)
    if done.unrevoked:
        place, why = done.unrevoked[0]
        raise ContainerError(
            f"not all access is taken from process {chosen.pid}: {place}: {why}",
            "the rest is done; end the container to take this, too",
        )


def _select(gpus: str | None, settings: Config) -> tuple[Device, ...] | None:
    from nvhook.core.request import parse_devices
    from nvhook.core.selection import select
    from nvhook.create import pipeline
    from nvhook.errors import RequestError

    if gpus is None:
        return None
    asked = parse_devices(gpus, "--gpus")
    if not asked:
        raise RequestError("--gpus names no GPU", "use all, indices, UUIDs or PCI bus ids")
    return None if asked == ("all",) else select(asked, pipeline.inventory(settings, asked))


def _document(chosen: Chosen, done: Detached) -> dict[str, object]:
    """Return the object that nvhook eject --json prints."""
    from nvhook.cli.inject import steps_document

    return {
        "pid": chosen.pid,
        "gpus": list(done.gpus),
        "given_at_creation": list(done.foreign),
        "recovered": done.recovered,
        "undone": steps_document(done.steps),
        "revoked": not done.unrevoked,
        "left": [{"path": path, "why": why} for path, why in (*done.unrevoked, *done.left)],
        "holders": [{"pid": pid, "gpus": list(held)} for pid, held in done.holders.items()],
    }


def _print(chosen: Chosen, done: Detached) -> None:
    from rich.markup import escape

    from nvhook.cli import output
    from nvhook.cli.inject import describe

    if done.recovered:
        click.echo(done.recovered)
    if not done.gpus and not done.steps:
        click.echo(f"process {chosen.pid} has none of these GPUs: nothing done")
        return
    named = ", ".join(done.gpus) or "none"
    click.echo(f"taken from process {chosen.pid}: GPUs {named}")
    if done.steps:
        table = output.table("undone", "what", "GPU")
        for step in done.steps:
            table.add_row(step.kind, escape(describe(step)), step.owner)
        output.print_tables(table)
    for bus in done.foreign:
        click.echo(f"{bus} was given at creation: access and node are taken, files stay")
    for path, why in (*done.unrevoked, *done.left):
        click.echo(one_line(f"left: {path}: {why}"))
    for pid, held in done.holders.items():
        click.echo(f"process {pid} still holds {', '.join(held)} open: end it to free the GPU")
