"""Give GPUs to a container that runs: the same Plan, the same executor, and a journal.

Each change is written down before it is made. A failure undoes those of this call; what a killed
process left is undone, or completed, by the next call for the same container.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from nvhook.core.edits import AdditionalGid, CgroupRule, EnvVar, Plan
from nvhook.core.inventory import MigDevice
from nvhook.core.ownership import DRIVER, owned_plans, owner_of
from nvhook.core.planner import driver_plan, merge
from nvhook.core.request import VISIBLE_DEVICES
from nvhook.core.selection import select
from nvhook.create import executor, pipeline
from nvhook.create.loader_cache import LD_SO_CACHE
from nvhook.errors import ContainerError, NvhookError
from nvhook.formats.proc_driver import is_known_uuid
from nvhook.live import eject, undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvhook.config import Config
    from nvhook.core.edits import Edit
    from nvhook.core.inventory import Device
    from nvhook.core.request import Request
    from nvhook.live.container import LiveContainer
    from nvhook.live.journal import Step
    from nvhook.log import Log


@dataclass(frozen=True, slots=True)
class Attached:
    """What inject did: ``steps`` are this call's, none where everything was there already.

    ``missed`` are edits a running process can't be given, ``notes`` what was left out and why,
    ``recovered`` says what an earlier call had left unfinished.
    """

    devices: tuple[Device, ...]
    steps: tuple[Step, ...]
    missed: tuple[EnvVar | AdditionalGid, ...]
    notes: tuple[str, ...]
    recovered: str


def inject(container: LiveContainer, request: Request, settings: Config, log: Log) -> Attached:
    """Give a running container what it asks for, or leave it as it was.

    Raises: NvhookError.
    """
    if container.changed:
        raise ContainerError(
            container.changed, "give the container's first process; nothing was changed in it"
        )
    recovered = eject.recover(container, settings)
    devices, plan, owners = _plan(container, request, settings)
    work = executor.Application(container.rootfs, pipeline.machine(), _owning(container, owners))
    sources = work.open_sources(plan.edits, log)
    journal = container.journal
    before = journal.steps
    container.process.check()
    chosen = tuple([owner_of(device) for device in devices])
    journal.begin("inject", chosen)
    try:
        notes = _apply(container, plan, owners, work, sources, log)
    except BaseException as error:
        left = undo.undo(container, tuple(journal.taken), journal.work)
        journal.commit(before)
        for path, why in left:
            log.warning("not rolled back", path=path, why=why)
        if left and isinstance(error, NvhookError):
            remains = f"{left[0][0]} is left in the container: {left[0][1]}"
            error.hint = f"{error.hint}; {remains}" if error.hint else remains
        raise
    finally:
        for _, source in sources:
            if source is not None:
                os.close(source)
    steps = tuple(journal.taken)
    journal.commit((*[_owned(step, chosen) for step in before], *steps))
    executor.keep_over_reload(executor.rules_of(plan), container.process, log)
    missed = [edit for edit in plan.edits if isinstance(edit, (EnvVar, AdditionalGid))]
    if steps and devices:  # what the hook's containers say of themselves, and some programs read
        missed.insert(0, EnvVar(VISIBLE_DEVICES, ",".join(map(name_of, devices))))
    return Attached(devices, steps, tuple(missed), notes, recovered)


def name_of(device: Device) -> str:
    """Return what names a device in a request."""
    if isinstance(device, MigDevice):
        return device.uuid or device.name
    return device.uuid if is_known_uuid(device.uuid) else str(device.index)


def _owned(step: Step, chosen: tuple[str, ...]) -> Step:
    """Make that a chosen GPU's own which its MIG devices had of it before."""
    bus = step.owner.removesuffix("/")
    return replace(step, owner=bus) if bus in chosen else step


def _plan(
    container: LiveContainer, request: Request, settings: Config
) -> tuple[tuple[Device, ...], Plan, dict[Edit, str]]:
    """Return the devices, their plan, and the owners of those edits that are not the driver's."""
    capabilities = tuple(sorted(request.driver_capabilities))
    host = pipeline.inventory(settings, request.devices, capabilities)
    if host.platform:
        from nvhook.core.platforms import refuse_running

        refuse_running(host)
    devices = select(request.devices, host)
    layout = pipeline.layout_of(container.rootfs, settings.cuda_forward_compatibility)
    shared = driver_plan(capabilities, host, layout, uvm_required=bool(devices))
    own = owned_plans(devices, host)
    owners = {edit: owner for owner, plan in own for edit in plan.edits}
    edits = merge((shared, *[plan for _, plan in own])).edits
    if container.is_host:  # everything else is the host's already
        edits = tuple([edit for edit in edits if isinstance(edit, CgroupRule)])
    if not settings.device_rules:
        edits = tuple([edit for edit in edits if not isinstance(edit, CgroupRule)])
    return devices, Plan(edits), owners


def _apply(
    container: LiveContainer,
    plan: Plan,
    owners: dict[Edit, str],
    work: executor.Application,
    sources: list[tuple[Edit, int | None]],
    log: Log,
) -> tuple[str, ...]:
    for owner in dict.fromkeys([owners.get(edit, DRIVER) for edit in plan.edits]):
        container.owner = owner
        own = [edit for edit in plan.edits if owners.get(edit, DRIVER) == owner]
        rules = executor.rules_of(Plan(tuple(own)))
        for note in container.access.grant(rules, container.announce_rules):
            log.info("device rules", done=note)
    if not container.access.directories:
        work.notes.append("device rules: the container is in nvhook's own cgroup, left alone")
    with container.process.mount_namespace():
        work.run(sources)
    if work.unreadable_cache:
        container.owner = DRIVER
        container.rootfs.announce_content(LD_SO_CACHE)
        from nvhook.create.ldconfig import rebuild_cache  # rare, and 30 ms of imports

        why = work.unreadable_cache
        rebuild_cache(plan, container.process, container.rootfs, why, log)
    return tuple(note for note in work.notes if not note.startswith("left out, the process"))


def _owning(container: LiveContainer, owners: dict[Edit, str]) -> Callable[[Edit], None]:
    """Return what says of each edit, before it is applied, whose the next steps are."""

    def before(edit: Edit) -> None:
        container.owner = owners.get(edit, DRIVER)

    return before
