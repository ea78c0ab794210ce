"""The user-space half of the simulated driver: libraries, programs, firmware, sockets.

Every library is a real ELF file. libcuda, libnvidia-ml and nvidia-smi of the machine's own ABI are
compiled programs (``src/``) that answer for the simulated GPUs, and so is nvidia-cuda-mps-control,
without a server; the others can only be loaded.
"""

import os
import socket
import subprocess
from collections.abc import Callable

from nvhook.core.catalog import LISTED, WITHOUT_GLVND
from nvhook.errors import HostError
from nvhook.sim.elf_writer import ABIS, shared_library

ARTEFACTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
TRIPLET_32 = "i386-linux-gnu"
LDCONFIG = "/sbin/ldconfig"

# Catalogue name -> what follows it in the soname; the others' sonames end with the driver version.
SONAME_SUFFIX = {
    "libcuda.so": "1",
    "libcudadebugger.so": "1",
    "libnvidia-ml.so": "1",
    "libnvidia-cfg.so": "1",
    "libnvidia-nscq.so": "2",
    "libnvidia-opencl.so": "1",
    "libnvidia-ptxjitcompiler.so": "1",
    "libnvidia-allocator.so": "1",
    "libnvidia-nvvm.so": "4",
    "libnvidia-nvvm70.so": "4",
    "libvdpau_nvidia.so": "1",
    "libnvidia-encode.so": "1",
    "libnvidia-opticalflow.so": "1",
    "libnvcuvid.so": "1",
    "libnvidia-fbc.so": "1",
    "libnvidia-ifr.so": "1",
    "libnvoptix.so": "1",
    "libGLX_nvidia.so": "0",
    "libEGL_nvidia.so": "0",
    "libGLESv2_nvidia.so": "2",
    "libGLESv1_CM_nvidia.so": "1",
    "libnvidia-ngx.so": "1",
    "libnvidia-api.so": "1",
    "libnvidia-sandboxutils.so": "1",
    "libnvidia-egl-gbm.so": "1",
    "libnvidia-egl-wayland.so": "1",
    "libnvidia-egl-wayland2.so": "1",
    "libnvidia-egl-xcb.so": "1",
    "libnvidia-egl-xlib.so": "1",
}

# A library of the driver that no catalogue lists.
UNLISTED = "libnvidia-wayland-client.so"
LIBRARIES = tuple(sorted([*LISTED.difference(WITHOUT_GLVND), UNLISTED]))

# NVIDIA ships these for i386 as well.
LIBRARIES_32 = (
    "libcuda.so",
    "libnvidia-ml.so",
    "libnvidia-opencl.so",
    "libnvidia-gpucomp.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-allocator.so",
    "libnvidia-nvvm.so",
    "libvdpau_nvidia.so",
    "libnvidia-encode.so",
    "libnvidia-opticalflow.so",
    "libnvcuvid.so",
    "libnvidia-eglcore.so",
    "libnvidia-glcore.so",
    "libnvidia-tls.so",
    "libnvidia-glsi.so",
    "libnvidia-fbc.so",
    "libGLX_nvidia.so",
    "libEGL_nvidia.so",
    "libGLESv2_nvidia.so",
    "libGLESv1_CM_nvidia.so",
    "libnvidia-glvkspirv.so",
)

MPS_CONTROL = "nvidia-cuda-mps-control"
PROGRAMS = (
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-server",
    "nv-fabricmanager",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
)
# Files that tell others where the driver is: path and content, as NVIDIA's installer has them.
_EGL = '{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{}"}}}}\n'
_VULKAN = (
    '{"file_format_version": "1.0.1",\n'
    ' "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3.277"}}\n'
)
_LAYERS = '{"file_format_version": "1.1.1", "layers": []}\n'
_PLATFORMS = "usr/share/egl/egl_external_platform.d"
_XORG = "usr/share/X11/xorg.conf.d"
DATA_FILES = {
    "etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n",
    "etc/vulkan/icd.d/nvidia_icd.json": _VULKAN,
    "etc/vulkan/implicit_layer.d/nvidia_layers.json": _LAYERS,
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json": _EGL.format("libEGL_nvidia.so.0"),
    f"{_PLATFORMS}/15_nvidia_gbm.json": _EGL.format("libnvidia-egl-gbm.so.1"),
    f"{_PLATFORMS}/10_nvidia_wayland.json": _EGL.format("libnvidia-egl-wayland.so.1"),
    f"{_PLATFORMS}/20_nvidia_xcb.json": _EGL.format("libnvidia-egl-xcb.so.1"),
    f"{_PLATFORMS}/20_nvidia_xlib.json": _EGL.format("libnvidia-egl-xlib.so.1"),
    "usr/share/nvidia/nvoptix.bin": "simulated\n",
    f"{_XORG}/nvidia-drm-outputclass.conf": "# simulated\n",
}
XORG_MODULES = ("drivers/nvidia_drv.so", "extensions/libglxserver_nvidia.so.{version}")
FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")
SOCKET_DIRECTORIES = ("run/nvidia-persistenced", "run/nvidia-fabricmanager")

