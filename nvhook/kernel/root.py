"""A container's root directory, changed: the one door to what is made there (_native/root.c).

Every change is a step, told to a recorder before it is made: the C core's own list, or a function,
which inject's journal is. Each step has one undo.
"""

from __future__ import annotations

import errno
import os

from nvhook._native import ffi, lib
from nvhook.errors import ContainerError
from nvhook.kernel.refusals import (
    NoPlaceError,
    failed,
    keeps_changing,
    kernel_files,
    on_a_volume,
    wrong_type,
)
from nvhook.kernel.root_view import RootView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    # What is told of each step before it is taken.
    Recorder: TypeAlias = "Callable[[Step], None]"

DIRECTORY, FILE, LINK, CONTENT, MOUNT = KINDS = ("directory", "file", "link", "content", "mount")
SHARED = "it is on a volume with shared propagation: unmounting it would reach the host"
_ON_A_VOLUME = "it is on a volume of the host"
_UNDONE = {
    lib.NVH_COVERED: "covered by another",
    lib.NVH_MOUNTED: "something is mounted there",
    lib.NVH_CHANGED: "the container has put something else there",
    lib.NVH_SHARED: SHARED,
    lib.NVH_VOLUME: _ON_A_VOLUME,
    lib.NVH_NOT_A_MOUNT: "it is a node of the container's own, which can't be opened any more",
}


class OldFile:
    """A file as it was: its bytes, permissions, and (uid, gid)."""

    __slots__ = ("data", "mode", "owner")

    def __init__(self, data: bytes, mode: int, owner: tuple[int, int]) -> None:
        self.data = data
        self.mode = mode
        self.owner = owner


class Step:
    """One change of a root.

    directory, file: nothing but a path; link: ``new`` and ``old`` are targets, old None where there
    was none; content: ``new`` are the bytes, empty where something else writes them, ``old`` the
    file before; ``identity`` is (st_dev, st_ino) of what is mounted, or of a content's directory.
    """

    __slots__ = ("identity", "kind", "new", "old", "path")

    def __init__(
        self,
        kind: str,
        path: str,
        new: bytes = b"",
        old: OldFile | str | None = None,
        identity: tuple[int, int] = (0, 0),
    ) -> None:
        self.kind = kind
        self.path = path
        self.new = new
        self.old = old
        self.identity = identity


