"""Bring running containers back to what their journals say, and forget those that have gone.

systemd (daemon-reload, set-property) and a runtime's update may put device programs of their own
beside or in place of the patched one, and then the GPU is lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

from nvhook.errors import ContainerError, NvhookError
from nvhook.kernel import child
from nvhook.live import eject
from nvhook.live.container import LiveContainer, is_running, process_of
from nvhook.live.journal import RULES, forget, names, rules_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.config import Config


SECONDS = 20.0  # for one container


@dataclass(frozen=True, slots=True)
class Reconciled:
    """One container: its first process, and lines that say what was done or what failed."""

    pid: int
    done: tuple[str, ...]
    problem: str = ""


def reconcile(settings: Config) -> tuple[Reconciled, ...]:
    """Go through all journals; a container that fails, or hangs, does not stop the others."""
    found = []
    for name in names(settings.state_directory):
        pid = process_of(name)
        if not is_running(name):
            forget(settings.state_directory, name)
            found.append(Reconciled(pid, ("the container has gone: its journal is removed",)))
            continue
        answer = child.answer_of(partial(_answer, pid, settings), SECONDS)
        if answer is None:
            found.append(Reconciled(pid, (), f"it has not come to an end within {SECONDS:g} s"))
        else:
            done, problem = json.loads(answer)
            found.append(Reconciled(pid, tuple(done), problem))
    return tuple(found)


def _answer(pid: int, settings: Config) -> bytes:
    """Return what was done in a container and what failed, in JSON."""
    try:
        answer: tuple[tuple[str, ...], str] = _container(pid, settings), ""
    except (NvhookError, OSError) as error:
        answer = (), str(error)
    return json.dumps(answer).encode()


def _container(pid: int, settings: Config) -> tuple[str, ...]:
    with LiveContainer(pid, settings.state_directory, force=True) as container:
        if container.changed:
            hint = f"nvhook eject --pid {pid} revokes access; its files go with the container"
            raise ContainerError(container.changed, hint)
        recovered = eject.recover(container, settings)
        done = [recovered] if recovered else []
        for step in container.journal.steps:
            if step.kind == RULES:
                where = step.path, step.numbers[0]
                done += container.access.grant_again(rules_of(step.new), *where)
        return tuple(done)
