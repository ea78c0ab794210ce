"""Device programs attached to a cgroup v2 directory: read, patch and swap them.

A program is replaced in one step. Detaching first would leave the cgroup open to every device for
the moment in between.
"""

from __future__ import annotations

import os
from errno import EACCES, EINVAL, ENOENT, ENOSPC, EPERM

from nvhook._native import SyscallError, call, ffi, lib
from nvhook.errors import ContainerError, NvhookError, UnsupportedError
from nvhook.kernel import bpf
from nvhook.kernel.device_rules import MAX_MINOR, canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from nvhook.kernel.device_rules import DeviceRule

    # Programs as they were found: whether of a directory above, before, after.
    Seen: TypeAlias = "list[tuple[bool, bytes, bytes]]"

ALLOW_MULTI = 2  # BPF_F_ALLOW_MULTI: programs of the directory and its ancestors are ANDed

REPLACE = 4  # BPF_F_REPLACE, Linux 5.6
BPF_F_QUERY_EFFECTIVE = 1  # with the programs of the directories above
MAX_PROGRAMS = 64  # the kernel's limit for one cgroup
MAX_BYTES = 1 << 20
TRIES = 10
LOG_BYTES = 1 << 16
HARDENED = "set net.core.bpf_jit_harden to 1, or put the devices into the container's spec"


def attached(cgroup: int, query: int = 0) -> tuple[tuple[int, ...], int]:
    """Return the ids of the programs attached to the directory itself, and how they are attached.

    query: BPF_F_QUERY_EFFECTIVE for those of the directories above, too.

    Raises: NvhookError.
    """
    ids = ffi.new("uint32_t[]", MAX_PROGRAMS)
    flags = ffi.new("uint32_t *")
    try:
        count = call(lib.nvh_bpf_query, cgroup, query, ids, MAX_PROGRAMS, flags)
    except SyscallError as error:
        if error.errno == EINVAL:  # a kernel without device programs
            return (), 0
        if error.errno == ENOSPC:
            raise UnsupportedError("too many device programs on one cgroup") from error
        raise failed("query device programs", error) from error
    return tuple(ids[0:count]), flags[0]


def allow(cgroup: int, rules: tuple[DeviceRule, ...], seen: Seen | None = None) -> tuple[str, ...]:
    """Put the rules in front of every program of the directory; return what was swapped.

    Another process (systemd, a runtime's update) may swap at the same time: start again then.
    seen: gets each program as it was found and as it is now.

    Raises: NvhookError; no program is changed if one of them can't be.
    """
    check_above(cgroup, rules, seen)
    return rewrite(cgroup, rules, seen=seen)


def rewrite(
    cgroup: int,
    allowed: tuple[DeviceRule, ...],
    taken: tuple[DeviceRule, ...] = (),
    refused: tuple[DeviceRule, ...] = (),
    seen: Seen | None = None,
) -> tuple[str, ...]:
    """Put rules in front of every program of the directory; return what was swapped.

    taken: rules that go from there; refused: those that are denied where the program behind allows
    them.

    Raises: NvhookError; no program is changed if one of them can't be.
    """
    done: list[str] = []
    for _ in range(TRIES):
        patches: list[Patch] = []
        try:
            ids, flags = attached(cgroup)
            for number in ids:
                patches.append(Patch(number, allowed, taken, refused))  # noqa: PERF401 - what was opened must be closed
            swapped = [patch.swap(cgroup, flags) for patch in patches if patch.new >= 0]
            done += [line for line in swapped if line]
            if all(swapped):
                if seen is not None:
                    seen += [(False, patch.before, patch.after) for patch in patches]
                return tuple(done)
        except ProgramGoneError:
            continue
        finally:
            for patch in patches:
                patch.close()
    raise ContainerError("the container's device programs keep changing", "try again")


