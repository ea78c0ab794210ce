"""Discover machines where NVIDIA's own kernel driver does not have the GPUs (core.platforms).

Loaded only where the driver shows no GPU.
"""

import os

from nvhook import observations
from nvhook.core.inventory import Inventory, Library
from nvhook.core.platforms import TEGRA, TEGRA_RELEASE, WSL, WSL_NODES
from nvhook.errors import FormatError, UnsupportedError
from nvhook.formats import elf
from nvhook.host.driver_texts import read_text
from nvhook.host.libraries import FLAGS_64, catalogue_name
from nvhook.host.nodes import read_node
from nvhook.host.root_paths import join_root, open_file, resolve


def find(
    driver_root: str,
    dev_root: str,
    proc_root: str,
    sys_root: str,
    state_directory: str,
    every_csv: bool = False,
) -> Inventory | None:
    """Return what such a machine has, None if this is none of them.

    ``every_csv``: what all of a Jetson's lists name, not only the base ones.

    Raises: HostError where the machine has no files for containers.
    """
    name = name_of(driver_root, dev_root, sys_root)
    if name == TEGRA:
        from nvhook.host import tegra

        return tegra.discover(driver_root, dev_root, proc_root, every_csv)
    if name == WSL:
        from nvhook.host import wsl

        return wsl.discover(driver_root, dev_root, proc_root, state_directory)
    return None


def name_of(driver_root: str, dev_root: str, sys_root: str) -> str:
    """Return which of core.platforms this machine is, empty if it is none of them."""
    family = read_text(sys_root.rstrip("/") + "/devices/soc0/family", 64) or ""
    if family.strip() == "Tegra" or resolve(driver_root, TEGRA_RELEASE) is not None:
        return TEGRA
    observations.place(driver_root, TEGRA_RELEASE, None)
    nodes = [read_node(dev_root.rstrip("/"), name) for name in WSL_NODES]
    return WSL if any(nodes) else ""


def read_library(driver_root: str, path: str) -> Library | None:
    """Return a 64-bit library of this machine's kind, None for anything else.

    ``name`` is its file's up to ``.so``. A SONAME that is another library's (of a loader that
    stands in for it) does not count.

    Raises: UnsupportedError for a machine that nvhook does not know.
    """
    machine = os.uname().machine
    if machine not in FLAGS_64:
        raise UnsupportedError(f"no support for {machine}", f"machines: {', '.join(FLAGS_64)}")
    opened = open_file(driver_root, path)
    if opened is None:
        return None
    fd, resolved = opened
    try:
        header = elf.parse_file(lambda offset, size: os.pread(fd, size, offset))
    except (FormatError, OSError):
        return None
    finally:
        os.close(fd)
    flags = elf.cache_flags(header)
    if flags not in FLAGS_64[machine]:
        return None
    file_name = resolved.rpartition("/")[2]
    name = catalogue_name(file_name) or file_name.partition(".so")[0] + ".so"
    is_own = header.soname.startswith(name)
    host_path = join_root(driver_root, resolved)
    soname = header.soname if is_own else file_name
    return Library(name, soname, resolved, host_path, flags, header.bits)
