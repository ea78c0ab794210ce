"""Become an MPS control daemon: what a child process runs (see mps.py)."""

import os
import signal
import sys

import prctl

from nvhook._native import SyscallError, call, lib
from nvhook.errors import ContainerError
from nvhook.kernel import mounts

SHM = "/dev/shm"  # noqa: S108 - where CUDA's processes meet
_CLONE_NEWNS = 0x00020000
_AT_RECURSIVE = 0x8000
_MS_SLAVE = 1 << 19


def start(control: str, shm: str) -> None:
    """Run the daemon in the foreground, with ``shm`` as its /dev/shm.

    The clients have that directory for /dev/shm, too, and not the host's own.
    """
    # TERM, not KILL: it takes its server along.
    prctl.set_pdeathsig(signal.SIGTERM)
    try:
        if not os.path.samefile(shm, SHM):
            _mount(shm)
        os.execv(control, [control, "-f"])  # noqa: S606 - no shell is the point
    except (OSError, SyscallError, ContainerError) as error:
        sys.exit(str(error))


def _mount(shm: str) -> None:
    """Put a directory over /dev/shm, for this process and those it starts."""
    call(lib.nvh_unshare, _CLONE_NEWNS)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    call(lib.nvh_mount_setattr, root, _AT_RECURSIVE, 0, 0, _MS_SLAVE)
    there = os.open(SHM, os.O_PATH | os.O_DIRECTORY)
    call(lib.nvh_move_mount, mounts.clone(shm, ("nosuid", "nodev", "noexec")), there)
