"""Take GPUs from a container that runs, and undo what inject's journal says.

Access goes first: a device that can't be opened any more is not used while its node disappears.
"""

from nvhook import pipeline
from nvhook.core.catalog import DRM_CAPABILITIES, PROC_DRIVER
from nvhook.errors import ContainerError, FormatError, HostError
from nvhook.formats import ldcache
from nvhook.journal import MOUNT, RULES, boundary
from nvhook.kernel import cgroup, systemd
from nvhook.kernel.live_root import digest
from nvhook.kernel.restoring_root import CONTENT, DIRECTORY, FILE, LINK, OldFile
from nvhook.live_container import rules_of
from nvhook.loader_cache import LD_SO_CACHE
from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from nvhook.config import Config
    from nvhook.core.inventory import Gpu, Inventory
    from nvhook.journal import Step, Work
    from nvhook.kernel.device_rules import DeviceRule
    from nvhook.kernel.live_root import LiveRoot
    from nvhook.live_container import LiveContainer

Left = tuple[str, str]  # what stays, and why


class Detached(Record):
    """What eject did: GPUs by PCI bus id, steps undone, what stays, who holds devices open.

    ``foreign`` are GPUs that were given at the container's creation. ``holders`` maps pids to bus
    ids.
    """

    __slots__ = ("foreign", "gpus", "holders", "left", "recovered", "steps")

    def __init__(
        self,
        gpus: tuple[str, ...],
        foreign: tuple[str, ...],
        steps: "tuple[Step, ...]",
        left: tuple[Left, ...],
        holders: dict[int, tuple[str, ...]],
        recovered: str,
    ) -> None:
        self.gpus: Final = gpus
        self.foreign: Final = foreign
        self.steps: Final = steps
        self.left: Final = left
        self.holders: Final = holders
        self.recovered: Final = recovered


def eject(
    container: "LiveContainer", gpus: "tuple[Gpu, ...] | None", settings: "Config"
) -> Detached:
    """Take GPUs away, None: all that the container has.

    Raises: NvhookError.
    """
    recovered = recover(container, settings)
    container.process.check()
    host = _inventory(settings)
    if gpus is None:
        given = list(container.journal.gpus)
        given += [gpu.pci_bus_id for gpu in _had(container, host)]
        chosen = tuple(dict.fromkeys(given))
    else:
        chosen = tuple([gpu.pci_bus_id for gpu in gpus])
    return _eject(container, chosen, host, recovered)


def recover(container: "LiveContainer", settings: "Config") -> str:
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
    _eject(container, work.gpus, _inventory(settings), "")
    return "an eject that was killed is completed"


def _eject(
    container: "LiveContainer", chosen: tuple[str, ...], host: "Inventory | None", recovered: str
) -> Detached:
    journal = container.journal
    selected, remaining = _split(journal.steps, chosen)
    gpus = {gpu.pci_bus_id: gpu for gpu in host.gpus} if host is not None else {}
    numbers = _numbers(selected, chosen, gpus, host)
    foreign = _foreign(container, chosen, gpus, numbers)
    if not selected and not foreign and journal.work is None:
        return Detached((), (), (), (), {}, recovered)
    writer = journal.work
    journal.begin("eject", chosen)
    forgotten = [rule for step in selected if step.kind == RULES for rule in rules_of(step)]
    forgotten += [rule for bus in foreign for rule in _rules(bus, numbers)]
    left = _forget(container, forgotten)
    left += undo(container, selected, writer)
    for bus in foreign:
        left += _take_foreign(container, gpus[bus], host, numbers)
    journal.commit(remaining)
    held = container.holders(numbers)  # last: looking at files can hang where they are on FUSE
    holders = {
        pid: tuple(sorted({numbers[each] for each in devices if each in numbers}))
        for pid, devices in sorted(held.items())
    }
    owners = {step.owner for step in selected}
    had = tuple([bus for bus in chosen if bus in owners or bus in foreign])
    return Detached(had, foreign, selected, tuple(left), holders, recovered)


