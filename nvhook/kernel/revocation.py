"""Device rules taken out of the programs of a cgroup v2 directory again, or denied there."""

from __future__ import annotations

import os

from nvhook.kernel import bpf, programs
from nvhook.kernel.device_rules import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.kernel.device_rules import DeviceRule


def revoke(cgroup: int, rules: tuple[DeviceRule, ...]) -> tuple[str, ...]:
    """Deny rules in every program of the directory; return what was swapped.

    A program that allows a device by itself, as a runtime's does for what its configuration lists,
    gets a denial in front.

    Raises: NvhookError; no program is changed if one of them can't be.
    """
    return programs.rewrite(cgroup, (), taken=rules, refused=rules)


def take_back(
    cgroup: int, rules: tuple[DeviceRule, ...], refused: tuple[DeviceRule, ...]
) -> tuple[str, ...]:
    """Take out what programs.allow() put in front; the directory decides as it did before.

    refused: what was denied then (denials()).

    Raises: NvhookError; no program is changed if one of them can't be.
    """
    return programs.rewrite(cgroup, (), taken=rules, refused=refused)


def denials(cgroup: int, rules: tuple[DeviceRule, ...]) -> tuple[DeviceRule, ...]:
    """Return which devices of rules revoke() has denied here: rules without any access.

    Raises: NvhookError.
    """
    devices = {rule[:3] for rule in rules}
    found: list[DeviceRule] = []
    for number in programs.attached(cgroup)[0]:
        try:
            program = programs.open_program(number)
        except programs.ProgramGoneError:
            continue
        try:
            had, _ = bpf.split(programs.instructions(program))
        finally:
            os.close(program)
        found += [rule for rule in had or () if rule[:3] in devices and not rule[3]]
    return canonical(found, denials=True)
