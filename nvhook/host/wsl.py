"""Discover WSL 2: one node for all GPUs, and NVIDIA's package in Windows' driver store."""

import os

from nvhook.core.inventory import Gpu, HostFile, Inventory, Library
from nvhook.core.platforms import WSL, WSL_DATA, WSL_LIBRARIES, WSL_MARK, WSL_NODES, WSL_STORE
from nvhook.errors import FormatError, HostError
from nvhook.host import nvml
from nvhook.host.driver_texts import read_majors, read_text
from nvhook.host.inventory_cache import GPU_FIELDS, remember, remembered, rows, values
from nvhook.host.nodes import read_node
from nvhook.host.platforms import read_library
from nvhook.host.root_paths import join_root, list_directory, resolve

FILE_NAME = "wsl.json"
# Raise it with every change of the file's content.
SCHEMA = 1
_UNKNOWN = Gpu(0, "GPU-????????-????-????-????-????????????", 0, "", "GPUs of Windows")


def discover(driver_root: str, dev_root: str, proc_root: str, state_directory: str) -> Inventory:
    """Return what Windows shows.

    Raises: HostError where it shows no driver of NVIDIA.
    """
    store = _store(driver_root)
    libraries = [*_libraries(driver_root, store), *_libraries(driver_root, WSL_LIBRARIES)]
    version, cuda, gpus = _told_by_nvml(driver_root, store, proc_root, state_directory)
    nodes = [read_node(dev_root.rstrip("/"), name) for name in WSL_NODES]
    program = f"{store}/nvidia-smi"
    return Inventory(
        driver_version=version,
        cuda_version=cuda,
        driver_root=driver_root,
        proc_root=proc_root,
        majors=read_majors(proc_root),
        gpus=gpus,
        nodes=tuple([node for node in nodes if node is not None]),
        libraries=tuple(libraries),
        files=tuple(_files(driver_root, store)),
        proc_files={},
        platform=WSL,
        links=(("/usr/bin/nvidia-smi", program),),
    )


def _store(driver_root: str) -> str:
    """Return the driver package that has CUDA: of several, versions left behind, the newest."""
    listed = list_directory(driver_root, WSL_STORE)
    found = []
    for name in listed[0] if listed is not None else ():
        path = resolve(driver_root, f"{WSL_STORE}/{name}/{WSL_MARK}")
        if path is not None:
            status = os.stat(join_root(driver_root, path))
            found.append((status.st_mtime_ns, path.rpartition("/")[0]))
    if not found:
        raise HostError(
            f"this is WSL 2, but no driver package below {WSL_STORE} has {WSL_MARK}",
            "install NVIDIA's driver in Windows, none in Linux; then: wsl --shutdown",
        )
    return max(found)[1]


def _libraries(driver_root: str, directory: str) -> list[Library]:
    """Return the libraries of the driver package, or of WSL's own the one that finds the GPUs."""
    listed = list_directory(driver_root, directory)
    found = {}
    for name in listed[0] if listed is not None else ():
        is_wanted = name == "libdxcore.so" if directory == WSL_LIBRARIES else ".so" in name
        library = read_library(driver_root, f"{directory}/{name}") if is_wanted else None
        if library is not None:
            found[library.path] = library
    return [*found.values()]


def _files(driver_root: str, store: str) -> list[HostFile]:
    listed = list_directory(driver_root, store)
    found = []
    for name in listed[0] if listed is not None else ():
        group = "binary" if name == "nvidia-smi" else "store"
        path = resolve(driver_root, f"{store}/{name}")
        if path is not None and (group == "binary" or name.endswith(WSL_DATA)):
            found.append(HostFile(group, path, path, join_root(driver_root, path)))
    return found


def _told_by_nvml(
    driver_root: str, store: str, proc_root: str, state_directory: str
) -> tuple[str, str, tuple[Gpu, ...]]:
    """Return (driver version, CUDA version, GPUs): asked once for each driver package and boot.

    Where NVML does not answer there is one GPU, of which nothing is known: as good as all.
    """
    boot_id = read_text(proc_root.rstrip("/") + "/sys/kernel/random/boot_id", 64) or ""
    key = [str(SCHEMA), driver_root, store, boot_id.strip()]
    path = f"{state_directory.rstrip('/')}/{FILE_NAME}"
    cached = _read(path, key)
    if cached is not None:
        return cached
    # Windows' libraries find each other by their places: WSL's own is for programs of the host.
    places = [f"{WSL_LIBRARIES}/libnvidia-ml.so.1", f"{store}/libnvidia-ml.so.1"]
    known = [found for place in places if (found := resolve(driver_root, place)) is not None]
    version, cuda, told = nvml.driver(join_root(driver_root, known[0])) if known else ("", "", ())
    gpus = [Gpu(index, told[1], 0, told[0], told[2]) for index, told in enumerate(told)]
    if not gpus:
        return version, cuda, (_UNKNOWN,)
    content: dict[str, object] = {"versions": [version, cuda], "gpus": values(gpus, GPU_FIELDS)}
    remember(path, key, content)
    return version, cuda, tuple(gpus)


def _read(path: str, key: list[str]) -> tuple[str, str, tuple[Gpu, ...]] | None:
    content = remembered(path, key)
    try:
        gpus = rows(content.get("gpus"), Gpu, GPU_FIELDS)
    except FormatError:
        return None
    match content.get("versions"):
        case [str(version), str(cuda)] if gpus:
            return version, cuda, gpus
    return None