class Root(RootView):
    """A root directory to be changed; new files belong to ``owner``, the container's root."""

    __slots__ = ("_kept", "_recorder", "_root", "_stopped", "live", "owner")

    def __init__(
        self,
        fd: int,
        owner: tuple[int, int] | None = None,
        mounts: bytes = b"",
        host_mounts: bytes = b"",
        recorder: Recorder | None = None,
        confined: bool = False,
    ) -> None:
        """Take over a root's descriptor; mounts is the container's mountinfo, the other the host's.

        Without them every mount below the root counts as a volume of the host. A root with a
        recorder is that of a container that runs; confined: in a user namespace of its own.
        """
        super().__init__(fd)
        self.owner = owner or (os.geteuid(), os.getegid())
        self.live = recorder is not None
        self._recorder = recorder
        self._stopped: BaseException | None = None
        handle = ffi.new_handle(self) if recorder else ffi.NULL
        self._kept = handle, ffi.from_buffer(mounts), ffi.from_buffer(host_mounts)
        callback = lib.nvh_recorded if recorder else ffi.NULL
        tables = self._kept[1], len(mounts), self._kept[2], len(host_mounts)
        live = (lib.NVH_CONFINED if confined else lib.NVH_RUNS) if recorder else lib.NVH_CREATED
        self._root = lib.nvh_root_open(fd, *self.owner, *tables, live, callback, handle)
        if not self._root:
            raise MemoryError

    def close(self) -> None:
        """Close every descriptor, the root's too."""
        if self._root:
            lib.nvh_root_close(self._root)
            os.close(self._fds)
        self._root = ffi.NULL

    def attach(self, path: str, source: int) -> bool:
        """Move a detached mount to its place, made if absent; False if the same file is there.

        Raises: ContainerError when something of another type is there; NoPlaceError.
        """
        return self._done(lib.nvh_root_attach(self._root, os.fsencode(path), source)) == 1

    def cover(self, path: str, source: int) -> bool:
        """Cover a directory with a mount, whose content counts as the container's own.

        Raises: ContainerError.
        """
        return self._done(lib.nvh_root_cover(self._root, os.fsencode(path), source)) == 1

    def link(self, path: str, target: str) -> bool:
        """Make path a link to target; False if it already is. Another link is replaced.

        Raises: ContainerError if something that is not a link is there; NoPlaceError.
        """
        return (
            self._done(lib.nvh_root_link(self._root, os.fsencode(path), os.fsencode(target))) == 1
        )

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Replace a regular file, or make it, in one step; in one that runs it keeps its mode.

        Raises: ContainerError if something that is not a regular file is there; NoPlaceError.
        """
        self._done(lib.nvh_root_write(self._root, os.fsencode(path), data, len(data), mode))

    def make_parent(self, path: str) -> None:
        """Make the directory of a file that something else will write there.

        Raises: ContainerError; NoPlaceError.
        """
        self._done(lib.nvh_root_parent(self._root, os.fsencode(path)))

    def announce_content(self, path: str) -> None:
        """Tell the recorder that something else will replace a file.

        Raises: ContainerError; NoPlaceError.
        """
        self._done(lib.nvh_root_announce(self._root, os.fsencode(path)))

    def adopt(self, mount: int) -> None:
        """Count a mount, by an open descriptor of it, as the container's own."""
        self._done(lib.nvh_root_adopt(self._root, mount))

    def undo_all(self) -> None:
        """Take back what the C core has recorded; what is in use or has gone stays as it is."""
        lib.nvh_root_undo_all(self._root)

    def undo(self, step: Step) -> str:
        """Take one step back; return why it can't be, nothing where it is or has gone."""
        kept = [os.fsencode(step.path), step.new]
        raw: Any = ffi.new("struct nvh_step *")
        raw.kind = KINDS.index(step.kind)
        raw.device, raw.inode = step.identity
        old = step.old
        if isinstance(old, OldFile):
            kept.append(old.data)
            raw.old_size, raw.mode = len(old.data), old.mode
            raw.uid, raw.gid = old.owner
        elif old is not None:
            kept.append(os.fsencode(old))
        buffers = [ffi.from_buffer(each + b"\0") for each in kept]
        raw.path, raw.link = buffers[:2]
        if isinstance(old, OldFile):
            raw.old_data = buffers[2]
        elif old is not None:
            raw.old_link = buffers[2]
        verb = "removed" if step.kind in (DIRECTORY, FILE) else "restored"
        return self._why(
            lib.nvh_root_undo(self._root, raw), "unmounted" if step.kind == MOUNT else verb
        )

    def unmount(self, path: str) -> str:
        """Unmount whatever is mounted on a path itself; return why it can't be."""
        return self._why(lib.nvh_root_unmount(self._root, os.fsencode(path)), "unmounted")

    def tidy(self, path: str, writer: int) -> None:
        """Remove what a killed process left beside a file it was replacing."""
        lib.nvh_root_tidy(self._root, os.fsencode(path), writer)

    def forget(self) -> None:
        """Close the directories that are kept open: some may have been removed."""
        lib.nvh_root_forget(self._root)

    @staticmethod
    def _why(result: int, verb: str) -> str:
        if result >= 0:
            return ""
        known: str | None = _UNDONE.get(result)
        return known or f"can't be {verb}: {os.strerror(-result)}"

    def _done(self, result: int) -> int:
        """Return the result of an operation.

        Raises: ContainerError for a refusal; what the recorder has raised.
        """
        if result >= 0:
            return result
        if result == lib.NVH_STOPPED and self._stopped is not None:
            stopped, self._stopped = self._stopped, None
            raise stopped
        raise self._refused(result)

    def _refused(self, result: int) -> ContainerError:
        refusal: Any = lib.nvh_root_refusal(self._root)
        what = ffi.string(refusal.what).decode()
        path = os.fsdecode(ffi.string(refusal.path))
        if result == lib.NVH_VOLUME:
            return on_a_volume(path)
        if result == lib.NVH_WRONG_TYPE:
            return wrong_type(path, refusal.mode, what)
        if result == lib.NVH_KERNEL_FILES:
            return kernel_files(path, refusal.magic)
        if result == lib.NVH_KEEPS_CHANGING:
            return keeps_changing(path)
        if result == lib.NVH_NO_PATH:
            return ContainerError(f"{path} is not a path in a container")
        if result == lib.NVH_CHANGED:
            return ContainerError(f"{path} changes while it is replaced", "try again")
        if result == lib.NVH_SHARED:
            return ContainerError(
                f"{path} is on a volume with shared propagation: mounts would leak to the host",
                "mount the volume elsewhere, or with rslave",
            )
        if self.live and result == -errno.EROFS and what == "create":
            return NoPlaceError(
                f"{path} can't be made: the container's file system itself is read-only",
                "such an image (squashfs, erofs) needs the hook or nvhook-runtime, at its creation",
            )
        return failed(what, path, OSError(-result, os.strerror(-result)))

    def _record(self, raw: Any) -> int:
        """Tell the recorder of a step; what it raises comes out of the operation."""
        assert self._recorder is not None
        try:
            self._recorder(_step(raw))
        except BaseException as error:  # noqa: BLE001 - raised again, beyond the C frames
            self._stopped = error
            return int(lib.NVH_STOPPED)
        return 0


def _step(raw: Any) -> Step:
    kind = KINDS[raw.kind]
    path = os.fsdecode(ffi.string(raw.path))
    if kind == LINK:
        old = raw.old_link and os.fsdecode(ffi.string(raw.old_link))
        return Step(kind, path, bytes(ffi.string(raw.link)), old if raw.old_link else None)
    if kind == CONTENT:
        before = None
        if raw.old_data:
            data = bytes(ffi.buffer(raw.old_data, raw.old_size))
            before = OldFile(data, raw.mode, (raw.uid, raw.gid))
        new = bytes(ffi.buffer(raw.data, raw.size)) if raw.data else b""
        return Step(kind, path, new, before, (raw.device, raw.inode))
    return Step(kind, path, identity=(raw.device, raw.inode))


def _interrupted(_kind: object, error: BaseException, trace: Any) -> int:
    """Take no step that is not recorded: an interrupt may come before anything can catch it."""
    root: Root = ffi.from_handle(trace.tb_frame.f_locals["context"])
    root._stopped = error
    return int(lib.NVH_STOPPED)


@ffi.def_extern(error=lib.NVH_STOPPED, onerror=_interrupted)  # type: ignore[untyped-decorator, unused-ignore]
def nvh_recorded(context: Any, step: Any) -> int:
    """Be the recorder of a root that has one in Python."""
    root: Root = ffi.from_handle(context)
    return root._record(step)
