"""Plan -> a container that is created but not yet pivoted.

Phases: open the host's sources; open the target; in a forked child enter the mount namespace and
apply mounts, nodes, links, files and the loader cache; back in the parent, the device rules. The
child imports nothing after the fork (the container's files could be what it finds) and reports
through a pipe which edit failed and why.
"""

import os
import stat
import sys

from nvhook import loader_cache
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
from nvhook.errors import ContainerError, FormatError, HostError, NvhookError, assert_never
from nvhook.kernel import mounts
from nvhook.kernel.process import Process
from nvhook.kernel.rootfs import TMPFS_MAGIC, Rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.edits import Edit, Plan
    from nvhook.log import Log

DEVICE_OPTIONS = ("ro", "nosuid", "noexec")
_SEPARATOR = "\0"


class Target:
    """A container to change: its process, its root, and which of its mounts reach the host."""

    __slots__ = ("process", "rootfs", "shared")

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
        self.rootfs = Rootfs(fd, self.process.root_ids())
        self.shared = _shared_mounts(self.process.read("mountinfo", 16 << 20))


def apply(plan: "Plan", target: Target, machine: str, log: "Log") -> None:
    """Apply a plan; on failure the container's root is left as it was.

    Raises: NvhookError naming the edit that failed.
    """
    rules = [edit for edit in plan.edits if isinstance(edit, CgroupRule)]
    cgroup = None
    if rules:
        from nvhook.kernel import cgroup as device_cgroup  # not loaded where rules are off

        cgroup = device_cgroup.find(target.process.pid)
    prepared = [(edit, _open_source(edit, log)) for edit in plan.edits]
    notes, unreadable_cache = _in_child(prepared, target, machine)
    for note in notes:
        log.info(note)
    if unreadable_cache:
        from nvhook.kernel import sandbox  # rare, and 30 ms of imports

        log.warning("loader cache not understood, running ldconfig", why=unreadable_cache)
        updates = [edit for edit in plan.edits if isinstance(edit, LdCacheUpdate)]
        libraries = [library for update in updates for library in update.libraries]
        sandbox.ldconfig(target.process, target.rootfs, loader_cache.directories(libraries))
    if cgroup is not None:
        for note in cgroup.allow([(r.type, r.major, r.minor, r.access) for r in rules]):
            log.info("device rules", done=note)


def _open_source(edit: "Edit", log: "Log") -> int | None:
    """Clone what an edit brings from the host; None for an edit without a source."""
    if isinstance(edit, DeviceNode):
        fd = _clone(edit.host_path, DEVICE_OPTIONS)
        status = os.fstat(fd)
        numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
        if not stat.S_ISCHR(status.st_mode) or numbers != (edit.major, edit.minor):
            raise HostError(f"{edit.host_path} is not the device {edit.major}:{edit.minor}")
        return fd
    if isinstance(edit, Mount):
        if not edit.host_path:
            return mounts.tmpfs()
        try:
            return _clone(edit.host_path, edit.options)
        except HostError as error:
            if edit.required:
                raise
            log.warning("left out", path=edit.container_path, why=error)
    return None


def _clone(path: str, options: tuple[str, ...]) -> int:
    try:
        return mounts.clone(path, options)
    except SyscallError as error:
        raise HostError(
            f"{path} of the host can't be mounted: {error}",
            "Linux 5.12 or newer is needed" if error.errno == 38 else "",
        ) from error


