"""Detached mounts: cloned from host files outside, moved onto descriptors inside a container."""

from __future__ import annotations

from nvhook._native import call, lib

MS_PRIVATE = 1 << 18

_ATTRIBUTES = {"ro": 0x1, "nosuid": 0x2, "nodev": 0x4, "noexec": 0x8}
_ALL = 0xF


def clone(path: str, options: tuple[str, ...]) -> int:
    """Return a detached private bind mount of a host file, with exactly these options.

    Private, because with shared propagation a container could mount over the host's own file.
    Raises: SyscallError.
    """
    wanted = attributes(options)
    return call(lib.nvh_clone_mount, path.encode(), wanted, _ALL & ~wanted, MS_PRIVATE)


def clone_tree(root: int) -> int:
    """Return a detached copy of a root with all its mounts, where no device can be opened.

    Only the root's own mount can be written: below it are volumes of the host, too.
    Raises: SyscallError.
    """
    return call(lib.nvh_clone_tree, root, attributes(("nosuid", "nodev")), attributes(("ro",)))


def tmpfs(mode: str = "0555", size: str = "64k") -> int:
    """Return a detached, empty, writable tmpfs (nosuid, nodev, noexec)."""
    return call(lib.nvh_tmpfs, mode.encode(), size.encode())


def set_options(mount: int, options: tuple[str, ...]) -> None:
    """Give a mount exactly these options."""
    wanted = attributes(options)
    call(lib.nvh_mount_setattr, mount, 0, wanted, _ALL & ~wanted, 0)


def attributes(options: tuple[str, ...]) -> int:
    """Return mount options as the kernel's MOUNT_ATTR_ flags."""
    wanted = 0
    for option in options:
        wanted |= _ATTRIBUTES[option]
    return wanted
