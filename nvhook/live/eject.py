"""Take GPUs and MIG devices from a container that runs.

Access goes first: a device that can't be opened any more is not used while its node disappears.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nvhook.core.catalog import DRM_CAPABILITIES
from nvhook.core.ownership import goes_with, is_needed, is_shared, owner_of
from nvhook.create import pipeline
from nvhook.errors import HostError
from nvhook.kernel import cgroup, systemd
from nvhook.kernel.root import DIRECTORY, MOUNT
from nvhook.live.belongings import belongings, given, openable
from nvhook.live.journal import RULES, boundary, rules_of
from nvhook.live.undo import undo, undo_files, undo_rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.config import Config
    from nvhook.core.inventory import Device, Inventory
    from nvhook.kernel.device_rules import DeviceRule
    from nvhook.live.belongings import Belonging
    from nvhook.live.container import LiveContainer
    from nvhook.live.journal import Step
    from nvhook.live.undo import Left


@dataclass(frozen=True, slots=True)
class Detached:
    """What eject did: devices by owner (core.ownership), steps undone, who holds devices open.

    ``foreign`` are devices that were given at the container's creation. ``unrevoked`` is what can
    still be opened, or will be again, and why; ``left`` are files that stay, and why. ``holders``
    maps pids to owners.
    """

    gpus: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    left: tuple[Left, ...] = ()
    unrevoked: tuple[Left, ...] = ()
    holders: dict[int, tuple[str, ...]] = field(default_factory=dict)
    recovered: str = ""


def eject(
    container: LiveContainer, devices: tuple[Device, ...] | None, settings: Config
) -> Detached:
    """Take devices away, None: all that the container has. With a GPU go its MIG devices.

    Raises: NvhookError.
    """
    recovered = recover(container, settings)
    container.process.check()
    host = _inventory(settings)
    if host is not None and host.platform:
        from nvhook.core.platforms import refuse_running

        refuse_running(host)
    has = [*container.journal.owners, *given(container, host)]
    if devices is None:
        chosen = has
    else:
        chosen = [owner_of(device) for device in devices]
        chosen += [owner for owner in has if goes_with(owner, chosen)]
    done = _eject(container, tuple(dict.fromkeys(chosen)), host)
    return replace(done, recovered=recovered)


def recover(container: LiveContainer, settings: Config) -> str:
    """Undo an inject, or complete an eject, that was killed; say which.

    Raises: NvhookError.
    """
    work = container.journal.work
    if work is None:
        return ""
    if work.kind == "inject":
        before = container.journal.steps
        undo(container, tuple(container.journal.taken), work)
        container.journal.commit(before)
        return "an inject that was killed is undone"
    _eject(container, work.gpus, _inventory(settings))
    return "an eject that was killed is completed"


def _eject(container: LiveContainer, chosen: tuple[str, ...], host: Inventory | None) -> Detached:
    journal = container.journal
    selected, remaining = _split(journal.steps, chosen)
    own = belongings(chosen, container, host)
    foreign = _foreign(container, own)
    if not selected and not foreign and journal.work is None:
        return Detached(unrevoked=tuple(_unrevoked(container, own)))
    writer = journal.work
    owners = {step.owner for step in selected}
    rules = [rule for step in selected if step.kind == RULES for rule in rules_of(step.new)]
    rules += [rule for each in own if each in owners or each in foreign for rule in own[each].rules]
    try:
        journal.begin("eject", chosen)
    except OSError as error:  # access goes all the same, which needs no file
        container.access.revoke(rules)
        raise HostError(
            f"access is revoked, but files stay in the container: {journal.path} can't be written: "
            f"{error.strerror}",
            "make room there, and eject again",
        ) from error
    unrevoked = _forget(container, rules)
    undo_rules(container, selected)
    foreign += _revoke(container, own, foreign)
    unrevoked += _unrevoked(container, own)
    left = undo_files(container, selected, writer)
    left += _unmount(container, [place for each in foreign for place in own[each].places])
    journal.commit(remaining)
    had = tuple([owner for owner in chosen if owner in owners or owner in foreign])
    # Last: looking at files can hang where they are on FUSE.
    holders = _holders(container, _numbers(selected, own))
    return Detached(had, tuple(foreign), selected, tuple(left), tuple(unrevoked), holders)


def _split(
    steps: tuple[Step, ...], chosen: tuple[str, ...]
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Return the steps to undo, and those that stay because a device that stays needs them."""
    others = {step.owner for step in steps if not is_shared(step.owner)} - {*chosen}
    needed = {step.path for step in steps if is_needed(step.owner, others)}
    undone, kept = [], []
    for step in steps:
        if is_needed(step.owner, others):
            kept.append(step)
        elif step.kind == DIRECTORY and any(path.startswith(step.path + "/") for path in needed):
            kept.append(replace(step, owner=""))
        else:
            undone.append(step)
    return tuple(undone), tuple(kept)


