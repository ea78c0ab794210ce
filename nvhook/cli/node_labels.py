"""nvhook node-labels."""

import os

import click

from nvhook.cli.device_plugin import given, plugin_options
from nvhook.cli.options import load_config
from nvhook.kubelet.configuration import read, read_labels
from nvhook.kubelet.settings import LABEL_OPTIONS, OPTIONS

# Those of the device plugin that decide what there is.
_FIELDS = (
    "mig_strategy",
    "fail_on_init_error",
    "driver_root",
    "driver_root_here",
    "mps_root",
    "include",
    "exclude",
)
_SHARED = tuple(option for option in OPTIONS if option.attribute in _FIELDS)


@click.command("node-labels")
@plugin_options(*LABEL_OPTIONS, *_SHARED)
def command() -> None:
    """Write labels that tell which GPUs this node has.

    The names are those of NVIDIA's GPU feature discovery, the file is one that Node Feature
    Discovery reads. Give it the configuration of the device plugin: it says what that offers.

    \b
    Examples:
      nvhook node-labels --oneshot --output -
      nvhook node-labels --config-file /etc/nvhook/plugin.yaml
    """
    from nvhook.kubelet import label_file

    said = given()
    config = load_config()
    label_file.keep(
        lambda: (*read(said, os.environ), read_labels(said, os.environ)),
        config,
        click.echo,
        lambda line: click.echo(f"nvhook: {line}", err=True),
    )
