"""Plan -> a container that is created but not yet pivoted.

Phases: open the target; open the host's sources; the device rules; in the container's mount
namespace mounts, nodes, links, files and the loader cache. Nothing is imported inside: the
container's files could be what is found. The calling process has one thread and enters itself; a
forked child would cost 2 ms.
"""

import posix

from nvhook._native import SyscallError, call
from nvhook.core.edits import (
    AdditionalGid,
    CgroupRule,
    DeviceNode,
    EnvVar,
    LdCacheUpdate,
    Mount,
    Symlink,
    TextFile,
)
from nvhook.create import loader_cache
from nvhook.create.sources import open_source
from nvhook.errors import ContainerError, FormatError, HostError, NvhookError, assert_never
from nvhook.kernel import mounts
from nvhook.kernel.refusals import TMPFS_MAGIC, NoPlaceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from nvhook.core.edits import Edit, Plan
    from nvhook.create.target import Target
    from nvhook.kernel.process import Process
    from nvhook.kernel.rootfs import Rootfs
    from nvhook.log import Log

    class Container(Protocol):
        """What is changed: a Target, or a container that runs."""

        @property
        def process(self) -> Process: ...
        @property
        def rootfs(self) -> Rootfs: ...
        @property
        def shared(self) -> frozenset[int]: ...


def apply(plan: "Plan", target: "Target", machine: str, log: "Log") -> None:
    """Apply a plan; on failure the container's root is left as it was.

    Raises: NvhookError naming the edit that failed.
    """
    rules = rules_of(plan)
    cgroup = None
    if rules:
        from nvhook.kernel import cgroup as device_cgroup  # not loaded where rules are off

        cgroup = device_cgroup.find(target.process.pid, host_mounts=target.host_mounts)
    work = Application(target, machine)
    work.leave_out_absent(plan.edits)
    sources = [
        (edit, None if work.is_closed(edit) else open_source(edit, log)) for edit in plan.edits
    ]
    if cgroup is not None:
        # Before anything else: a cgroup above may refuse, and rules end with the cgroup.
        for note in cgroup.allow([(r.type, r.major, r.minor, r.access) for r in rules]):
            log.info("device rules", done=note)
    with target.process.mount_namespace():
        work.run(sources)
    for note in work.notes:
        log.info(note)
    if work.unreadable_cache:
        try:
            from nvhook.create.ldconfig import rebuild_cache  # rare, and 30 ms of imports

            rebuild_cache(plan, target.process, target.rootfs, work.unreadable_cache, log)
        except NvhookError:
            with target.process.mount_namespace():
                work.undo()
            raise


def rules_of(plan: "Plan") -> list[CgroupRule]:
    """Return the device rules of a plan."""
    return [edit for edit in plan.edits if isinstance(edit, CgroupRule)]


def keep_over_reload(rules: "Iterable[CgroupRule]", process: "Process", log: "Log") -> None:
    """Let systemd know of a container's devices, where the container's cgroup is a unit of its.

    It installs its own list again at every daemon-reload: without this the GPU is lost then. Until
    then the container works: what goes wrong here is a warning.
    """
    from nvhook.kernel import cgroup as device_cgroup

    wanted = [(rule.type, rule.major, rule.minor, rule.access) for rule in rules]
    try:
        unit = device_cgroup.unit_of(process) if wanted else ""
    except ContainerError as error:
        log.warning("systemd is not told", why=error)
        return
    if not unit:
        return
    from nvhook.kernel import systemd

    try:
        log.info("systemd", done=systemd.allow(unit, wanted))
    except HostError as error:
        log.warning("systemctl daemon-reload will take the GPU away", why=error)


