"""Ask NVML for the UUIDs that /proc/driver/nvidia does not know yet.

NVML runs in a child process with a time limit: it initialises the GPUs, which takes seconds, and
on a broken GPU it may never come back.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT = 10.0

# The child gets our module path as arguments: isolated mode (-I) and no site (-S) leave it bare.
_CHILD = (
    "import sys; library, sys.path[:] = sys.argv[1], sys.argv[2:]; "
    "from nvhook.host.nvml import print_uuids; print_uuids(library)"
)


def uuids_by_bus_id(library: str, timeout: float = TIMEOUT) -> dict[str, str]:
    """Return the UUIDs of all GPUs by PCI bus id; empty if NVML fails or takes longer than timeout.

    ``library`` is the host path of the driver root's own libnvidia-ml; timeout is in seconds.
    """
    import contextlib
    import subprocess

    if not sys.executable:
        return {}
    path = [entry for entry in sys.path if entry.startswith("/")]
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD, library, *path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    try:
        output, _ = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        # In an uninterruptible call of the driver it dies only when the driver lets go.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=1)
        return {}
    return parse_uuids(output.decode("utf-8", "replace").splitlines())


def parse_uuids(lines: "Iterable[str]") -> dict[str, str]:
    """Return the UUIDs by PCI bus id in lines ``bus-id uuid``; other lines are ignored."""
    from nvhook.errors import FormatError
    from nvhook.formats.proc_driver import is_known_uuid, normalize_bus_id, normalize_uuid

    uuids = {}
    for line in lines:
        bus_id, _, uuid = line.strip().partition(" ")
        if not uuid or not is_known_uuid(uuid):
            continue
        try:
            uuids[normalize_bus_id(bus_id)] = normalize_uuid(uuid)
        except FormatError:
            continue
    return uuids


def print_uuids(library: str) -> None:
    """Print ``bus-id uuid`` for each GPU: what the child runs."""
    import ctypes

    import pynvml

    # nvidia-ml-py has no path option: it takes what stands here instead of loading by name.
    pynvml.nvmlLib = ctypes.CDLL(library)
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
            uuid = pynvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError:
            continue  # one lost GPU does not hide the others
        print(_text(bus_id), _text(uuid), flush=True)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("ascii", "replace")
