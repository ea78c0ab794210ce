"""``nvhook hook``: its manual page; runtimes reach nvhook.doors.hook through the launcher."""

import click

from nvhook.cli.options import config_option, config_path


@click.command()
@click.argument("stage", type=click.Choice(["prestart", "createRuntime"]))
@config_option
def hook(stage: str) -> None:
    """Give a created container its GPU (called by OCI runtimes).

    Reads the container's state from standard input, its request from the bundle's config.json, and
    puts device nodes, driver libraries and device rules into it. Exit status 0: done, or not a GPU
    container; 1: failed, and the runtime does not start the container.

    \b
    Example, in config.json (scripts/install-hook.sh prints it for this machine):
      "hooks": {"prestart": [{
        "path": "/usr/local/bin/nvhook",
        "args": ["nvhook", "hook", "prestart"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
      }]}
    """
    from nvhook.doors.hook import main

    path = config_path()
    main(["hook", stage, *(["--config", path] if path else [])])
