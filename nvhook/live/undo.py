"""Undo what inject's journal says, for eject and for an inject that has failed or was killed."""

from __future__ import annotations

import os

from nvhook.create.loader_cache import LD_SO_CACHE
from nvhook.errors import ContainerError, FormatError
from nvhook.formats import ldcache
from nvhook.kernel.root import CONTENT, LINK, MOUNT, OldFile
from nvhook.kernel.root import Step as RootStep
from nvhook.live.journal import RULES, boundary, digest, rules_of
from nvhook.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.kernel.root import Root
    from nvhook.live.container import LiveContainer
    from nvhook.live.journal import Step, Work

Left = tuple[str, str]  # what stays, and why


def undo(container: LiveContainer, steps: tuple[Step, ...], work: Work | None) -> list[Left]:
    """Undo steps, rules first; doing it again changes nothing.

    work: the unfinished work of a process that was killed, or of this one.
    """
    undo_rules(container, steps)
    return undo_files(container, steps, work)


def undo_rules(container: LiveContainer, steps: Iterable[Step]) -> None:
    """Take device rules back, in each cgroup the newest first."""
    rules = [step for step in steps if step.kind == RULES][::-1]
    # A denial in v1 reaches the directories below, where it may take more than was given there.
    for step in sorted(rules, key=lambda step: step.path.count("/")):
        before = step.old if isinstance(step.old, str) else ""
        given = rules_of(step.new), rules_of(before)
        container.access.take_back(*given, step.path, step.numbers[0])
        boundary()


def undo_files(container: LiveContainer, steps: tuple[Step, ...], work: Work | None) -> list[Left]:
    """Take back mounts, links and files, the newest first."""
    left: list[Left] = []
    inside = [step for step in reversed(steps) if step.kind != RULES]
    if not inside:
        return left
    if container.changed:
        return [(step.path, container.changed) for step in inside]
    contents: dict[str, list[Step]] = {}
    for step in steps:
        if step.kind == CONTENT:
            contents.setdefault(step.path, []).append(step)
    libraries = {step.path for step in steps if step.kind in {MOUNT, LINK}}
    with container.process.mount_namespace():
        for step in inside:
            try:  # what the container does to its own files must not hold up the rest
                if work is not None and step.kind in {CONTENT, LINK}:
                    container.rootfs.tidy(step.path, work.writer)
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


def _undo(rootfs: Root, step: Step) -> str:
    device, inode = step.numbers or (0, 0)
    return rootfs.undo(
        RootStep(step.kind, step.path, os.fsencode(step.new), step.old, (device, inode))
    )


def _give_back(rootfs: Root, path: str, steps: list[Step], libraries: set[str]) -> str:
    """Give a file back as it was before the first of steps (oldest first)."""
    if not steps:  # done with a newer step of the same file
        return ""
    first = steps[0].old
    old = first if isinstance(first, OldFile) else None
    now = rootfs.read(path, ldcache.MAX_BYTES)
    if now is None or (old is not None and now == old.data):
        return ""
    if steps[-1].new in {"", digest(now)}:
        return _restore(rootfs, steps[0], old)
    known = {step.new for step in steps[:-1]}
    if digest(now) in known:
        return _restore(rootfs, steps[0], old)
    if path != LD_SO_CACHE:
        return "the container has changed it since"
    # The container ran its own ldconfig: only what is ours goes.
    try:
        cache = ldcache.parse(now)
        entries = [entry for entry in cache.entries if not _is_ours(entry.path, libraries)]
        if len(entries) == len(cache.entries):
            return ""
        data = ldcache.render(replace(cache, entries=tuple(entries)))
    except FormatError as error:
        return str(error)
    return _restore(rootfs, steps[0], OldFile(data, 0o644, rootfs.owner))


def _restore(rootfs: Root, step: Step, old: OldFile | None) -> str:
    device, inode = step.numbers
    return rootfs.undo(RootStep(CONTENT, step.path, old=old, identity=(device, inode)))


def _is_ours(path: str, libraries: set[str]) -> bool:
    return path in libraries or f"/usr{path}" in libraries
