"""Locks on files, held while a process lives; one that is dying does not keep others waiting."""

import fcntl
import os
import time

_PAUSE = 0.01  # seconds between two tries
_KILLED = 1 << (9 - 1)


def take(path: str) -> int:
    """Wait for the lock on a file, which is made; return the descriptor that holds it.

    A holder that was killed while it waits for a file system that does not answer ends only when
    that does, and never goes on: it is passed over.

    Raises: OSError.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        held = _try(fd)
        while not held and not _is_dying(_holder(fd)):
            time.sleep(_PAUSE)
            held = _try(fd)
        try:
            same = os.stat(path).st_ino == os.fstat(fd).st_ino
        except FileNotFoundError:
            same = False
        if held and same:
            return fd
        if same:
            os.unlink(path)
        os.close(fd)  # who had it before has removed it, or never will


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> int:
    """Return the process that holds a lock, 0 if none is found.

    Source: proc_locks(5).
    """
    inode = str(os.fstat(fd).st_ino)
    with open("/proc/locks", encoding="ascii") as file:
        for line in file:
            fields = line.split()
            if fields[1:2] == ["FLOCK"] and fields[5].rpartition(":")[2] == inode:
                return int(fields[4])
    return 0


def _is_dying(pid: int) -> bool:
    """Tell whether a process has been killed and can't end."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            pending = [line.split()[1] for line in file if line.startswith(("SigPnd", "ShdPnd"))]
    except OSError:
        return False
    return any(int(each, 16) & _KILLED for each in pending)
