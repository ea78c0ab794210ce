"""NVIDIA's device nodes and sockets: they come and go while a machine runs, so never cached."""

import os
import stat

from nvhook import observations
from nvhook.core.catalog import CONTROL_NODES, SOCKETS
from nvhook.core.inventory import HostFile, HostNode
from nvhook.formats.proc_driver import is_decimal
from nvhook.host.root_paths import join_root, open_path


def find_nodes(dev_root: str) -> tuple[HostNode, ...]:
    """Return the control nodes in catalogue order, then the GPUs' nodes by number.

    A link or a plain file of such a name is no device node and is left out.
    """
    directory = dev_root.rstrip("/")
    present = observations.names(directory, "nvidia") or ()
    gpus = [name for name in present if name.startswith("nvidia") and is_decimal(name[6:])]
    names = [name for name in CONTROL_NODES if name in present]
    names += sorted(gpus, key=lambda name: int(name[6:]))
    nodes = [read_node(directory, name) for name in names]
    return tuple([node for node in nodes if node is not None])


def read_node(directory: str, name: str) -> HostNode | None:
    """Return the character device of this name below a directory, None if it is none."""
    path = f"{directory}/{name}"
    status = observations.node(path)
    if status is None or not stat.S_ISCHR(status.st_mode):
        return None
    return HostNode(
        name=name,
        host_path=path,
        major=os.major(status.st_rdev),
        minor=os.minor(status.st_rdev),
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
    )


def find_sockets(driver_root: str) -> tuple[HostFile, ...]:
    """Return the sockets of the driver's daemons and the pipe directory of MPS."""
    found = []
    seen = set()
    for groups in SOCKETS.values():
        for alternatives in groups:
            for path in alternatives:
                resolved = _socket(driver_root, path)
                if resolved is not None and resolved not in seen:
                    seen.add(resolved)
                    host_path = join_root(driver_root, resolved)
                    found.append(HostFile("socket", path, resolved, host_path))
                    break
    return tuple(found)


def _socket(driver_root: str, path: str) -> str | None:
    opened = open_path(driver_root, path)
    if opened is None:
        observations.place(driver_root, path, None)
        return None
    fd, resolved = opened
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    observations.place(driver_root, path, status, resolved)
    if stat.S_ISSOCK(status.st_mode):
        return resolved
    # /tmp is everyone's: a link there, or a directory of some user's making, would put a tree of
    # that user's choice into every GPU container.
    is_trusted = resolved == path and status.st_uid in (0, os.geteuid())
    return resolved if stat.S_ISDIR(status.st_mode) and is_trusted else None
