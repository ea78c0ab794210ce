"""Set GPUs' compute mode through NVML, in a child process like everything that NVML does."""

import contextlib
import sys
from collections.abc import Sequence

import pynvml

from nvhook.errors import HostError
from nvhook.host.nvml import started
from nvhook.kubelet import children

DEFAULT = 0
EXCLUSIVE_PROCESS = 3
TIMEOUT = 60.0  # seconds: NVML initialises idle GPUs one after the other

_CHILD = (
    "import sys; library, mode, uuids, sys.path[:] = *sys.argv[1:4], sys.argv[4:]; "
    "from nvhook.kubelet import compute_mode; compute_mode.set_here(library, mode, uuids)"
)


async def set_mode(library: str, uuids: Sequence[str], mode: int) -> None:
    """Give GPUs a compute mode; may take seconds. ``library`` is the driver's libnvidia-ml.

    Raises: HostError where one does not take it.
    """
    path = [entry for entry in sys.path if entry.startswith("/")]
    arguments = [library, str(mode), ",".join(uuids), *path]
    status, output = await children.run(
        [sys.executable, "-I", "-S", "-c", _CHILD, *arguments],
        {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        TIMEOUT,
    )
    if status is None:
        raise HostError(f"the compute mode can't be set: no answer for {TIMEOUT:.0f} s")
    if status != 0:
        lines = output.splitlines()
        raise HostError(
            f"the compute mode can't be set: {lines[-1] if lines else 'unknown error'}",
            "MPS needs root, and whole GPUs",
        )


def set_here(library: str, mode: str, uuids: str) -> None:
    """Set it: what the child runs. Lost GPUs, which nobody can use, are left out."""
    uuid = ""
    try:
        started(library)
        for uuid in uuids.split(","):
            with contextlib.suppress(pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotFound):
                gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                pynvml.nvmlDeviceSetComputeMode(gpu, int(mode))
    except (OSError, pynvml.NVMLError) as error:
        sys.exit(f"{uuid} {error}".strip())