def check_above(cgroup: int, rules: tuple[DeviceRule, ...], seen: Seen | None = None) -> None:
    """Make sure that no directory above denies what the rules allow: all programs must agree.

    A program that can't be read or followed is left to the kernel's judgement.

    Raises: ContainerError.
    """
    own, _ = attached(cgroup)
    effective, _ = attached(cgroup, BPF_F_QUERY_EFFECTIVE)
    for number in effective:
        if number in own:
            continue
        try:
            closed = denied(number, rules, seen)
        except UnsupportedError:
            continue
        for kind, major, minor, access in closed:
            raise ContainerError(
                f"a cgroup above the container's denies the device {kind} {major}:{minor} "
                f"{access} (program {number})",
                "allow it there first: systemctl set-property SLICE DeviceAllow=...",
            )


def denied(
    number: int, rules: tuple[DeviceRule, ...], seen: Seen | None = None
) -> tuple[DeviceRule, ...]:
    """Return the rules that a program does not allow; one that has gone denies nothing.

    Raises: UnsupportedError if it can't be read or followed; NvhookError.
    """
    try:
        program = open_program(number)
    except ProgramGoneError:
        return ()
    try:
        insns = instructions(program)
        decoded = bpf.decode(insns)
        if seen is not None:
            seen.append((True, insns, insns))
        return tuple([rule for rule in rules if not bpf.run(decoded, rule)])
    finally:
        os.close(program)


class ProgramGoneError(ContainerError):
    """A program was replaced by someone else between looking and touching."""


class Patch:
    """One attached program and, if its rules change, its loaded replacement (``new`` >= 0)."""

    __slots__ = ("after", "before", "id", "new", "old")

    def __init__(
        self,
        number: int,
        allowed: tuple[DeviceRule, ...],
        taken: tuple[DeviceRule, ...] = (),
        refused: tuple[DeviceRule, ...] = (),
    ) -> None:
        self.id = number
        self.new = -1
        self.old = open_program(number)
        try:
            insns = self.before = self.after = instructions(self.old)
            had, original = bpf.split(insns)
            kept = _without(had or (), taken) + _denials(refused, original)
            wanted = canonical(kept + allowed, denials=True)
            if wanted != (had or ()):
                patched = bpf.prologue(wanted) + original if wanted else original
                # Where a denial goes, all that the program behind allows comes back.
                lifted = tuple([(*rule[:3], "rwm") for rule in had or () if not rule[3]])
                check(insns, patched, wanted + taken + lifted, allowed)
                self.new = load(patched, name_of(self.old))
                self.after = patched
        except NvhookError:
            self.close()
            raise

    def swap(self, cgroup: int, flags: int) -> str:
        """Replace the old program; return what was done, or nothing if the old one is not there."""
        try:
            if flags & ALLOW_MULTI:
                call(lib.nvh_bpf_prog_attach, cgroup, self.new, ALLOW_MULTI | REPLACE, self.old)
            else:  # one program only, and attaching replaces it
                call(lib.nvh_bpf_prog_attach, cgroup, self.new, flags, -1)
            return f"program {self.id} -> {call(lib.nvh_bpf_prog_id, self.new)}"
        except SyscallError as error:
            if error.errno != ENOENT:
                raise failed("replace a device program", error) from error
        from nvhook.kernel.program_links import update_link  # rare: systemd and runtimes use none

        if not update_link(cgroup, self.id, self.new, self.old):
            return ""
        return f"program {self.id} -> a new one on its link"

    def close(self) -> None:
        """Close both descriptors; what is attached stays attached."""
        for fd in (self.old, self.new):
            if fd >= 0:
                os.close(fd)
        self.old = self.new = -1


def _without(
    rules: tuple[DeviceRule, ...], taken: tuple[DeviceRule, ...]
) -> tuple[DeviceRule, ...]:
    devices = {rule[:3] for rule in taken}
    return tuple([rule for rule in rules if rule[:3] not in devices])


def _denials(refused: tuple[DeviceRule, ...], original: bytes) -> tuple[DeviceRule, ...]:
    """Return denials of what the original program allows to open, be it for reading only."""
    if not refused:
        return ()
    code = bpf.decode(original)
    return tuple(
        [
            (*rule[:3], "")
            for rule in refused
            if any(bpf.run(code, (*rule[:3], access)) for access in "rw")
        ]
    )


