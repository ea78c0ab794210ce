"""Replace a file or a link in one step, by the descriptor of its directory."""

import posix


def _temporary(parent: int) -> str:
    """Return a free name for a file that is renamed at once; a killed run may have left one."""
    name = f".nvhook-{posix.getpid()}"
    try:
        posix.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    return name


def replace_link(parent: int, name: str, target: str) -> None:
    """Make name a link to target, whatever link or file it was.

    Raises: OSError; nothing is changed then.
    """
    temporary = _temporary(parent)
    posix.symlink(target, temporary, dir_fd=parent)
    try:
        posix.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        posix.unlink(temporary, dir_fd=parent)
        raise


def replace_file(
    parent: int, name: str, data: bytes, mode: int, owner: tuple[int, int] | None = None
) -> None:
    """Make name a regular file with these bytes, permissions and (uid, gid), by default ours.

    Raises: OSError; nothing is changed then.
    """
    temporary = _temporary(parent)
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    fd = posix.open(temporary, flags, mode, dir_fd=parent)
    try:
        if owner is not None:
            posix.fchown(fd, *owner)
        posix.fchmod(fd, mode)
        view = memoryview(data)
        while view:
            view = view[posix.write(fd, view) :]
        posix.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        posix.unlink(temporary, dir_fd=parent)
        raise
    finally:
        posix.close(fd)
