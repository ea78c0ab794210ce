"""What containers name themselves never reaches a terminal as it is, nor ends a command."""

from collections.abc import Callable

import click
import pytest

from nvhook.cli import inject
from nvhook.cli import list as listing
from nvhook.cli import reconcile as reconciling
from nvhook.live import holdings, reconcile
from nvhook.live.holdings import Running
from nvhook.live.journal import Step
from nvhook.live.reconcile import Reconciled

NAME = "/docker/\x1b[2J\udcff"


def _steps() -> None:
    click.echo(inject.describe(Step("rules", "", NAME, "c 195:0 rw", numbers=(1,))))
    click.echo(inject.describe(Step("mount", "", NAME, numbers=(1, 2))))


def _list() -> None:
    listing._list_containers(None, as_json=False)  # type: ignore[arg-type]


def _reconcile() -> None:
    callback = reconciling.command.callback
    assert callback is not None
    callback(as_json=False)


@pytest.mark.parametrize("show", [_steps, _list, _reconcile])
def test_names_are_printed_without_what_a_terminal_obeys(
    show: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(holdings, "with_gpus", lambda _: (Running(1, NAME, (), NAME),))
    monkeypatch.setattr(reconcile, "reconcile", lambda _: (Reconciled(1, (NAME,), NAME),))
    monkeypatch.setattr(reconciling, "load_config", lambda: None)

    show()

    out, err = capfd.readouterr()
    assert "/docker/" in out
    assert "\x1b" not in out + err