def open_program(number: int) -> int:
    """Return a descriptor of the program with this id.

    Raises: ProgramGoneError, NvhookError.
    """
    try:
        return call(lib.nvh_bpf_prog_fd, number)
    except SyscallError as error:
        if error.errno == ENOENT:
            raise ProgramGoneError(f"device program {number} has gone") from error
        raise failed("open a device program", error) from error


def instructions(program: int) -> bytes:
    """Return a program as it can be loaded again.

    Raises: UnsupportedError if the kernel hides it or its constants.
    """
    try:
        size = call(lib.nvh_bpf_prog_xlated, program, ffi.NULL, 0)
        if size > MAX_BYTES:
            raise UnsupportedError(f"a device program of {size} bytes is too large")
        buffer = ffi.new("char[]", size)
        call(lib.nvh_bpf_prog_xlated, program, buffer, size)
    except SyscallError as error:
        if error.errno == EACCES:
            raise UnsupportedError("the kernel hides device programs", HARDENED) from error
        raise failed("read a device program", error) from error
    insns = bytes(ffi.buffer(buffer, size))
    if bpf.blinded(insns):
        raise UnsupportedError("the kernel hides the device program's constants", HARDENED)
    return insns


def name_of(program: int) -> bytes:
    """Return the name the program was loaded with, often empty."""
    buffer = ffi.new("char[16]")
    try:
        call(lib.nvh_bpf_prog_name, program, buffer)
    except SyscallError as error:
        raise failed("read a device program's name", error) from error
    name: bytes = ffi.string(buffer)
    return name


def load(insns: bytes, name: bytes) -> int:
    """Load a program and return its descriptor.

    Raises: UnsupportedError if the kernel refuses it, or keeps something else than was given.
    """
    count = len(insns) // bpf.INSN
    try:
        program = call(lib.nvh_bpf_prog_load, insns, count, name, ffi.NULL, 0)
    except SyscallError as error:
        log = ffi.new("char[]", LOG_BYTES)
        _load_with_log(insns, count, name, log)
        lines = ffi.string(log).decode("ascii", "replace").splitlines() or [error.strerror]
        reason = "; ".join(lines[-3:])
        raise UnsupportedError(f"the kernel refuses the patched program: {reason}") from error
    try:
        kept = instructions(program) == insns
    except NvhookError:
        os.close(program)
        raise
    if not kept:
        os.close(program)
        raise UnsupportedError("the kernel has rewritten the patched device program")
    return program


def check(
    old: bytes, new: bytes, allowed: tuple[DeviceRule, ...], asked: tuple[DeviceRule, ...]
) -> None:
    """Make sure that the patched program allows what is asked, and decides the rest as before.

    Raises: UnsupportedError.
    """
    before, after = bpf.decode(old), bpf.decode(new)
    for rule in asked:
        if not bpf.run(after, rule):
            raise UnsupportedError(f"the patched device program would not allow {rule}")
    kind, major, minor, _ = (asked or allowed)[0]
    probes = [
        (kind, major, (minor + 1) % (MAX_MINOR + 1), "rw"),
        ("c", 1, 3, "rw"),
        ("b", 8, 0, "r"),
    ]
    if asked:
        probes.append((kind, major, minor, "rwm"))
    for probe in probes:
        if not bpf.covered(probe, allowed) and bpf.run(before, probe) != bpf.run(after, probe):
            raise UnsupportedError(f"the patched device program would change {probe}")


def _load_with_log(insns: bytes, count: int, name: bytes, log: object) -> None:
    try:
        os.close(call(lib.nvh_bpf_prog_load, insns, count, name, log, LOG_BYTES))
    except SyscallError:
        return  # as before; what is wanted is the log


def failed(what: str, error: SyscallError) -> NvhookError:
    """Return the error for a call of bpf(2); what: a verb and its object."""
    hint = "needs root with CAP_SYS_ADMIN and Linux 5.6"
    if error.errno == EPERM:
        hint += "; device-rules = false leaves the rules to a rootless engine"
    return ContainerError(f"can't {what}: {error.strerror}", hint)
