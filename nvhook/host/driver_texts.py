"""The driver's small text files below /proc and /sys: read anew at every start."""

from __future__ import annotations

import os

from nvhook import observations
from nvhook.core.catalog import PROC_FILES
from nvhook.errors import FormatError, HostError
from nvhook.formats.proc_driver import is_driver_version, nvidia_majors, parse_version
from nvhook.kernel.descriptors import content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The largest text here is /proc/devices of a big machine, a few KiB.
MAX_TEXT = 256 * 1024


def read_text(path: str, limit: int = MAX_TEXT) -> str | None:
    """Return the text of a file, None if there is none; bytes beyond limit are left out.

    Raises: HostError if it is there and can't be read.
    """
    data = _read(path, limit)
    observations.text(path, limit, data)
    return None if data is None else data.decode("utf-8", "replace")


def _read(path: str, limit: int) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if observations.is_absent(error):
            return None
        raise observations.unknown(path, error) from error
    try:
        return content(fd, limit)
    except IsADirectoryError:
        return None
    except OSError as error:
        raise observations.unknown(path, error) from error
    finally:
        os.close(fd)


def driver_directory(proc_root: str) -> str:
    """Return where the driver's texts are for this proc root."""
    return proc_root.rstrip("/") + "/driver/nvidia"


def read_driver_version(proc_root: str, sys_root: str) -> str:
    """Return the version of the loaded kernel driver.

    Raises: HostError where none is loaded.
    """
    text = read_text(driver_directory(proc_root) + "/version")
    if text is not None:
        try:
            return parse_version(text)
        except FormatError:
            pass  # a guest's shim module may word it differently: /sys has the bare number
    bare = read_text(sys_root.rstrip("/") + "/module/nvidia/version", 4096)
    if bare is not None and is_driver_version(bare.strip()):
        return bare.strip()
    raise HostError(
        f"no NVIDIA driver is loaded: {driver_directory(proc_root)}/version tells no version",
        "install the driver and run 'modprobe nvidia', or set proc-root",
    )


def read_majors(proc_root: str) -> dict[str, int]:
    """Return the majors of NVIDIA's character devices by name; empty where none is registered.

    Raises: FormatError if two names claim to be the GPUs' and neither can be.
    """
    return nvidia_majors(read_text(proc_root.rstrip("/") + "/devices") or "")


def read_proc_files(proc_root: str) -> dict[str, str]:
    """Return the texts of params, version and registry that this host has."""
    directory = driver_directory(proc_root)
    texts = {name: read_text(f"{directory}/{name}") for name in PROC_FILES}
    return {name: text for name, text in texts.items() if text is not None}


def list_gpu_directories(proc_root: str) -> list[str]:
    """Return the sorted names in /proc/driver/nvidia/gpus: one PCI bus id for each GPU."""
    return sorted(observations.names(driver_directory(proc_root) + "/gpus") or ())


def has_mig_gpus(majors: Mapping[str, int], proc_root: str) -> bool:
    """Return whether the driver shows a GPU among its capabilities: one that can be partitioned.

    One look into a directory, and none with a driver that knows no capabilities.
    """
    if "nvidia-caps" not in majors:
        return False
    return bool(observations.names(driver_directory(proc_root) + "/capabilities", "gpu"))
