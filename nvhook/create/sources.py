"""What edits bring from the host: cloned before anything of the container is looked at."""

from __future__ import annotations

import errno
import os
import stat

from nvhook._native import SyscallError
from nvhook.core.edits import DeviceNode, Mount
from nvhook.errors import HostError
from nvhook.kernel import mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.edits import Edit
    from nvhook.log import Log

DEVICE_OPTIONS = ("ro", "nosuid", "noexec")


def open_source(edit: Edit, log: Log) -> int | None:
    """Clone what an edit brings from the host; None for an edit without a source."""
    if isinstance(edit, DeviceNode):
        fd = _clone(edit.host_path, DEVICE_OPTIONS)
        status = os.fstat(fd)
        numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
        if not stat.S_ISCHR(status.st_mode) or numbers != (edit.major, edit.minor):
            raise HostError(f"{edit.host_path} is not the device {edit.major}:{edit.minor}")
        return fd
    if isinstance(edit, Mount):
        try:
            return _clone(edit.host_path, edit.options)
        except HostError as error:
            if edit.required:
                raise
            log.warning("left out", path=edit.container_path, why=error)
    return None


def _clone(path: str, options: tuple[str, ...]) -> int:
    try:
        return mounts.clone(path, options) if path else mounts.tmpfs()
    except SyscallError as error:
        raise HostError(
            f"{path or 'a tmpfs'} of the host can't be mounted: {error}",
            {
                errno.ENOSYS: "Linux 5.12 or newer is needed",
                errno.EPERM: "the hook needs CAP_SYS_ADMIN: rootless engines can't run it",
            }.get(error.errno or 0, ""),
        ) from error
