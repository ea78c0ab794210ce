"""nvhook list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nvhook.cli.options import config_option, json_option, load_config
from nvhook.core.inventory import Inventory
from nvhook.core.platforms import NAMES
from nvhook.errors import one_line

if TYPE_CHECKING:
    from nvhook.live.holdings import Held, Running


@click.command("list")
@click.option("--containers", is_flag=True, help="Which running containers have which GPUs.")
@json_option
@config_option
def command(containers: bool, as_json: bool) -> None:
    """Show the GPUs, MIG devices and driver of this host.

    \b
    Examples:
      nvhook list
      nvhook list --json
      nvhook list --containers
      nvhook list --config DIR/config.toml     a simulated driver, see nvhook sim
    """
    from nvhook.cli import output
    from nvhook.create import pipeline

    inventory = pipeline.inventory(load_config())
    if containers:
        _list_containers(inventory, as_json)
    elif as_json:
        output.print_json(document(inventory))
    else:
        _print(inventory)


def _list_containers(inventory: Inventory, as_json: bool) -> None:
    from nvhook.cli import output
    from nvhook.live import holdings

    running = holdings.with_gpus(inventory)
    if as_json:
        output.print_json({"containers": [_container(each) for each in running]})
        return
    from rich.markup import escape

    table = output.table("#process", "GPUs", "cgroup")
    for each in running:
        gpus = ", ".join(_held(held) for held in each.held)
        # Containers name their cgroups themselves.
        texts = [escape(one_line(text)) for text in (gpus or each.problem, each.cgroup)]
        table.add_row(str(each.pid), *texts)
    output.print_tables(table if running else "no running container has a GPU")


def _container(running: Running) -> dict[str, object]:
    return {
        "pid": running.pid,
        "cgroup": running.cgroup,
        "gpus": [
            {
                "index": held.gpu.index,
                "uuid": held.gpu.uuid,
                "node": held.node,
                "access": held.access,
            }
            for held in running.held
        ],
        "problem": running.problem,
    }


def _held(held: Held) -> str:
    if held.node and held.access:
        return str(held.gpu.index)
    return f"{held.gpu.index} (no node)" if held.access else f"{held.gpu.index} (not allowed)"


def document(inventory: Inventory) -> dict[str, object]:
    """Return the object that nvhook list --json prints."""
    return {
        "driver_version": inventory.driver_version,
        "cuda_version": inventory.cuda_version,
        "driver_root": inventory.driver_root,
        "majors": dict(inventory.majors),
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "minor": gpu.minor,
                "pci_bus_id": gpu.pci_bus_id,
                "model": gpu.model,
                "mig_devices": [
                    {
                        "index": device.index,
                        "uuid": device.uuid,
                        "profile": device.profile,
                        "gpu_instance": device.gpu_instance,
                        "compute_instance": device.compute_instance,
                    }
                    for device in inventory.mig_devices
                    if device.gpu_index == gpu.index
                ],
            }
            for gpu in inventory.gpus
        ],
        "libraries": [library.host_path for library in inventory.libraries],
    }


def _print(inventory: Inventory) -> None:
    from rich.markup import escape

    from nvhook.cli import output

    cuda = f", CUDA {inventory.cuda_version}" if inventory.cuda_version else ""
    majors = " ".join(f"{name}={major}" for name, major in inventory.majors.items())
    gpus = output.table("#index", "uuid", "#minor", "pci bus id", "model")
    for gpu in inventory.gpus:
        gpus.add_row(
            str(gpu.index), escape(gpu.uuid), str(gpu.minor), gpu.pci_bus_id, escape(gpu.model)
        )
        for device in inventory.mig_devices:
            if device.gpu_index == gpu.index:
                what = f"MIG {device.profile or 'device'}"
                gpus.add_row(device.name, escape(device.uuid), "", "", escape(what))
    where = f"{NAMES[inventory.platform]}, " if inventory.platform else ""
    version = inventory.driver_version or "unknown"
    output.print_tables(
        f"{where}driver {version}{cuda}, root {inventory.driver_root}",
        f"majors {majors or 'none'}",
        f"libraries {len(inventory.libraries)} (--json names them)",
        gpus if inventory.gpus else "no GPU",
    )
