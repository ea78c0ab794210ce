"""Ask NVML for what /proc/driver/nvidia does not tell: UUIDs of unused GPUs, MIG devices' names.

NVML runs in a child process with a time limit: it initialises the GPUs, which takes seconds, and
on a broken GPU it may never come back.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

TIMEOUT = 10.0

# The child gets our module path as arguments: isolated mode (-I) and no site (-S) leave it bare.
_CHILD = (
    "import sys; question, library, sys.path[:] = sys.argv[1], sys.argv[2], sys.argv[3:]; "
    "from nvhook.host import nvml; getattr(nvml, question)(library)"
)


def uuids_by_bus_id(library: str, timeout: float = TIMEOUT) -> dict[str, str]:
    """Return the UUIDs of all GPUs by PCI bus id; empty if NVML fails or takes longer than timeout.

    ``library`` is the host path of the driver root's own libnvidia-ml; timeout is in seconds.
    """
    return parse_uuids(_ask("print_uuids", library, timeout))


def mig_devices(
    library: str, timeout: float = TIMEOUT
) -> dict[tuple[str, int, int], tuple[int, str, str]]:
    """Return (index within its GPU, UUID, name) of MIG devices by (PCI bus id, GI id, CI id).

    Arguments and failures as with uuids_by_bus_id.
    """
    return parse_mig_devices(_ask("print_mig_devices", library, timeout))


def driver(
    library: str, timeout: float = TIMEOUT
) -> tuple[str, str, tuple[tuple[str, str, str], ...]]:
    """Return the driver's version, its CUDA version, and (PCI bus id, UUID, model) of all GPUs.

    In NVML's order. Arguments and failures as with uuids_by_bus_id.
    """
    return parse_driver(_ask("print_driver", library, timeout))


def facts(library: str, timeout: float = TIMEOUT) -> list[str]:
    """Return the lines that nvml_facts reads; arguments and failures as with uuids_by_bus_id."""
    return _ask("print_facts", library, timeout)


def _ask(question: str, library: str, timeout: float) -> list[str]:
    """Return the lines that one of the functions below prints in a child process."""
    import contextlib
    import subprocess

    if not sys.executable:
        return []
    path = [entry for entry in sys.path if entry.startswith("/")]
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD, question, library, *path],
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
        return []
    return output.decode("utf-8", "replace").splitlines()


def parse_uuids(lines: Iterable[str]) -> dict[str, str]:
    """Return the UUIDs by PCI bus id in lines ``bus-id uuid``; other lines are ignored."""
    from nvhook.errors import FormatError
    from nvhook.formats.gpu_information import normalize_bus_id, normalize_uuid
    from nvhook.formats.proc_driver import is_known_uuid

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


def parse_mig_devices(
    lines: Iterable[str],
) -> dict[tuple[str, int, int], tuple[int, str, str]]:
    """Return mig_devices' answer from lines ``bus-id gi ci index uuid name``, ignoring others."""
    from nvhook.errors import FormatError
    from nvhook.formats.gpu_information import normalize_bus_id
    from nvhook.formats.proc_driver import is_decimal

    devices: dict[tuple[str, int, int], tuple[int, str, str]] = {}
    for line in lines:
        words = line.strip().split(" ", 5)
        if len(words) < 5 or not all(is_decimal(word) for word in words[1:4]):
            continue
        try:
            bus_id = normalize_bus_id(words[0])
        except FormatError:
            continue
        gi, ci, index = [int(word) for word in words[1:4]]
        devices[bus_id, gi, ci] = (index, words[4], " ".join(words[5:]))
    return devices


def parse_driver(
    lines: Iterable[str],
) -> tuple[str, str, tuple[tuple[str, str, str], ...]]:
    """Return driver's answer from lines ``driver ...``, ``cuda ...``, ``gpu bus-id uuid model``."""
    from nvhook.errors import FormatError
    from nvhook.formats.gpu_information import normalize_bus_id, normalize_uuid
    from nvhook.formats.proc_driver import is_decimal, is_driver_version, is_known_uuid

    version = cuda = ""
    gpus = []
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        if word == "driver" and is_driver_version(rest):
            version = rest
        elif word == "cuda" and is_decimal(rest):
            # 12040 is 12.4
            cuda = f"{int(rest) // 1000}.{int(rest) % 1000 // 10}"
        elif word == "gpu":
            bus_id, _, named = rest.partition(" ")
            uuid, _, model = named.partition(" ")
            try:
                if is_known_uuid(uuid):
                    gpus.append((normalize_bus_id(bus_id), normalize_uuid(uuid), model))
            except FormatError:
                continue
    return version, cuda, tuple(gpus)


def print_driver(library: str) -> None:
    """Print the driver's version, its CUDA version and its GPUs: what the child runs."""
    nvml = started(library)
    print("driver", text(nvml.nvmlSystemGetDriverVersion()), flush=True)
    print("cuda", nvml.nvmlSystemGetCudaDriverVersion_v2(), flush=True)
    for handle, bus_id in _handles(nvml):
        try:
            uuid, model = (
                text(nvml.nvmlDeviceGetUUID(handle)),
                text(nvml.nvmlDeviceGetName(handle)),
            )
        except nvml.NVMLError:
            continue  # one lost GPU does not hide the others
        print("gpu", bus_id, uuid, model, flush=True)


def print_uuids(library: str) -> None:
    """Print ``bus-id uuid`` for each GPU: what the child runs."""
    nvml = started(library)
    for handle, bus_id in _handles(nvml):
        try:
            uuid = text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError:
            continue  # one lost GPU does not hide the others
        print(bus_id, uuid, flush=True)


def print_mig_devices(library: str) -> None:
    """Print ``bus-id gi ci index uuid name`` for each MIG device: what the child runs."""
    nvml = started(library)
    for gpu, bus_id in _handles(nvml):
        try:
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
        except nvml.NVMLError:
            continue  # lost, or not one that can be partitioned
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
                gi = nvml.nvmlDeviceGetGpuInstanceId(handle)
                ci = nvml.nvmlDeviceGetComputeInstanceId(handle)
                uuid = text(nvml.nvmlDeviceGetUUID(handle))
                name = text(nvml.nvmlDeviceGetName(handle))
            except nvml.NVMLError:
                continue  # no device has this index
            print(bus_id, gi, ci, index, uuid, name, flush=True)


def print_facts(library: str) -> None:
    """Print what nvml_facts wants to know: what the child runs."""
    from nvhook.host import nvml_facts

    nvml = started(library)
    nvml_facts.tell(nvml, _handles(nvml))


def started(library: str) -> ModuleType:
    """Return pynvml, initialised with this library: only ever in a child process.

    Raises: OSError for a library that can't be loaded, pynvml.NVMLError.
    """
    import ctypes

    import pynvml

    # nvidia-ml-py has no path option: it takes what stands here instead of loading by name.
    pynvml.nvmlLib = ctypes.CDLL(library)
    pynvml.nvmlInit()
    module: ModuleType = pynvml
    return module


def _handles(nvml: ModuleType) -> Iterator[tuple[object, str]]:
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = text(nvml.nvmlDeviceGetPciInfo(handle).busId)
        except nvml.NVMLError:
            continue  # one lost GPU does not hide the others
        yield handle, bus_id


def text(value: str | bytes) -> str:
    """Return what a pynvml of any version gives for a name."""
    return value if isinstance(value, str) else value.decode("ascii", "replace")