def _forget(container: "LiveContainer", rules: "list[DeviceRule]") -> list[Left]:
    """Take devices off the list of the container's systemd unit, which a reload would follow."""
    unit = cgroup.unit_of(container.process) if rules else ""
    if unit:
        try:
            systemd.forget(unit, rules)
        except HostError as error:
            return [(f"DeviceAllow of {unit}", str(error))]
    return []


def _split(
    steps: "tuple[Step, ...]", chosen: tuple[str, ...]
) -> "tuple[tuple[Step, ...], tuple[Step, ...]]":
    """Return the steps to undo, and those that stay: the driver's while another GPU is there."""
    others = {step.owner for step in steps} - {"", *chosen}
    if not others:
        return steps, ()
    stay = [step for step in steps if step.owner not in chosen]
    needed = {step.path for step in stay}
    undone, kept = [], []
    for step in steps:
        if step.owner not in chosen:
            kept.append(step)
        elif step.kind == DIRECTORY and any(path.startswith(step.path + "/") for path in needed):
            kept.append(step.replace(owner=""))
        else:
            undone.append(step)
    return tuple(undone), tuple(kept)


def undo(container: "LiveContainer", steps: "tuple[Step, ...]", work: "Work | None") -> list[Left]:
    """Undo steps, rules first, then the newest first; doing it again changes nothing.

    work: the unfinished work of a process that was killed, or of this one.
    """
    left: list[Left] = []
    for step in reversed(steps):
        if step.kind == RULES:
            container.access.revoke(rules_of(step), step.path, step.numbers[0])
            boundary()
    inside = [step for step in reversed(steps) if step.kind != RULES]
    if not inside:
        return left
    contents: dict[str, list[Step]] = {}
    for step in steps:
        if step.kind == CONTENT:
            contents.setdefault(step.path, []).append(step)
    libraries = {step.path for step in steps if step.kind in {MOUNT, LINK}}
    with container.process.mount_namespace():
        for step in inside:
            try:  # what the container does to its own files must not hold up the rest
                if work is not None and step.kind in {CONTENT, LINK}:
                    container.rootfs.remove_temporary(step.path, work.writer)
                if step.kind == CONTENT:
                    same = contents.pop(step.path, [])
                    why = _give_back(container.rootfs, step.path, same, libraries)
                else:
                    why = _undo(container.rootfs, step)
            except ContainerError as error:
                why = error.message
            if why:
                left.append((step.path, why))
            boundary()
    container.rootfs.forget()
    return left


def _undo(rootfs: "LiveRoot", step: "Step") -> str:
    if step.kind == MOUNT:
        device, inode = step.numbers
        return rootfs.unmount(step.path, (device, inode))
    if step.kind in {DIRECTORY, FILE}:
        return rootfs.remove(step.path, step.kind)
    if step.kind == LINK and not isinstance(step.old, OldFile):
        return rootfs.give_back_link(step.path, step.new, step.old)
    raise FormatError(f"the journal has a step of an unknown kind: {step.kind}")


def _give_back(rootfs: "LiveRoot", path: str, steps: "list[Step]", libraries: "set[str]") -> str:
    """Give a file back as it was before the first of steps (oldest first)."""
    if not steps:  # done with a newer step of the same file
        return ""
    first = steps[0].old
    old = first if isinstance(first, OldFile) else None
    now = rootfs.read(path, ldcache.MAX_BYTES)
    if now is None or (old is not None and now == old.data):
        return ""
    if steps[-1].new in {"", digest(now)}:
        return rootfs.give_back_file(path, old)
    known = {step.new for step in steps[:-1]}
    if digest(now) in known:
        return rootfs.give_back_file(path, old)
    if path != LD_SO_CACHE:
        return "the container has changed it since"
    # The container ran its own ldconfig: only what is ours goes.
    try:
        cache = ldcache.parse(now)
        entries = [entry for entry in cache.entries if not _is_ours(entry.path, libraries)]
        if len(entries) == len(cache.entries):
            return ""
        data = ldcache.render(cache.replace(entries=tuple(entries)))
    except FormatError as error:
        return str(error)
    return rootfs.give_back_file(path, OldFile(data, 0o644, rootfs.owner))


