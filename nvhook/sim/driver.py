"""Make the directory of a simulated driver: driver root, /dev, /proc, /sys and a configuration.

Layout of DIR::

    config.toml   points every root below into DIR: ``nvhook --config DIR/config.toml ...``
    state         the GPU table, which may be edited to make a GPU fail (nvhook.sim.machine)
    root/ dev/ proc/ sys/
    run/          nvhook's state directory
    .nvhook-sim   marks the directory as ours to rebuild
"""

import os
import platform
import shutil
import stat
import sys
from collections.abc import Callable, Sequence

from nvhook.core.mig_plans import node_name
from nvhook.errors import HostError
from nvhook.sim import driver_root
from nvhook.sim.driver_root import build_driver_root, write_file, write_loader_cache
from nvhook.sim.features import FEATURES, feature_nodes, write_feature_files
from nvhook.sim.kernel_files import proc_files, sys_files
from nvhook.sim.machine import (
    CTL_MINOR,
    MODESET_MINOR,
    NVIDIA_MAJOR,
    Machine,
    build_machine,
    drm_nodes,
    state_text,
)
from nvhook.sim.mig_tree import present

DEFAULT_MODEL = "NVIDIA H100 80GB HBM3"
DEFAULT_VERSION = "550.54.14"
MARKER = ".nvhook-sim"
_TREES = ("root", "dev", "proc", "sys", "run")
_FILES = ("state", "config.toml")


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"nvhook: {line}\n")


def create(
    directory: str,
    gpus: int = 4,
    model: str = DEFAULT_MODEL,
    driver_version: str = DEFAULT_VERSION,
    minors: Sequence[int] | None = None,
    report: Callable[[str], None] = _to_stderr,
    features: Sequence[str] = (),
    mig: Sequence[str] = (),
    mig_gpus: Sequence[int] | None = None,
) -> str:
    """Make or rebuild a simulated driver below directory and return the path of its config.toml.

    ``minors`` gives each GPU's /dev/nvidiaN by index; ``report`` gets a line about everything that
    this user or this machine can't do, and that is left out. ``features`` are names of
    nvhook.core.features: their nodes and files are made, too. ``mig`` are the profiles of the MIG
    devices of each GPU, or of each of ``mig_gpus``, in the order of their indices.

    Raises: HostError where a setting is wrong or the directory belongs to something else.
    """
    architecture = platform.machine()
    if architecture not in driver_root.TRIPLETS:
        raise HostError(f"no simulated driver for {architecture}", "use x86-64 or aarch64")
    for name in features:
        if name not in FEATURES:
            raise HostError(f"there is no feature {name!r}", f"known are {', '.join(FEATURES)}")
    chosen = tuple(dict.fromkeys(features))
    machine = build_machine(
        gpus, model, driver_version, minors, _used_majors(), chosen, mig, mig_gpus
    )
    base = os.path.abspath(directory)
    if not base.isprintable():
        raise HostError(f"the directory {base!r} has odd characters in its name", "use another")
    umask = os.umask(0o022)
    try:
        _claim(base)
        _build(base, machine, architecture, report)
    except OSError as error:
        raise HostError(
            f"the simulated driver can't be written: {error.filename or base}: {error.strerror}",
            "use a directory that you may write to, on a file system with room",
        ) from error
    finally:
        os.umask(umask)
    return os.path.join(base, "config.toml")


def _build(base: str, machine: Machine, architecture: str, report: Callable[[str], None]) -> None:
    state = state_text(machine)
    state_path = os.path.join(base, "state")
    root = os.path.join(base, "root")
    write_file(state_path, state.encode())
    build_driver_root(root, architecture, machine.driver_version, state_path, state)
    write_loader_cache(root, architecture, report)
    for tree, files in (("proc", proc_files(machine, architecture)), ("sys", sys_files(machine))):
        for path, text in files.items():
            write_file(os.path.join(base, tree, path), text.encode(), 0o444)
    # A machine without GPUs has the directory all the same.
    os.makedirs(os.path.join(base, "proc/driver/nvidia/gpus"), exist_ok=True)
    _make_nodes(os.path.join(base, "dev"), machine, report)
    os.mkdir(os.path.join(base, "run"))
    write_feature_files(base, machine)
    # Last: where it is, the rest is there.
    write_file(os.path.join(base, "config.toml"), _config_text(base).encode())


def _claim(base: str) -> None:
    """Make the directory, or empty one that an earlier run made.

    Raises: HostError where there is something that no earlier run made.
    """
    os.makedirs(base, exist_ok=True)
    marker = os.path.join(base, MARKER)
    if not os.path.lexists(marker):
        if os.listdir(base):
            raise HostError(
                f"{base} is not empty and holds no simulated driver",
                "name a new or empty directory",
            )
        write_file(marker, b"made by nvhook sim create; it may be rebuilt or deleted as a whole\n")
        return
    for name in _FILES:
        path = os.path.join(base, name)
        if os.path.lexists(path):
            os.unlink(path)
    for name in _TREES:
        path = os.path.join(base, name)
        if os.path.lexists(path):
            shutil.rmtree(path)  # noqa: TID251 - a host directory that this module made


def _used_majors() -> frozenset[int]:
    """Return the character majors of this machine's real drivers."""
    majors = set()
    with open("/proc/devices", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Block"):
                break
            number = line.split(maxsplit=1)
            if number and number[0].isdigit():
                majors.add(int(number[0]))
    return frozenset(majors)


def _make_nodes(dev: str, machine: Machine, report: Callable[[str], None]) -> None:
    nodes = [
        ("nvidiactl", NVIDIA_MAJOR, CTL_MINOR),
        ("nvidia-modeset", NVIDIA_MAJOR, MODESET_MINOR),
        ("nvidia-uvm", machine.uvm_major, 0),
        ("nvidia-uvm-tools", machine.uvm_major, 1),
    ]
    nodes += [(f"nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor) for gpu in machine.gpus]
    nodes += [
        (f"dri/{name}", machine.drm_major, minor)
        for gpu in machine.gpus
        for name, minor in drm_nodes(gpu)
    ]
    nodes += feature_nodes(machine)
    all_nodes = [(*node, 0o666) for node in nodes]
    if machine.mig_devices:
        all_nodes += [
            (node_name(minor), machine.caps_major, minor, mode)
            for _, minor, mode in present(machine.mig_devices)
        ]
    os.makedirs(os.path.join(dev, "nvidia-caps"))
    for name, major, minor, mode in all_nodes:
        path = os.path.join(dev, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        except PermissionError:
            report(f"no device nodes in {dev}: mknod needs root outside of a user namespace")
            return
        os.chmod(path, mode)  # mknod's was cut by the umask
    _link_by_path(dev, machine)


def _link_by_path(dev: str, machine: Machine) -> None:
    """Make udev's links, which name a GPU's nodes by its place on the bus."""
    for gpu in machine.gpus:
        for (name, _), kind in zip(drm_nodes(gpu), ("card", "render"), strict=True):
            link = os.path.join(dev, f"dri/by-path/pci-{gpu.pci_bus_id}-{kind}")
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(f"../{name}", link)


def _config_text(base: str) -> str:
    settings = (
        ("driver-root", "root"),
        ("dev-root", "dev"),
        ("proc-root", "proc"),
        ("sys-root", "sys"),
        ("state-directory", "run"),
        ("log-path", "nvhook.log"),
    )
    escaped = base.replace("\\", "\\\\").replace('"', '\\"')
    lines = "".join(f'{key} = "{escaped}/{name}"\n' for key, name in settings)
    return f"# The simulated driver in this directory, made by nvhook sim create.\n{lines}"
