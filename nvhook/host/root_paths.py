"""Paths inside a driver root: links, absolute ones too, are followed inside it and never leave it.

A driver root may be another system's tree (a driver container at /run/nvidia/driver), where an
absolute link means that system's file, not the host's.
"""

import errno
import os
import stat

from nvhook import observations

# The kernel's own limit (MAXSYMLINKS in include/linux/namei.h).
MAX_LINKS = 40


def join_root(root: str, path: str) -> str:
    """Return an absolute path inside a root with the root in front."""
    return root.rstrip("/") + path


def resolve(root: str, path: str) -> str | None:
    """Return path without links, as seen inside root; None if it does not exist or loops."""
    found = open_path(root, path)
    if found is None:
        return None
    os.close(found[0])
    return found[1]


def open_path(root: str, path: str) -> tuple[int, str] | None:
    """Return an O_PATH descriptor of a file inside root, and its path there without links.

    The caller closes the descriptor. Every component is opened relative to the descriptor of the
    one before, so that nobody can move the walk out of the root between two steps.
    """
    try:
        opened = [os.open(root or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    except OSError as error:
        if observations.is_absent(error):
            return None
        raise observations.unknown(root, error) from error
    try:
        names = _walk(opened, path)
        if names is None:
            return None
        return opened.pop(), "/" + "/".join(names)
    finally:
        for fd in opened:
            os.close(fd)


def _walk(opened: list[int], path: str) -> list[str] | None:
    """Walk from opened[0], the root; leave the descriptors of the resolved components in opened."""
    names: list[str] = []
    pending = path.split("/")[::-1]
    links = 0
    while pending:
        name = pending.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if names:
                names.pop()
                os.close(opened.pop())
            continue
        try:
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened[-1])
        except ValueError:  # a zero byte in a link's name can't be
            return None
        except OSError as error:
            if observations.is_absent(error) or error.errno == errno.ENAMETOOLONG:
                return None
            raise observations.unknown(path, error) from error
        opened.append(fd)
        names.append(name)
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            continue
        links += 1
        if links > MAX_LINKS:
            return None
        target = os.readlink("", dir_fd=fd)
        os.close(opened.pop())
        names.pop()
        if target.startswith("/"):
            while len(opened) > 1:
                os.close(opened.pop())
            names.clear()
        pending.extend(target.split("/")[::-1])
    return names


def read_link(root: str, path: str) -> str | None:
    """Return the target of a link inside root as it stands there, None for what is no link."""
    directory, _, name = path.rpartition("/")
    found = open_path(root, directory or "/")
    if found is None:
        return None
    try:
        return os.readlink(name, dir_fd=found[0])
    except OSError:
        return None
    finally:
        os.close(found[0])


def open_file(root: str, path: str) -> tuple[int, str] | None:
    """Return a readable descriptor of a regular file inside root and its path there without links.

    None for anything that is not a regular file: opening a fifo or a device would block or act.
    """
    found = open_path(root, path)
    if found is None:
        return None
    fd, resolved = found
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY), resolved
    except OSError:
        return None
    finally:
        os.close(fd)


def list_directory(root: str, path: str) -> tuple[list[str], str] | None:
    """Return the sorted names in a directory inside root and its path there without links."""
    found = open_path(root, path)
    if found is None:
        return None
    fd, resolved = found
    try:
        names = os.listdir(f"/proc/self/fd/{fd}")
    except OSError:
        return None
    finally:
        os.close(fd)
    return sorted(names), resolved
