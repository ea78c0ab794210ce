"""Which devices a process may open: computed from all that decides about its cgroup.

A rule list of v1 that allows everything does not show its exceptions, and a program may be too odd
to be followed: then only a trial tells (trial_open).
"""

from __future__ import annotations

import os

from nvhook.errors import ContainerError, FormatError, UnsupportedError
from nvhook.kernel import programs
from nvhook.kernel.cgroup import ENDED, EVERYTHING, covers, read_list
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.kernel.cgroup import DeviceCgroup
    from nvhook.kernel.device_rules import DeviceRule


@record
class Verdict:
    """Whether a device is permitted, None where that can't be computed, and who says so."""

    rule: DeviceRule
    allowed: bool | None
    why: str = ""


def verdicts(found: DeviceCgroup, rules: Iterable[DeviceRule]) -> tuple[Verdict, ...]:
    """Return for each device what the rule lists of v1 and all programs up the tree of v2 say.

    Raises: NvhookError if they can't be read.
    """
    wanted = tuple(rules)
    if not found.v1 and (found.v1 == () or not found.v2):
        why = "it shares the cgroup of the caller"
        return tuple([Verdict(rule, None, why) for rule in wanted])
    denied: dict[DeviceRule, str] = {}
    unknown = ""
    for directory in found.v1 or ():
        listed = device_list(directory)
        for rule in wanted:
            if EVERYTHING not in listed and not covers(listed, rule):
                denied.setdefault(rule, f"devices.list of the cgroup {_path(directory)}")
    for number, where in _programs(found.v2 or ()):
        closed, trouble = _denied(number, wanted)
        denied = dict.fromkeys(closed, where) | denied
        unknown = f"{where}: {trouble}" if trouble else unknown
    undenied = None if unknown else True
    return tuple(
        [
            Verdict(rule, False, denied[rule])
            if rule in denied
            else Verdict(rule, undenied, unknown)
            for rule in wanted
        ]
    )


def _denied(number: int, rules: tuple[DeviceRule, ...]) -> tuple[tuple[DeviceRule, ...], str]:
    """Return what a program denies, and why that can't be told."""
    try:
        return programs.denied(number, rules), ""
    except (FormatError, UnsupportedError) as error:
        return (), error.message


def device_list(directory: int) -> list[str]:
    """Return what a v1 directory allows, a line for each entry.

    Raises: ContainerError.
    """
    try:
        return read_list(directory)
    except OSError as error:
        why = f"can't read the device rules of {_path(directory)}: {error.strerror}"
        raise ContainerError(why, ENDED) from error


def _programs(directories: tuple[int, ...]) -> list[tuple[int, str]]:
    """Return every program that decides, and where it is attached; directories: lowest first."""
    if not directories:
        return []
    own: dict[int, str] = {}
    for directory in directories:
        above = ", above the container's" if own else ""
        for number in programs.attached(directory)[0]:
            own[number] = f"program {number} of the cgroup {_path(directory)}{above}"
    effective = programs.attached(directories[0], programs.BPF_F_QUERY_EFFECTIVE)[0]
    return [
        (number, own.get(number, f"program {number} of a cgroup above")) for number in effective
    ]


def _path(directory: int) -> str:
    return os.readlink(f"/proc/self/fd/{directory}")
