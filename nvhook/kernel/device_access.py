"""Which devices a running container may open: look, grant, revoke, in all of its cgroups."""

from __future__ import annotations

from nvhook.errors import ContainerError, UnsupportedError
from nvhook.kernel import cgroup, programs, revocation
from nvhook.kernel.container_cgroups import ContainerCgroups
from nvhook.kernel.device_rules import canonical
from nvhook.kernel.device_verdict import device_list, verdicts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from nvhook.kernel.container_cgroups import Directory
    from nvhook.kernel.device_rules import DeviceRule
    from nvhook.kernel.process import Process

    Device: TypeAlias = tuple[str, int, int]  # ("c", major, minor)
    # Told of a directory, the rules it will get, and what it says of their devices before.
    Announce: TypeAlias = (
        "Callable[[Directory, tuple[DeviceRule, ...], tuple[DeviceRule, ...]], None]"
    )


class DeviceAccess:
    """The cgroup directories that decide about a container, the topmost of each hierarchy first."""

    __slots__ = ("_cgroups", "directories")

    def __init__(self, process: Process, init: Process, host_mounts: bytes | None = None) -> None:
        """Open them; init is the container's first process.

        Raises: ContainerError; HostError; FormatError.
        """
        self._cgroups = ContainerCgroups(process, init, host_mounts)
        self.directories = self._cgroups.directories

    def grant(self, rules: Iterable[DeviceRule], announce: Announce) -> tuple[str, ...]:
        """Allow rules where they are missing; each directory's are announced before.

        Raises: NvhookError.
        """
        wanted = canonical(rules)
        done: list[str] = []
        for each in self.directories:
            missing = self.missing(each, wanted)
            if not missing:
                continue
            announce(each, missing, _entries(each, missing))
            done += _allow(each, missing)
        lowest = [each.fd for each in self.directories if each.version == 2]
        if lowest and wanted:  # an open program of its own does not help below a closed one
            programs.check_above(lowest[-1], wanted)
        return tuple(done)

    def grant_again(
        self, rules: tuple[DeviceRule, ...], path: str, version: int
    ) -> tuple[str, ...]:
        """Allow rules in one directory where they were before; say what had to be done.

        Raises: NvhookError.
        """
        each = self._cgroups.at(path, version)
        missing = self.missing(each, rules) if each is not None else None
        return _allow(each, missing) if each is not None and missing else ()

    @staticmethod
    def missing(
        directory: Directory, rules: tuple[DeviceRule, ...]
    ) -> tuple[DeviceRule, ...] | None:
        """Return what a directory denies of rules, None if it restricts nothing.

        In v1 access that a line for just that device has is left out: the kernel joins the two, and
        taking the rest away again leaves that line.

        Raises: NvhookError.
        """
        if directory.version == 1:
            listed = device_list(directory.fd)
            if cgroup.EVERYTHING in listed:
                return None
            closed = [rule for rule in rules if not cgroup.covers(listed, rule)]
            own = [cgroup.exact(listed, rule) for rule in closed]
            return tuple(
                [
                    (*rule[:3], "".join([letter for letter in rule[3] if letter not in had]))
                    for rule, had in zip(closed, own, strict=True)
                ]
            )
        ids, _ = programs.attached(directory.fd)
        if not ids:
            return None
        denied = {rule for number in ids for rule in _denied(number, rules)}
        return tuple([rule for rule in rules if rule in denied])

    def openable(self, devices: Iterable[Device]) -> set[Device]:
        """Return which devices can be opened, be it for reading only.

        Every directory must allow it, and in v2 those above, too.

        Raises: NvhookError.
        """
        v1, v2 = [
            tuple([each.fd for each in reversed(self.directories) if each.version == version])
            for version in (1, 2)
        ]
        rules = [(*device, access) for device in devices for access in "rw"]
        answers = verdicts(cgroup.DeviceCgroup(v1 or None, v2), rules)
        return {each.rule[:3] for each in answers if each.allowed is not False}

    def restricts(self) -> bool:
        """Tell whether any directory denies any device.

        Raises: NvhookError.
        """
        return any(self.missing(each, ()) is not None for each in self.directories)

    def revoke(self, rules: Iterable[DeviceRule]) -> None:
        """Deny rules in every directory; one that restricts nothing is left alone.

        In v1 a wider rule (``c 195:* rw``) still allows a single device afterwards: ask openable().

        Raises: NvhookError.
        """
        wanted = canonical(rules)
        for each in self.directories:
            if each.version == 1:
                _change_v1(each, wanted, ())
            elif cgroup.has_programs(each.fd):
                revocation.revoke(each.fd, wanted)

    def take_back(
        self,
        rules: tuple[DeviceRule, ...],
        before: tuple[DeviceRule, ...],
        path: str,
        version: int,
    ) -> None:
        """Take from one directory what grant() gave it, so that it says what it said before.

        before: what was announced with it. In v1 a denial reaches the directories below: begin with
        the topmost.

        Raises: NvhookError.
        """
        each = self._cgroups.at(path, version)
        if each is None:
            return
        if version == 1:
            _change_v1(each, rules, before)
        elif cgroup.has_programs(each.fd):
            revocation.take_back(each.fd, rules, before)

    def close(self) -> None:
        """Close all directories."""
        self._cgroups.close()


def _allow(each: Directory, rules: tuple[DeviceRule, ...]) -> tuple[str, ...]:
    """Allow what is missing in a directory; say what was done."""
    if each.version == 1:
        cgroup.write_allowed(each.fd, rules)
        return (f"v1: {each.path}: {len(rules)} rules",)
    return tuple([f"v2: {each.path}: {line}" for line in programs.allow(each.fd, rules)])


def _denied(number: int, rules: tuple[DeviceRule, ...]) -> tuple[DeviceRule, ...]:
    try:
        return programs.denied(number, rules)
    except UnsupportedError:
        return ()  # left to the kernel's judgement


def _entries(each: Directory, rules: tuple[DeviceRule, ...]) -> tuple[DeviceRule, ...]:
    """Return what a directory says of just these devices: v1 lines, denials that are ours in v2."""
    if each.version == 2:
        return revocation.denials(each.fd, rules)
    listed = device_list(each.fd)
    own = [(*rule[:3], cgroup.exact(listed, rule)) for rule in rules]
    return tuple([rule for rule in own if rule[3]])


def _change_v1(
    each: Directory, denied: tuple[DeviceRule, ...], allowed: tuple[DeviceRule, ...]
) -> None:
    """Deny rules, and allow others."""
    if cgroup.EVERYTHING in device_list(each.fd):
        return
    cgroup.write_denied(each.fd, denied)
    try:
        cgroup.write_allowed(each.fd, allowed)
    except ContainerError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        # A directory above allows it no more: others' doing, which must not hold up the rest.
