"""Plan -> a container that is created but not yet pivoted, or one that runs.

Phases: open the target; open the host's sources; the device rules; in the container's mount
namespace mounts, nodes, links, files and the loader cache. Nothing is imported inside: the
container's files could be what is found. The calling process has one thread and enters itself; a
forked child would cost 2 ms.
"""

from __future__ import annotations

import os

from nvhook import observations
from nvhook._native import call, lib
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
from nvhook.create.sources import DEVICE_OPTIONS, open_source
from nvhook.errors import ContainerError, FormatError, HostError, NvhookError, assert_never
from nvhook.kernel import mounts
from nvhook.kernel.refusals import TMPFS_MAGIC, NoPlaceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvhook.core.edits import Edit, Plan
    from nvhook.create.recording import Recording
    from nvhook.create.target import Target
    from nvhook.kernel.device_rules import DeviceRule
    from nvhook.kernel.process import Process
    from nvhook.kernel.root import Root
    from nvhook.log import Log


def apply(
    plan: Plan, target: Target, machine: str, log: Log, recording: Recording | None = None
) -> None:
    """Apply a plan, and record how; on failure the container's root is left as it was.

    Raises: NvhookError naming the edit that failed.
    """
    rules = rules_of(plan)
    cgroup = None
    if rules:
        from nvhook.kernel import cgroup as device_cgroup  # not loaded where rules are off

        cgroup = device_cgroup.find(target.process.pid, host_mounts=target.host_mounts)
    work = Application(target.rootfs, machine, recording=recording)
    sources = work.open_sources(plan.edits, log)
    if cgroup is not None:
        # Before anything else: a cgroup above may refuse, and rules end with the cgroup.
        for note in cgroup.allow(rules):
            log.info("device rules", done=note)
        if recording is not None:
            recording.rules(cgroup, rules)
    if recording is not None:
        for edit in plan.edits:
            if isinstance(edit, LdCacheUpdate):
                loader_cache.look(target.rootfs, edit.libraries)
    complete = False
    with target.process.mount_namespace():
        try:
            work.run(sources)
            complete = True
        finally:
            if not complete:
                target.rootfs.undo_all()
    for note in work.notes:
        log.info(note)
    if work.unreadable_cache:
        try:
            from nvhook.create.ldconfig import rebuild_cache  # rare, and 30 ms of imports

            rebuild_cache(plan, target.process, target.rootfs, work.unreadable_cache, log)
        except NvhookError:
            with target.process.mount_namespace():
                target.rootfs.undo_all()
            raise


def rules_of(plan: Plan) -> list[DeviceRule]:
    """Return the device rules of a plan, as the kernel's side has them."""
    return [
        (edit.type, edit.major, edit.minor, edit.access)
        for edit in plan.edits
        if isinstance(edit, CgroupRule)
    ]


def keep_over_reload(
    rules: list[DeviceRule],
    process: Process,
    log: Log,
    recording: Recording | None = None,
) -> None:
    """Let systemd know of a container's devices, where the container's cgroup is a unit of its.

    It installs its own list again at every daemon-reload: without this the GPU is lost then. Until
    then the container works: what goes wrong here is a warning.
    """
    from nvhook.kernel import cgroup as device_cgroup

    if recording is not None:
        for each in rules:
            recording.operation("unit", *each)
    try:
        unit = device_cgroup.unit_of(process) if rules else ""
    except ContainerError as error:
        log.warning("systemd is not told", why=error)
        return
    if not unit:
        return
    from nvhook.kernel import systemd

    try:
        log.info("systemd", done=systemd.allow(unit, rules))
    except HostError as error:
        log.warning("systemctl daemon-reload will take the GPU away", why=error)
        observations.spoil("systemd could not be told of the container's devices")


