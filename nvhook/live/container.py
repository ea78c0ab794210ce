"""A running container, opened to be changed: its process pinned, its journal locked."""

from __future__ import annotations

import os

from nvhook.errors import ContainerError
from nvhook.kernel import mountinfo
from nvhook.kernel.device_access import DeviceAccess
from nvhook.kernel.live_process import (
    PinnedProcess,
    first_process,
    identity_of,
    namespace,
    open_devices,
    open_root,
    processes,
    sharing,
    start_time,
    start_time_of,
    why_strange,
)
from nvhook.kernel.root import CONTENT, LINK, MOUNT, Root
from nvhook.live.journal import Journal, Step, digest, forget, names, rules_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.kernel.container_cgroups import Directory
    from nvhook.kernel.device_rules import DeviceRule
    from nvhook.kernel.root import Step as RootStep


class LiveContainer:
    """A container that runs. ``owner`` is what the next announced steps are for (journal.Step)."""

    def __init__(self, pid: int, state_directory: str, force: bool = False) -> None:
        """Open the container of a process, wait for other nvhook processes, lock its journal.

        force: also a process in the host's own mount namespace or root directory.

        Raises: ContainerError; HostError; FormatError.
        """
        self.process = PinnedProcess(pid)
        if not force and self.process.shares_namespace("mnt"):
            raise ContainerError(
                f"process {pid} is in the host's mount namespace: not a container",
                "give a process of the container, or --force if the host itself is meant",
            )
        self.init = first_process(self.process)
        fd = open_root(self.init)
        root, host = os.fstat(fd), os.stat("/")
        self.is_host = (root.st_dev, root.st_ino) == (host.st_dev, host.st_ino)
        if self.is_host and not force:
            raise ContainerError(
                f"the root of process {pid} is the host's own root directory: not a container",
                "give a process of the container, or --force if the host itself is meant",
            )
        self.owner = ""
        # Why it is not the container that a runtime has made; nothing is changed in it then.
        self.strange = "" if force else why_strange(self.process, self.init, fd)
        cgroup = self.init.read("cgroup").decode("utf-8", "surrogateescape")
        identity = identity_of(self.init, fd, cgroup)
        _sweep(state_directory)
        name = f"{self.init.pid}-{start_time(self.init)}"
        self.journal = Journal(state_directory, name, boot_id(), identity)
        try:  # only now: while this one waited, another nvhook may have changed the mounts
            host_mounts = mountinfo.table()
            table = self.init.read("mountinfo", mountinfo.MAX_BYTES)
            # Who is root in what it has made itself does not matter: nothing is made there.
            owner = None if self.strange else self.init.root_ids()
            elsewhere = host_mounts + _mounts_elsewhere(self.init)
            confined = not self.init.shares_namespace("user")
            self.rootfs = Root(fd, owner, table, elsewhere, self._announce, confined)
            # By the caller's own mounts alone: others' are what a container wants them to be.
            self.access = DeviceAccess(self.process, self.init, host_mounts)
        except BaseException:
            self.journal.close()
            raise

    @property
    def changed(self) -> str:
        """Why the container's files are left alone; nothing where they are those of the journal."""
        if self.strange or self.journal.is_of_this:
            return self.strange
        return "the container's root, namespaces or cgroup are not those that inject has changed"

    def announce_rules(
        self,
        directory: Directory,
        rules: tuple[DeviceRule, ...],
        before: tuple[DeviceRule, ...],
    ) -> None:
        """Write down device rules, and what was there, before they are given in a directory."""
        numbers = (directory.version,)
        new, old = rules_text(rules), rules_text(before)
        self.journal.add(Step("rules", self.owner, directory.path, new, old, numbers))

    def _announce(self, step: RootStep) -> None:
        new = ""
        if step.kind == LINK:
            new = step.new.decode("utf-8", "surrogateescape")
        elif step.kind == CONTENT and step.new:
            new = digest(step.new)
        numbers = step.identity if step.kind in (MOUNT, CONTENT) else ()
        self.journal.add(Step(step.kind, self.owner, step.path, new, step.old, numbers))

    def holders(self, devices: Iterable[tuple[int, int]]) -> dict[int, set[tuple[int, int]]]:
        """Return which of the container's processes hold which character devices open."""
        wanted = tuple(devices)
        found = {}
        for pid in sharing(self.process, ("mnt", "pid")):
            held = open_devices(pid, wanted)
            if held:
                found[pid] = held
        return found

    def close(self) -> None:
        """Let other nvhook processes go on."""
        self.journal.close()
        self.access.close()
        self.rootfs.close()
        if self.init is not self.process:
            self.init.close()
        self.process.close()

    def __enter__(self) -> LiveContainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mounts_elsewhere(init: PinnedProcess) -> bytes:
    """Return the mountinfo of all other mount namespaces, but not of the container's.

    An engine may have a mount namespace of its own: what only that has is no container's.
    """
    tables = []
    seen = {namespace("self", "mnt"), namespace(init.pid, "mnt")}
    pids = namespace(init.pid, "pid")
    ours = namespace("self", "pid")
    for pid in processes():
        mounts = namespace(pid, "mnt")
        if not mounts or mounts in seen or (pids != ours and namespace(pid, "pid") == pids):
            continue
        seen.add(mounts)
        try:
            tables.append(mountinfo.table(pid=pid))
        except ContainerError:
            continue  # it has ended, and its mounts with it
    return b"".join(tables)


def boot_id() -> str:
    """Return what tells this boot of the machine from another."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def process_of(name: str) -> int:
    """Return the first process of the container of a journal."""
    return int(name.split("-", maxsplit=1)[0])


def is_running(name: str) -> bool:
    """Tell whether the container of a journal is still there."""
    return str(start_time_of(process_of(name))) == name.split("-")[1]


def _sweep(state_directory: str) -> None:
    """Forget the containers that have gone."""
    for name in names(state_directory):
        if not is_running(name):
            forget(state_directory, name)
