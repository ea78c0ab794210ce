"""Small files in nvhook's state directory: read only what can be trusted, replace atomically."""

import os
from stat import S_IMODE, S_ISDIR, S_ISREG

DIRECTORY = "/run/nvhook"


def read(path: str, limit: int) -> bytes | None:
    """Return the content of a trusted regular file of at most limit bytes, otherwise None.

    Trusted: not a symbolic link, owned by root or the caller, writable by nobody else.
    """
    # O_NONBLOCK: a FIFO planted under this name must not hang the caller.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not S_ISREG(status.st_mode) or S_IMODE(status.st_mode) & 0o022:
            return None
        if status.st_uid not in {0, os.geteuid()} or status.st_size > limit:
            return None
        data = os.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        os.close(fd)
    return data if len(data) == status.st_size else None


def write(path: str, data: bytes) -> bool:
    """Replace a file (0644) in one step, making its directory (0755).

    Returns False where that can't be done: a cache that can't be written is no reason to fail.
    A reader sees the old content or the new one, never a part.
    """
    # Random, because the process number is not unique across pid namespaces that share /run.
    temporary = f"{path}.{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    directory = os.path.dirname(path)
    try:
        if not os.path.isdir(directory):
            make_directory(directory)
        fd = os.open(temporary, flags, 0o644)
    except OSError:
        return False
    try:
        try:
            os.fchmod(fd, 0o644)
            complete = os.write(fd, data) == len(data)
        finally:
            os.close(fd)
        if complete:
            os.rename(temporary, path)
            return True
    except OSError:
        pass
    try:
        os.unlink(temporary)
    except OSError:
        pass
    return False


def make_private(path: str, below: str) -> None:
    """Make a directory, and one below it that is root's alone, whatever the umask.

    Raises: OSError, also where the one below is someone else's.
    """
    make_directory(path)
    try:
        os.mkdir(below, 0o700)
        os.chmod(below, 0o700)
    except FileExistsError:
        status = os.lstat(below)
        if not S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(1, f"{below} is not root's alone") from None


def make_directory(path: str) -> None:
    """Make a directory (0755) and those above it.

    Raises: OSError.
    """
    os.makedirs(path, 0o755, exist_ok=True)
    os.chmod(path, 0o755)  # noqa: S103 - whatever the umask of the engine