def _is_ours(path: str, libraries: "set[str]") -> bool:
    return path in libraries or f"/usr{path}" in libraries


# ---- GPUs that the container has from its creation ----


def _inventory(settings: "Config") -> "Inventory | None":
    """Return the host's inventory, None where the driver has gone: the journal is enough then."""
    try:
        return pipeline.inventory(settings, capabilities=DRM_CAPABILITIES)
    except HostError:
        return None


def _numbers(
    steps: "Iterable[Step]",
    chosen: tuple[str, ...],
    gpus: "dict[str, Gpu]",
    host: "Inventory | None",
) -> dict[tuple[int, int], str]:
    """Return the device numbers of the GPUs: PCI bus id by (major, minor)."""
    found = {}
    for step in steps:
        if step.kind == RULES and step.owner in chosen:
            found.update({rule[1:3]: step.owner for rule in rules_of(step)})
    major = host.majors.get("nvidia") if host is not None else None
    for bus in chosen:
        if major is not None and bus in gpus:
            found[major, gpus[bus].minor] = bus
    for each in host.drm if host is not None else ():
        if each.pci_bus_id in chosen:
            found[each.node.major, each.node.minor] = each.pci_bus_id
    return found


def _had(container: "LiveContainer", host: "Inventory | None") -> "list[Gpu]":
    """Return the GPUs that the container has: by their nodes, or by a rule for a node elsewhere."""
    if host is None:
        return []
    major = host.majors.get("nvidia")
    restricted = major is not None and container.access.restricts()
    return [
        gpu
        for gpu in host.gpus
        if container.rootfs.has(f"/dev/nvidia{gpu.minor}")
        or (restricted and container.access.allows(("c", major or 0, gpu.minor, "rw")))
    ]


def _foreign(
    container: "LiveContainer",
    chosen: tuple[str, ...],
    gpus: "dict[str, Gpu]",
    numbers: dict[tuple[int, int], str],
) -> tuple[str, ...]:
    """Return which of the chosen GPUs the container has without inject's doing."""
    steps = container.journal.steps
    recorded = {step.path for step in steps if step.kind == MOUNT}
    granted = {step.owner for step in steps if step.kind == RULES}
    restricted = container.access.restricts()
    found = []
    for bus in chosen:
        node = f"/dev/nvidia{gpus[bus].minor}" if bus in gpus else ""
        # Its node may be inject's, and the rule older: then both have to go.
        if not node or (node in recorded and (bus in granted or not restricted)):
            continue
        allowed = any(container.access.allows(rule) for rule in _rules(bus, numbers))
        if allowed or (node not in recorded and container.rootfs.has(node)):
            found.append(bus)
    return tuple(found)


def _rules(bus: str, numbers: dict[tuple[int, int], str]) -> "list[DeviceRule]":
    return [("c", *each, "rw") for each, owner in numbers.items() if owner == bus]


def _take_foreign(
    container: "LiveContainer",
    gpu: "Gpu",
    host: "Inventory | None",
    numbers: dict[tuple[int, int], str],
) -> list[Left]:
    """Revoke access to a GPU and unmount its nodes; where they were made, the rest stays."""
    left: list[Left] = []
    node = f"/dev/nvidia{gpu.minor}"
    rules = _rules(gpu.pci_bus_id, numbers)
    container.access.revoke(rules)
    if not container.access.restricts():
        left.append((node, "the container may open every device: access can't be revoked"))
    elif any(container.access.allows(rule) for rule in rules):
        left.append((node, "a wider rule (c MAJOR:* rw) allows it: access can't be revoked"))
    boundary()
    places = [node, f"{PROC_DRIVER}/gpus/{gpu.pci_bus_id}"]
    drm = host.drm if host is not None else ()
    places += [f"/dev/{each.node.name}" for each in drm if each.pci_bus_id == gpu.pci_bus_id]
    with container.process.mount_namespace():
        for path in places:
            why = container.rootfs.unmount_all(path)
            if why:
                left.append((path, why))
    return left
