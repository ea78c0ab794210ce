"""nvhook doctor."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from nvhook.cli.options import config_option, config_path, json_option
from nvhook.doctor.check import FAILED, NOT_APPLICABLE, NOT_CHECKED, OK, WARNING
from nvhook.errors import one_line

if TYPE_CHECKING:
    from rich.text import Text

    from nvhook.doctor.check import Check

MAX_TEXT = 1 << 20  # characters of a pasted log
_STYLES = {
    OK: "green",
    WARNING: "yellow",
    FAILED: "bold red",
    NOT_APPLICABLE: "dim",
    NOT_CHECKED: "magenta",
}
MAX_CELL = 2000


@click.command("doctor")
@click.option("--pid", type=click.IntRange(min=1), help="A process of a running container.")
@click.option("--bundle", metavar="DIR", type=click.Path(), help="A container's bundle.")
@click.option("--explain", metavar="TEXT", help="Explain an error message; - reads it from stdin.")
@json_option
@config_option
def command(pid: int | None, bundle: str | None, explain: str | None, as_json: bool) -> int:
    """Check this host or one container, or explain an error.

    Each check that finds something wrong says what it saw, what it expected, and the remedy.
    Nothing is changed, and nothing of a container is executed. Exit status 1 if a check has
    failed, or --explain does not know the text.

    \b
    Examples:
      nvhook doctor
      nvhook doctor --pid "$(docker inspect -f '{{.State.Pid}}' NAME)"
      nvhook doctor --bundle /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID --json
      nvhook doctor --explain "Failed to initialize NVML: Unknown Error"
      journalctl -u docker -n 50 | nvhook doctor --explain -
    """
    if sum(option is not None for option in (pid, bundle, explain)) > 1:
        raise click.UsageError("give only one of --pid, --bundle and --explain")
    if explain is not None:
        text = sys.stdin.read(MAX_TEXT) if explain == "-" else explain
        return _explain(text, as_json)
    from nvhook.cli import output
    from nvhook.doctor import report

    if pid is not None:
        checks = report.of_process(config_path(), pid)
    elif bundle is not None:
        checks = report.of_bundle(config_path(), os.path.abspath(bundle))
    else:
        checks = report.of_host(config_path())
    if as_json:
        output.print_json(report.document(checks))
    else:
        _print(checks)
    return 1 if report.has_failed(checks) else 0


def _print(checks: tuple[Check, ...]) -> None:
    from rich.text import Text

    from nvhook.cli import output

    rows = output.table("result", "check", "")
    counts: dict[str, int] = {}
    for check in checks:
        status = check.status.replace("-", " ")
        counts[status] = counts.get(status, 0) + 1
        rows.add_row(Text(status, _STYLES[check.status]), check.name, _text(check.saw))
        if check.expected:
            rows.add_row("", Text("expected", "dim"), _text(check.expected))
        if check.fix:
            rows.add_row("", Text("fix", "dim"), _text(check.fix, "bold"))
    output.print_tables(rows, ", ".join(f"{count} {status}" for status, count in counts.items()))


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    # Names of the container's making are in it: no control characters, no markup.
    return Text(one_line(text, MAX_CELL), style)


def _explain(text: str, as_json: bool) -> int:
    from nvhook.cli import output
    from nvhook.core.error_catalogue import explain

    known = explain(text)
    if as_json:
        found = [{"name": k.name, "cause": k.cause, "remedy": k.remedy} for k in known]
        output.print_json({"explanations": found})
    elif not known:
        click.echo("this text is not known; nvhook doctor checks the host, --pid PID a container")
    else:
        for number, each in enumerate(known):
            click.echo(
                ("" if number == 0 else "\n") + f"cause:  {each.cause}\nremedy: {each.remedy}"
            )
    return 0 if known else 1