_MAGIC = b"\nNVHOOK-SIM 1\n"


def with_trailer(image: bytes, state_path: str, state: str) -> bytes:
    """Return a program with the GPU table behind it, in the form src/machine.c reads."""
    text = _MAGIC + f"state-path={state_path}\n{state}".encode()
    return image + text + f"NVHOOK-SIM-END {len(image):012d}\n".encode()


def build_driver_root(
    root: str, architecture: str, version: str, state_path: str, state: str
) -> None:
    """Fill an empty directory with a driver of this version.

    Raises: HostError where the compiled programs are not installed with this package.
    """
    programs = {name: _artefact(name) for name in ("nvidia-smi", "libcuda.so", "libnvidia-ml.so")}
    carried = {name: with_trailer(image, state_path, state) for name, image in programs.items()}

    directory = os.path.join(root, "usr/lib", TRIPLETS[architecture])
    os.makedirs(directory)
    for name in LIBRARIES:
        own = carried.get(name)
        _library(directory, name, version, own or _placeholder(architecture, name, version))
    if architecture == "x86_64":
        directory = os.path.join(root, "usr/lib", TRIPLET_32)
        os.makedirs(directory)
        for name in LIBRARIES_32:
            _library(directory, name, version, _placeholder("i386", name, version))

    write_file(os.path.join(root, "usr/bin/nvidia-smi"), carried["nvidia-smi"], 0o755)
    mps = _artefact(MPS_CONTROL)
    write_file(os.path.join(root, "usr/bin", MPS_CONTROL), mps, 0o755)
    for program in PROGRAMS:
        script = f"#!/bin/sh\necho '{program} {version} (simulated)'\n"
        write_file(os.path.join(root, "usr/bin", program), script.encode(), 0o755)
    for path, text in DATA_FILES.items():
        write_file(os.path.join(root, path), text.encode())
    for module in XORG_MODULES:
        name = module.format(version=version)
        image_of_module = shared_library(ABIS[architecture], os.path.basename(name), name)
        write_file(os.path.join(root, "usr/lib/xorg/modules", name), image_of_module)
    for image in FIRMWARE:
        path = os.path.join(root, "lib/firmware/nvidia", version, image)
        write_file(path, f"simulated {image} {version}\n".encode())
    for name in SOCKET_DIRECTORIES:
        _socket(os.path.join(root, name))
    os.makedirs(os.path.join(root, "tmp/nvidia-mps"))


def write_loader_cache(root: str, architecture: str, report: Callable[[str], None]) -> None:
    """Write etc/ld.so.conf, and etc/ld.so.cache with this machine's ldconfig where that can run."""
    triplets = [TRIPLETS[architecture], *([TRIPLET_32] if architecture == "x86_64" else [])]
    lines = "".join(f"/usr/lib/{triplet}\n" for triplet in triplets)
    write_file(os.path.join(root, "etc/ld.so.conf"), lines.encode())
    if not os.access(LDCONFIG, os.X_OK):
        report(f"no etc/ld.so.cache in the driver root: {LDCONFIG} is not on this machine")
        return
    # -X: the links are there already. -i: an old auxiliary cache could only be wrong.
    done = subprocess.run(
        [LDCONFIG, "-X", "-i", "-r", root],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        why = _last_line(done.stderr)
        report(f"no etc/ld.so.cache in the driver root: {LDCONFIG} -r failed ({why})")


def soname_of(name: str, version: str) -> str:
    """Return the soname of a catalogue library: libcuda.so.1, libnvidia-glcore.so.550.54.14."""
    return f"{name}.{SONAME_SUFFIX.get(name, version)}"


def write_file(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a new file with this mode whatever the umask, its directories too."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)


def _artefact(name: str) -> bytes:
    path = os.path.join(ARTEFACTS, name)
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise HostError(
            f"the simulated driver's program {path} can't be read ({error.strerror})",
            "install nvhook from a wheel, or build it with meson",
        ) from error


def _placeholder(architecture: str, name: str, version: str) -> bytes:
    return shared_library(ABIS[architecture], soname_of(name, version), f"{name} {version}")


def _library(directory: str, name: str, version: str, image: bytes) -> None:
    file_name = f"{name}.{version}"
    write_file(os.path.join(directory, file_name), image)
    soname = soname_of(name, version)
    if soname != file_name:
        os.symlink(file_name, os.path.join(directory, soname))


def _socket(directory: str) -> None:
    """Leave a socket's inode; nobody listens on it."""
    os.makedirs(directory)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as unix:
            # A socket's path holds 107 bytes; a driver root may lie deeper than that.
            unix.bind(f"/proc/self/fd/{fd}/socket")
        os.chmod("socket", 0o666, dir_fd=fd)  # noqa: S103 - as the daemons leave theirs
    finally:
        os.close(fd)


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"