class Application:
    """The state of one run inside the container's mount namespace."""

    def __init__(self, target: "Container", machine: str) -> None:
        self.rootfs = target.rootfs
        self.shared = target.shared
        self.machine = machine
        self.doing = ""
        self.notes: list[str] = []
        self.unreadable_cache = ""
        self.mounted: list[str] = []
        self.tmpfs: list[tuple[int, tuple[str, ...]]] = []
        # Container paths that are not there after all: their links and cache entries go, too.
        self.left_out: set[str] = set()
        # Prefixes below /proc where nothing can be made: absent in this kernel, or masked before.
        self.closed: tuple[str, ...] = ()

    def leave_out_absent(self, edits: "Iterable[Edit]") -> None:
        """Look for directories to be masked: where /proc lacks one, nothing below can be made.

        Before anything is cloned for them: to close a mount that has no place, the kernel waits
        for a grace period.
        """
        for edit in edits:
            if not isinstance(edit, Mount) or edit.host_path:
                continue
            if not self.rootfs.has(edit.container_path):
                self._close(edit.container_path, edit.required)

    def is_closed(self, edit: "Edit") -> bool:
        """Tell whether a mount has no place."""
        return isinstance(edit, Mount) and self._is_closed(edit.container_path + "/")

    def run(self, sources: "list[tuple[Edit, int | None]]") -> None:
        """Apply edits with what they bring from the host; on failure take all back.

        Raises: NvhookError.
        """
        complete = False
        # A stricter one, an engine's or an operator's, would close the driver to the users inside.
        umask = posix.umask(0o022)
        try:
            for edit, source in sources:
                if not isinstance(edit, LdCacheUpdate):
                    self._apply(edit, source)
            for mount, options in self.tmpfs:
                self.doing = "make the /proc mask read-only"
                mounts.set_options(mount, options)
            # Last, because the container's file is replaced and can't be restored.
            for edit, _ in sources:
                if isinstance(edit, LdCacheUpdate):
                    self._update_cache(edit)
            complete = True
        except OSError as error:
            raise ContainerError(
                f"can't {self.doing} in the container: {error.strerror}"
            ) from error
        finally:
            posix.umask(umask)
            if not complete:
                self.undo()

    def _apply(self, edit: "Edit", source: int | None) -> None:
        match edit:
            case Mount() | DeviceNode():
                self.doing = f"mount {edit.container_path}"
                if source is None:
                    self.left_out.add(edit.container_path)
                else:
                    self._mount(edit, source)
            case Symlink():
                self.doing = f"link {edit.container_path}"
                directory = edit.container_path.rpartition("/")[0]
                if f"{directory}/{edit.target}" in self.left_out:
                    self.left_out.add(edit.container_path)
                else:
                    self.rootfs.symlink(edit.container_path, edit.target)
            case TextFile():
                self.doing = f"write {edit.container_path}"
                self._write(edit)
            case EnvVar() | AdditionalGid():
                self.notes.append(f"left out, the process is already created: {edit.kind}")
            case CgroupRule() | LdCacheUpdate():
                pass  # done before and after
            case _:
                assert_never(edit)

    def _write(self, edit: TextFile) -> None:
        path = edit.container_path
        if self._is_closed(path):
            return
        try:
            self.rootfs.write(path, edit.content.encode(), edit.mode)
        except NoPlaceError as error:
            if path.startswith("/proc/"):
                raise
            self.notes.append(f"left out: {error}")

    def undo(self) -> None:
        """Take back every mount and file of this run, newest first."""
        while self.mounted:
            head, _, name = self.mounted.pop().rpartition("/")
            parent = self.rootfs.existing(head)
            if parent is not None:
                try:
                    call("umount_at", parent, name.encode())
                except SyscallError:
                    pass  # moved or covered by the container itself: it dies with its namespace
                posix.close(parent)
        self.rootfs.take_back()

    def _mount(self, edit: Mount | DeviceNode, source: int) -> None:
        path = edit.container_path
        try:
            target = self._target(edit, source)
        except NoPlaceError as error:
            if isinstance(edit, DeviceNode) or edit.required:
                raise
            self.left_out.add(path)
            self.notes.append(f"left out: {error}")
            return
        if target is None:
            return
        try:
            if not self._attach(edit, source, target):
                return
        finally:
            posix.close(target)
        self.mounted.append(path)
        if isinstance(edit, Mount) and not edit.host_path:
            self.tmpfs.append((source, edit.options))
            self.rootfs.own_mounts.add(call("mount_id", source))

    def _attach(self, edit: Mount | DeviceNode, source: int, target: int) -> bool:
        return mounts.attach(source, target, self.shared, edit.container_path)

    def _target(self, edit: Mount | DeviceNode, source: int) -> int | None:
        path = edit.container_path
        if isinstance(edit, Mount) and not edit.host_path:
            return self._proc_target(path, edit.required)
        if self._is_closed(path):
            return self.rootfs.existing(path)
        return self.rootfs.mount_target(path, source)

    def _proc_target(self, path: str, required: bool) -> int | None:
        """Open a directory below /proc: nothing can be made there, it exists or it does not."""
        target = self.rootfs.existing(path)
        if target is not None and not self._is_masked(path, target):
            return target
        if target is None:
            self._close(path, required)
        else:
            self.closed += (path + "/",)  # masked already, by an earlier run
            posix.close(target)
        return None

    def _close(self, path: str, required: bool) -> None:
        if required:
            raise ContainerError(f"the container has no {path}")
        self.closed += (path + "/",)
        self.notes.append(f"not masked: the container has no {path}")

    def _is_masked(self, path: str, target: int) -> bool:
        """Tell whether a tmpfs is mounted on the directory itself."""
        if call("filesystem_magic", target) != TMPFS_MAGIC:
            return False
        parent = self.rootfs.existing(path.rpartition("/")[0])
        if parent is None:
            return False
        try:
            return call("mount_id", parent) != call("mount_id", target)
        finally:
            posix.close(parent)

    def _is_closed(self, path: str) -> bool:
        return path.startswith(self.closed)

    def _update_cache(self, edit: LdCacheUpdate) -> None:
        self.doing = "update the loader cache"
        libraries = [each for each in edit.libraries if each.container_path not in self.left_out]
        try:
            done = loader_cache.update(self.rootfs, tuple(libraries), self.machine)
        except FormatError as error:
            self.unreadable_cache = str(error)
        else:
            self.notes.append(f"loader cache: {done}")
