"""nvhook reconcile."""

import click

from nvhook.cli.options import config_option, json_option, load_config
from nvhook.errors import one_line


@click.command("reconcile")
@json_option
@config_option
def command(as_json: bool) -> int:
    """Give running containers back what something else took.

    Device rules of nvhook inject that systemd or a runtime has replaced are put in again, what a
    killed nvhook left is finished, and records of containers that have gone are removed. Exit
    status 1 if a container can't be brought back.

    \b
    Examples:
      nvhook reconcile
      nvhook reconcile --json
    """
    from nvhook.cli import output
    from nvhook.live import reconcile

    found = reconcile.reconcile(load_config())
    if as_json:
        output.print_json(
            {
                "containers": [
                    {"pid": each.pid, "done": list(each.done), "problem": each.problem}
                    for each in found
                ]
            }
        )
    else:
        for each in found:
            for line in each.done:
                click.echo(one_line(f"process {each.pid}: {line}"))
            if each.problem:
                click.echo(one_line(f"process {each.pid}: {each.problem}"), err=True)
    return 1 if any(each.problem for each in found) else 0
