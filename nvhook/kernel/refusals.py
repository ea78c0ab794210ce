"""Why nvhook does not touch something in a container's root, as errors a person can act on."""

from __future__ import annotations

import errno
import stat

from nvhook._native import call, lib
from nvhook.errors import ContainerError

TMPFS_MAGIC = 0x01021994
# Kernel interfaces: a link of the image may lead there, a mount or a file never.
_KERNEL_FILESYSTEMS = {
    0x9FA0: "procfs",
    0x62656572: "sysfs",
    0x27E0EB: "cgroup",
    0x63677270: "cgroup2",
    0xCAFE4A11: "bpf",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0x62656570: "configfs",
    0xDE5E81E4: "efivarfs",
    0x1CD1: "devpts",
}

_TYPES = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFIFO: "fifo",
}


class NoPlaceError(ContainerError):
    """What is missing can't be made where it belongs: a volume, or a read-only file system."""


def refuse_kernel_filesystem(fd: int, path: str) -> None:
    """Raise ContainerError if an open file or directory is on procfs, sysfs and their like."""
    magic = call(lib.nvh_filesystem_magic, fd)
    if magic in _KERNEL_FILESYSTEMS:
        raise kernel_files(path, magic)


def kernel_files(path: str, magic: int) -> ContainerError:
    """Return the error for a path that leads into a file system of the kernel's own."""
    return ContainerError(
        f"{path} of the image leads into {_KERNEL_FILESYSTEMS[magic]}",
        "the image or a volume redirects a driver path; nothing was changed there",
    )


def keeps_changing(path: str) -> ContainerError:
    """Return the error for a path that could not be resolved."""
    return ContainerError(
        f"{path} keeps changing while it is resolved",
        "something renames directories of the container's root at this moment",
    )


def on_a_volume(path: str) -> NoPlaceError:
    """Return the error for something missing on a volume of the host."""
    return NoPlaceError(
        f"{path} is on a volume of the host, where nvhook makes nothing",
        "mount the volume elsewhere, or leave this directory to the image",
    )


def failed(what: str, path: str, error: OSError) -> ContainerError:
    """Return the error for a system call that failed; what: a verb."""
    hint = {
        errno.EROFS: "a read-only volume or file system is mounted there",
        errno.ELOOP: "the image has a link where a driver file goes",
        errno.EEXIST: "the image has a dangling link where a driver file goes",
        errno.ENOTDIR: "the image has a file where a directory goes",
        errno.EBUSY: "it is a mount of its own: remove that volume",
    }.get(error.errno or 0, "")
    kind = NoPlaceError if error.errno == errno.EROFS else ContainerError
    return kind(f"can't {what} {path} in the container: {error.strerror}", hint)


def wrong_type(path: str, mode: int, wanted: str) -> ContainerError:
    """Return the error for something of another type than is wanted (mode: its st_mode)."""
    found = _TYPES.get(stat.S_IFMT(mode), "special file")
    return ContainerError(
        f"the image has a {found} at {path}, where {wanted} is needed",
        "remove it from the image: driver files come from the host",
    )