def _forget(container: LiveContainer, rules: list[DeviceRule]) -> list[Left]:
    """Take devices off the list of the container's systemd unit, which a reload would follow."""
    unit = cgroup.unit_of(container.process) if rules else ""
    if unit:
        try:
            systemd.forget(unit, rules)
        except HostError as error:
            return [(f"DeviceAllow of {unit}", str(error))]
    return []


# ---- what the container has from its creation, or from someone else ----


def _inventory(settings: Config) -> Inventory | None:
    """Return the host's inventory, None where the driver has gone: the journal is enough then."""
    try:
        return pipeline.inventory(settings, capabilities=DRM_CAPABILITIES)
    except HostError:
        return None


def _foreign(container: LiveContainer, own: dict[str, Belonging]) -> list[str]:
    """Return which devices the container has without inject's doing."""
    steps = container.journal.steps
    recorded = {step.path for step in steps if step.kind == MOUNT}
    granted = {step.owner for step in steps if step.kind == RULES}
    open_to_it = openable(own, container) if container.access.restricts() else ()
    found = []
    for owner, each in own.items():
        has_node = each.places[0] not in recorded and container.rootfs.has(each.places[0])
        # Its node may be inject's, and the rule older: then both have to go.
        if has_node or (owner in open_to_it and owner not in granted):
            found.append(owner)
    return found


def _revoke(container: LiveContainer, own: dict[str, Belonging], foreign: list[str]) -> list[str]:
    """Deny what can still be opened; return the owners that are not among the foreign ones yet."""
    still = openable(own, container) if container.access.restricts() else []
    for owner in dict.fromkeys([*foreign, *still]):
        container.access.revoke(own[owner].rules)
        boundary()
    return [owner for owner in still if owner not in foreign]


def _unrevoked(container: LiveContainer, own: dict[str, Belonging]) -> list[Left]:
    """Return which devices can be opened in spite of all, and why."""
    still = [own[owner].places[0] for owner in openable(own, container)]
    if not container.access.directories:
        why = "the container is in nvhook's own cgroup, which is left alone"
    elif not container.access.restricts():
        why = "the container may open every device"
    else:
        why = "a wider rule (c MAJOR:* rw) allows it"
    return [(place, f"{why}: access can't be revoked") for place in still]


def _unmount(container: LiveContainer, places: list[str]) -> list[Left]:
    """Unmount nodes and files; where they were made, they stay."""
    left: list[Left] = []
    if container.changed:
        return [(place, container.changed) for place in places]
    if places:
        with container.process.mount_namespace():
            for place in places:
                why = container.rootfs.unmount(place)
                if why:
                    left.append((place, why))
    return left


# ---- who holds it ----


def _numbers(steps: Iterable[Step], own: dict[str, Belonging]) -> dict[tuple[int, int], str]:
    """Return whose a device is, by (major, minor)."""
    found = {}
    for step in steps:
        if step.kind == RULES and step.owner:
            owner = step.owner.partition("/")[0] if is_shared(step.owner) else step.owner
            found.update({rule[1:3]: owner for rule in rules_of(step.new)})
    for owner, each in own.items():
        found.update({rule[1:3]: owner for rule in each.rules})
    return found


def _holders(
    container: LiveContainer, numbers: dict[tuple[int, int], str]
) -> dict[int, tuple[str, ...]]:
    held = container.holders(numbers)
    return {
        pid: tuple(sorted({numbers[each] for each in devices if each in numbers}))
        for pid, devices in sorted(held.items())
    }