class Application:
    """Edits applied to a root, by a process in the container's mount namespace.

    ``before`` is told of each edit that is about to be applied; ``recording`` of what was done.
    """

    def __init__(
        self,
        root: Root,
        machine: str,
        before: Callable[[Edit], None] | None = None,
        recording: Recording | None = None,
    ) -> None:
        self.root = root
        self.machine = machine
        self.before = before
        self.recording = recording
        self.doing = ""
        self.notes: list[str] = []
        self.unreadable_cache = ""
        # Made writable, to be filled, and set to their options at the end.
        self.masks: list[tuple[int, tuple[str, ...]]] = []
        # Container paths that are not there after all: their links and cache entries go, too.
        self.left_out: set[str] = set()
        # Prefixes below /proc where nothing is made: absent in this kernel, or masked before.
        self.closed: tuple[str, ...] = ()
        # Those among them that a mask of inject's covers, in a container that runs.
        self.adopted: tuple[str, ...] = ()
        # Container paths where the file is already, and its (st_dev, st_ino).
        self.there: dict[str, tuple[int, int]] = {}

    def open_sources(self, edits: Iterable[Edit], log: Log) -> list[tuple[Edit, int | None]]:
        """Clone what edits bring from the host.

        What has no place, or is there already, is not cloned: to close a mount that was never
        attached, the kernel waits for a grace period.

        Raises: HostError; ContainerError.
        """
        for edit in edits:
            if not isinstance(edit, Mount):
                continue
            path = edit.container_path
            if not edit.host_path and not self.root.has(path):
                self._close(path, edit.required)
            elif edit.host_path and not self._is_closed(path):
                self._look_whether_there(edit)
        return [
            (edit, None if self._needs_no_source(edit) else open_source(edit, log))
            for edit in edits
        ]

    def _look_whether_there(self, edit: Mount) -> None:
        try:
            status = os.stat(edit.host_path, follow_symlinks=False)
        except OSError:
            return  # open_source says what is wrong with it
        identity = status.st_dev, status.st_ino
        if self.root.is_at(edit.container_path, identity):
            self.there[edit.container_path] = identity

    def _needs_no_source(self, edit: Edit) -> bool:
        return isinstance(edit, Mount) and (
            edit.container_path in self.there or self._is_closed(edit.container_path + "/")
        )

    def run(self, sources: list[tuple[Edit, int | None]]) -> None:
        """Apply edits with what they bring from the host.

        Raises: NvhookError; what was done is to be undone then.
        """
        # A stricter one, an engine's or an operator's, would close the driver to the users inside.
        umask = os.umask(0o022)
        try:
            for edit, source in sources:
                if not isinstance(edit, LdCacheUpdate):
                    self._tell(edit)
                    self._apply(edit, source)
            for mount, options in self.masks:
                self.doing = "make the /proc mask read-only"
                mounts.set_options(mount, options)
            for edit, _ in sources:
                if isinstance(edit, LdCacheUpdate):
                    self._tell(edit)
                    self._update_cache(edit)
        except OSError as error:
            raise ContainerError(
                f"can't {self.doing} in the container: {error.strerror}"
            ) from error
        finally:
            os.umask(umask)

    def _tell(self, edit: Edit) -> None:
        if self.before is not None:
            self.before(edit)

    def _apply(self, edit: Edit, source: int | None) -> None:
        match edit:
            case Mount() | DeviceNode():
                self.doing = f"mount {edit.container_path}"
                self._mount(edit, source)
            case Symlink():
                self.doing = f"link {edit.container_path}"
                directory = edit.container_path.rpartition("/")[0]
                if f"{directory}/{edit.target}" in self.left_out:
                    self.left_out.add(edit.container_path)
                else:
                    self.root.link(edit.container_path, edit.target)
                    self._record("symlink", edit.container_path, edit.target)
            case TextFile():
                self.doing = f"write {edit.container_path}"
                self._write(edit)
            case EnvVar() | AdditionalGid():
                self.notes.append(f"left out, the process is already created: {edit.kind}")
            case CgroupRule() | LdCacheUpdate():
                pass  # done before and after
            case _:
                assert_never(edit)

    def _mount(self, edit: Mount | DeviceNode, source: int | None) -> None:
        path = edit.container_path
        if path in self.there:
            self._record("there", path, *self.there[path])
            return
        if source is None:
            self._leave_out(path, "")
            return
        try:
            if isinstance(edit, Mount) and not edit.host_path:
                self._mask(edit, source)
            elif not self._is_closed(path) or path.startswith(self.adopted) or self.root.has(path):
                self.root.attach(path, source)
                self._record_mount(edit, source)
        except NoPlaceError as error:
            if isinstance(edit, DeviceNode) or edit.required:
                raise
            self._leave_out(path, f"left out: {error}")

    def _leave_out(self, path: str, note: str) -> None:
        self.left_out.add(path)
        if note:
            self.notes.append(note)
        if not self._is_closed(path + "/"):
            observations.spoil(f"{path} is left out")

    def _record(self, kind: str, *fields: object, data: bytes | None = None) -> None:
        if self.recording is not None:
            self.recording.operation(kind, *fields, data=data)

    def _record_mount(self, edit: Mount | DeviceNode, source: int) -> None:
        status = os.fstat(source)
        if isinstance(edit, DeviceNode):
            attributes = mounts.attributes(DEVICE_OPTIONS)
            self._record(
                "device", edit.host_path, edit.container_path, attributes, edit.major, edit.minor
            )
        else:
            attributes = mounts.attributes(edit.options)
            identity = status.st_dev, status.st_ino
            self._record("mount", edit.host_path, edit.container_path, attributes, *identity)

    def _mask(self, edit: Mount, source: int) -> None:
        """Cover a directory below /proc, where nothing can be made: it exists or it does not."""
        path = edit.container_path
        target = self.root.existing(path)
        if target is None:
            self._close(path, edit.required)
            return
        try:
            if self._is_masked(path, target):  # by an earlier run
                self.closed += (path + "/",)
                if self.root.live:
                    self.root.adopt(target)
                    self.adopted += (path + "/",)
                observations.spoil(f"{path} is masked already")
                return
        finally:
            os.close(target)
        self.root.cover(path, source)
        self.masks.append((source, edit.options))
        self._record("mask", path, mounts.attributes(edit.options))

    def _write(self, edit: TextFile) -> None:
        path = edit.container_path
        if self._is_closed(path):
            return
        content = edit.content.encode()
        try:
            self.root.write(path, content, edit.mode)
            self._record("file", path, edit.mode, data=content)
        except NoPlaceError as error:
            if path.startswith("/proc/"):
                raise
            self._leave_out(path, f"left out: {error}")

    def _close(self, path: str, required: bool) -> None:
        if required:
            raise ContainerError(f"the container has no {path}")
        self.closed += (path + "/",)
        self.notes.append(f"not masked: the container has no {path}")

    def _is_masked(self, path: str, target: int) -> bool:
        """Tell whether a tmpfs is mounted on the directory itself."""
        if call(lib.nvh_filesystem_magic, target) != TMPFS_MAGIC:
            return False
        parent = self.root.existing(path.rpartition("/")[0])
        if parent is None:
            return False
        try:
            return call(lib.nvh_mount_id, parent) != call(lib.nvh_mount_id, target)
        finally:
            os.close(parent)

    def _is_closed(self, path: str) -> bool:
        return path.startswith(self.closed)

    def _update_cache(self, edit: LdCacheUpdate) -> None:
        self.doing = "update the loader cache"
        libraries = [each for each in edit.libraries if each.container_path not in self.left_out]
        try:
            merges = loader_cache.update(self.root, tuple(libraries), self.machine)
        except FormatError as error:
            self.unreadable_cache = str(error)
            observations.spoil("the image's loader cache is not understood")
            return
        changed = any(merge.is_change for merge in merges)
        done = f"{len(libraries)} libraries" if changed else "unchanged"
        self.notes.append(f"loader cache: {done}")
        if self.recording is not None:
            for merge in merges:
                self.recording.merge(merge)
