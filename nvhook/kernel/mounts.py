"""Detached mounts: cloned from host files before entering a container, moved onto descriptors there."""

import os
import stat

from nvhook._native import call
from nvhook.errors import ContainerError

OPEN_TREE_CLONE = 1
AT_SYMLINK_NOFOLLOW = 0x100
AT_FDCWD = -100
MS_PRIVATE = 1 << 18

_ATTRIBUTES = {"ro": 0x1, "nosuid": 0x2, "nodev": 0x4, "noexec": 0x8}
_ALL = 0xF


def clone(path: str, options: tuple[str, ...]) -> int:
    """Return a detached private bind mount of a host file, with exactly these options.

    Private, because with shared propagation a container could mount over the host's own file.
    Raises: SyscallError.
    """
    tree = call("open_tree", AT_FDCWD, path.encode(), OPEN_TREE_CLONE | AT_SYMLINK_NOFOLLOW)
    set_options(tree, options, MS_PRIVATE)
    return tree


def tmpfs(mode: str = "0555", size: str = "64k") -> int:
    """Return a detached, empty, writable tmpfs (nosuid, nodev, noexec)."""
    return call("tmpfs", mode.encode(), size.encode())


def set_options(mount: int, options: tuple[str, ...], propagation: int = 0) -> None:
    """Give a mount exactly these options."""
    wanted = 0
    for option in options:
        wanted |= _ATTRIBUTES[option]
    call("mount_setattr", mount, 0, wanted, _ALL & ~wanted, propagation)


def attach(mount: int, target: int) -> bool:
    """Move a detached mount onto a target descriptor; False if the same file is there already."""
    source, there = os.fstat(mount), os.fstat(target)
    same = (source.st_dev, source.st_ino) == (there.st_dev, there.st_ino)
    if same and stat.S_IFMT(source.st_mode) == stat.S_IFMT(there.st_mode):
        return False
    call("move_mount", mount, target)
    return True


def refuse_shared(target: int, shared: "frozenset[int]", path: str) -> None:
    """Refuse a target whose mount propagates to the host: our mount would stay there for ever.

    shared: the ids of the container's mounts with a ``shared:`` tag in mountinfo.
    """
    if shared and call("mount_id", target) in shared:
        raise ContainerError(
            f"{path} is on a volume with shared propagation: mounts would leak to the host",
            "mount the volume elsewhere, or with rslave",
        )
