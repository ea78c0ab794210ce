"""Small files in nvhook's state directory: read only what can be trusted, replace atomically."""

import posix
from _stat import S_IMODE, S_ISREG

DIRECTORY = "/run/nvhook"


def read(path: str, limit: int) -> bytes | None:
    """Return the content of a trusted regular file of at most limit bytes, otherwise None.

    Trusted: not a symbolic link, owned by root or the caller, writable by nobody else.
    """
    # O_NONBLOCK: a FIFO planted under this name must not hang the caller.
    flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
    try:
        fd = posix.open(path, flags)
    except OSError:
        return None
    try:
        status = posix.fstat(fd)
        if not S_ISREG(status.st_mode) or S_IMODE(status.st_mode) & 0o022:
            return None
        if status.st_uid not in {0, posix.geteuid()} or status.st_size > limit:
            return None
        data = posix.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        posix.close(fd)
    return data if len(data) == status.st_size else None


def write(path: str, data: bytes) -> bool:
    """Replace a file (0644) in one step, making its directory (0755).

    Returns False where that can't be done: a cache that can't be written is no reason to fail.
    A reader sees the old content or the new one, never a part.
    """
    import os  # 1.5 ms that a hook with a warm cache does not pay

    # Random, because the process number is not unique across pid namespaces that share /run.
    temporary = f"{path}.{os.urandom(6).hex()}"
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    directory = os.path.dirname(path)
    try:
        if not os.path.isdir(directory):
            make_directory(directory)
        fd = posix.open(temporary, flags, 0o644)
    except OSError:
        return False
    try:
        try:
            posix.fchmod(fd, 0o644)
            complete = posix.write(fd, data) == len(data)
        finally:
            posix.close(fd)
        if complete:
            posix.rename(temporary, path)
            return True
    except OSError:
        pass
    try:
        posix.unlink(temporary)
    except OSError:
        pass
    return False


def make_directory(path: str) -> None:
    """Make a directory (0755) and those above it.

    Raises: OSError.
    """
    import os

    os.makedirs(path, 0o755, exist_ok=True)
    os.chmod(path, 0o755)  # noqa: S103 - whatever the umask of the engine