def _in_child(
    prepared: "list[tuple[Edit, int | None]]", target: Target, machine: str
) -> tuple[list[str], str]:
    """Run the namespace phase in a child; return its notes, and why ldconfig must run, if it must.

    Raises: ContainerError, the child's.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, the child never returns into the caller's code. An unexpected exception
        # is printed on request only: a traceback reads source files through the container's mounts.
        code = 70
        try:
            os.write(write_end, _SEPARATOR.join(_child(prepared, target, machine)).encode())
            code = 0
        finally:
            if code and os.environ.get("NVHOOK_DEBUG") == "1":
                sys.__excepthook__(*sys.exc_info())
                sys.stderr.flush()
            os._exit(code)
    os.close(write_end)
    report = b""
    while chunk := os.read(read_end, 65536):
        report += chunk
    os.close(read_end)
    _, status = os.waitpid(child, 0)
    outcome, *fields = report.decode("utf-8", "replace").split(_SEPARATOR)
    if status != 0 or outcome not in ("ok", "error"):
        raise ContainerError(
            f"the helper in the container's namespace ended with status {status}",
            "a bug in nvhook: please report it, with NVHOOK_DEBUG=1 in the hook's env",
        )
    if outcome == "error":
        raise ContainerError(*fields)
    return fields[1:], fields[0]


def _child(
    prepared: "list[tuple[Edit, int | None]]", target: Target, machine: str
) -> "list[str]":
    """Apply everything but device rules; return the report for the parent."""
    work = _Application(target, machine)
    try:
        target.process.enter_mount_namespace()
        for edit, source in prepared:
            work.apply(edit, source)
        work.finish()
    except NvhookError as error:
        work.undo()
        return ["error", error.message, error.hint]
    except SyscallError as error:
        work.undo()
        return ["error", f"{work.doing}: {error}", ""]
    except OSError as error:
        work.undo()
        return ["error", f"{work.doing}: {error.strerror}", ""]
    return ["ok", work.unreadable_cache, *work.notes]


class _Application:
    """The state of one run inside the container's mount namespace."""

    def __init__(self, target: Target, machine: str) -> None:
        self.rootfs = target.rootfs
        self.shared = target.shared
        self.machine = machine
        self.doing = "enter the mount namespace"
        self.notes: list[str] = []
        self.unreadable_cache = ""
        self.mounted: list[str] = []
        self.tmpfs: list[tuple[int, tuple[str, ...]]] = []
        # Prefixes below /proc where nothing can be made: absent in this kernel, or masked before.
        self.closed: list[str] = []

    def apply(self, edit: "Edit", source: int | None) -> None:
        """Apply one edit."""
        match edit:
            case Mount() | DeviceNode():
                self.doing = f"mount {edit.container_path}"
                if source is not None:
                    self._mount(edit, source)
            case Symlink():
                self.doing = f"link {edit.container_path}"
                self.rootfs.symlink(edit.container_path, edit.target)
            case TextFile():
                self.doing = f"write {edit.container_path}"
                if not self._is_closed(edit.container_path):
                    self.rootfs.write(edit.container_path, edit.content.encode(), edit.mode)
            case LdCacheUpdate():
                self.doing = "update the loader cache"
                self._update_cache(edit)
            case EnvVar() | AdditionalGid():
                self.notes.append(f"left out, the process is already created: {edit.kind}")
            case CgroupRule():
                pass  # the parent's part
            case _:
                assert_never(edit)

    def finish(self) -> None:
        """Make the filled tmpfs mounts what they were asked to be."""
        for mount, options in self.tmpfs:
            self.doing = "make the /proc mask read-only"
            mounts.set_options(mount, options)

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
                os.close(parent)
        self.rootfs.remove_created()

    def _mount(self, edit: Mount | DeviceNode, source: int) -> None:
        path = edit.container_path
        target = self._target(edit, source)
        if target is None:
            return
        try:
            mounts.refuse_shared(target, self.shared, path)
            if not mounts.attach(source, target):
                return
        finally:
            os.close(target)
        self.mounted.append(path)
        if isinstance(edit, Mount) and not edit.host_path:
            self.tmpfs.append((source, edit.options))
            self.rootfs.own_devices.add(os.fstat(source).st_dev)

    def _target(self, edit: Mount | DeviceNode, source: int) -> int | None:
        path = edit.container_path
        if isinstance(edit, Mount) and not edit.host_path:
            return self._proc_target(path, edit.required)
        if self._is_closed(path):
            return self.rootfs.existing(path)
        if isinstance(edit, DeviceNode):
            return self.rootfs.mount_target(path, _accepts_node, directory=False)
        directory = stat.S_ISDIR(os.fstat(source).st_mode)
        accept = stat.S_ISDIR if directory else _accepts_file
        return self.rootfs.mount_target(path, accept, directory)

    def _proc_target(self, path: str, required: bool) -> int | None:
        """Open a directory below /proc: nothing can be made there, it exists or it does not."""
        target = self.rootfs.existing(path)
        if target is not None and call("filesystem_magic", target) != TMPFS_MAGIC:
            return target
        self.closed.append(path + "/")
        if target is not None:
            os.close(target)  # masked already, by an earlier run
        elif required:
            raise ContainerError(f"the container has no {path}")
        else:
            self.notes.append(f"not masked: the container has no {path}")
        return None

    def _is_closed(self, path: str) -> bool:
        return any(path.startswith(prefix) for prefix in self.closed)

    def _update_cache(self, edit: LdCacheUpdate) -> None:
        try:
            done = loader_cache.update(self.rootfs, edit.libraries, self.machine)
        except FormatError as error:
            self.unreadable_cache = str(error)
        else:
            self.notes.append(f"loader cache: {done}")


def _accepts_node(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISREG(mode)


def _accepts_file(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _shared_mounts(mountinfo: bytes) -> "frozenset[int]":
    """Return the ids of mounts with a ``shared:`` tag (blanks in paths are escaped there)."""
    if b" shared:" not in mountinfo:
        return frozenset()
    lines = mountinfo.splitlines()
    return frozenset(int(line.split(b" ", 1)[0]) for line in lines if b" shared:" in line)
