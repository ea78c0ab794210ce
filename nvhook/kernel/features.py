"""What this kernel can do, found out by trying it without leaving a trace."""

from __future__ import annotations

import os
from errno import EBADF, EINVAL

from nvhook._native import SyscallError, call, ffi, lib
from nvhook.kernel import bpf, programs
from nvhook.kernel.mounts import clone
from nvhook.kernel.process import RESOLVE_IN_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvhook.kernel.mountinfo import MountInfo

V1, V2, HYBRID = "v1", "v2", "hybrid"
NO_SUCH_FD = (1 << 31) - 1  # beyond what any process may have open
# r0 = 1; exit: a program that allows everything, and is never attached.
_ALLOW_ALL = b"\xb7\x00\x00\x00\x01\x00\x00\x00" + bytes((bpf.EXIT,)) + bytes(7)


def cgroup_mode(mounts: Iterable[MountInfo]) -> str:
    """Return which cgroup hierarchies decide about devices: v1, v2, hybrid (both), or nothing."""
    kinds = set()
    for mount in mounts:
        if mount.fs_type == "cgroup2":
            kinds.add(V2)
        elif mount.fs_type == "cgroup" and "devices" in mount.super_options:
            kinds.add(V1)
    return HYBRID if len(kinds) == 2 else "".join(kinds)


def missing(cgroup2: str | None) -> dict[str, str]:
    """Return why each feature that nvhook needs does not work, nothing for those that do.

    cgroup2 is where cgroup v2 is mounted, None where it is not. Without root most are refused, and
    the reason says so.
    """
    tries: dict[str, Callable[[], int]] = {
        "openat2 (Linux 5.6)": _openat2,
        "open_tree and mount_setattr (Linux 5.12)": _mount_setattr,
        "pidfd_open (Linux 5.3)": lambda: call(lib.nvh_pidfd_open, os.getpid()),
    }
    if cgroup2 is not None:
        tries["replacing device programs (Linux 5.6)"] = lambda: _bpf_replace(cgroup2)
    reasons = {name: _try(attempt) for name, attempt in tries.items()}
    return {name: why for name, why in reasons.items() if why}


def _try(attempt: Callable[[], int]) -> str:
    """Return why it fails, nothing if it does not; what it opens is closed."""
    try:
        fd = attempt()
    except OSError as error:
        return error.strerror or str(error)
    if fd >= 0:
        os.close(fd)
    return ""


def _openat2() -> int:
    flags = os.O_PATH | os.O_DIRECTORY
    root = os.open("/", flags | os.O_CLOEXEC)
    try:
        return call(lib.nvh_openat2, root, b".", flags, 0, RESOLVE_IN_ROOT)
    finally:
        os.close(root)


def _mount_setattr() -> int:
    # Attached to nothing: the clone ends with its descriptor.
    return clone("/dev/null", ("ro", "nosuid", "noexec"))


def _bpf_replace(cgroup2: str) -> int:
    """Ask to replace a program that is none: a kernel that can looks for it and finds nothing."""
    directory = os.open(cgroup2, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    program = -1
    try:
        program = call(lib.nvh_bpf_prog_load, _ALLOW_ALL, 2, b"", ffi.NULL, 0)
        flags = programs.ALLOW_MULTI | programs.REPLACE
        call(lib.nvh_bpf_prog_attach, directory, program, flags, NO_SUCH_FD)
    except SyscallError as error:
        if error.errno != EBADF:
            raise
    else:
        raise SyscallError(EINVAL, "bpf_prog_attach")  # can't be: nothing was named
    finally:
        os.close(directory)
        if program >= 0:
            os.close(program)
    return -1
