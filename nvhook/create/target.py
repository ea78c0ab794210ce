"""A container that is created but not yet pivoted, opened to be changed."""

from __future__ import annotations

import os

from nvhook.errors import ContainerError
from nvhook.kernel import mountinfo
from nvhook.kernel.process import Process
from nvhook.kernel.root import Root


class Target:
    """A container to change: its process and its root."""

    __slots__ = ("host_mounts", "process", "rootfs")

    def __init__(self, pid: int, root_path: str) -> None:
        """Open a created container.

        Raises: ContainerError if pid is not in a mount namespace of its own, or has no such root.
        """
        self.process = Process(pid)
        if self.process.shares_namespace("mnt"):
            raise ContainerError(
                f"process {pid} is in the host's mount namespace: not a container",
                "the state names a process that has ended, or the container has no mount namespace",
            )
        fd = self.process.open_directory(root_path)
        root, host = os.fstat(fd), os.stat("/")
        if (root.st_dev, root.st_ino) == (host.st_dev, host.st_ino):
            raise ContainerError("the container's root is the host's own root directory")
        # Once: on a node with thousands of mounts the kernel takes milliseconds to write it.
        self.host_mounts = mountinfo.table()
        table = self.process.read("mountinfo", mountinfo.MAX_BYTES)
        self.rootfs = Root(fd, self.process.root_ids(), table, self.host_mounts)
