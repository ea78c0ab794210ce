"""Where distributions and installers put a driver: what is on disk, as lists of paths."""

import os
from collections.abc import Callable
from typing import Any

VERSION = "550.54.15"
OLD = "535.183.06"
X86, I386, ARM = (f"/usr/lib/{name}-linux-gnu" for name in ("x86_64", "i386", "aarch64"))
SMI = "nvidia-smi"


def _libraries(
    host: Any, directory: str, tag: str = "libc6,x86-64", version: str = VERSION
) -> None:
    """Put libcuda, libnvidia-ml and libGLX_nvidia there, with the links ldconfig makes."""
    for name, suffix in (("libcuda", "1"), ("libnvidia-ml", "1"), ("libGLX_nvidia", "0")):
        host.library(f"{directory}/{name}.so.{version}", f"{name}.so.{suffix}", tag)
        host.link(f"{directory}/{name}.so.{suffix}", f"{name}.so.{version}")


def _cache(host: Any, *places: tuple[str, str]) -> None:
    """Write the loader cache of these directories: (directory, tag)."""
    names = ("libnvidia-ml.so.1", "libcuda.so.1", "libGLX_nvidia.so.0")
    host.cache([(name, tag, f"{directory}/{name}") for directory, tag in places for name in names])


def _program(host: Any, path: str) -> None:
    host.put(path, b"\x7fELF", mode=0o755)


def _merged_usr(host: Any, *names: str) -> None:
    for name in names:
        (host.root / "usr" / name).mkdir(parents=True, exist_ok=True)
        host.link(f"/{name}", f"usr/{name}")


def _icd(directory: str) -> bytes:
    """Return Vulkan's manifest of the driver."""
    path = f"{directory}/libGLX_nvidia.so.0"
    return f'{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{path}"}}}}'.encode()


def ubuntu(host: Any) -> None:
    """22.04 and 24.04: packages and NVIDIA's installer, with 32-bit libraries."""
    _merged_usr(host, "bin", "lib")
    _libraries(host, X86)
    _libraries(host, I386, "libc6")
    _cache(host, (X86.removeprefix("/usr"), "libc6,x86-64"), (I386.removeprefix("/usr"), "libc6"))
    _program(host, f"/usr/bin/{SMI}")
    host.put("/usr/share/vulkan/icd.d/nvidia_icd.json")
    host.put("/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    host.put(f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    host.put(f"{X86}/nvidia/xorg/libglxserver_nvidia.so.{VERSION}")
    host.put("/usr/lib/xorg/modules/drivers/nvidia_drv.so")


def debian(host: Any) -> None:
    """Files in nvidia/current, links through /etc/alternatives."""
    _merged_usr(host, "bin", "lib")
    current = f"{X86}/nvidia/current"
    _libraries(host, current)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libGLX_nvidia.so.0"):
        host.link(f"/etc/alternatives/glx--{name}", f"{current}/{name}")
        host.link(f"{X86}/{name}", f"/etc/alternatives/glx--{name}")
    _cache(host, (X86.removeprefix("/usr"), "libc6,x86-64"))
    _program(host, f"/usr/lib/nvidia/current/{SMI}")
    host.link(f"/etc/alternatives/nvidia--{SMI}", f"/usr/lib/nvidia/current/{SMI}")
    host.link(f"/usr/bin/{SMI}", f"/etc/alternatives/nvidia--{SMI}")
    host.put("/usr/share/vulkan/icd.d/nvidia_icd.json")
    glx = "libglxserver_nvidia.so"
    host.put(f"/usr/lib/nvidia/current/{glx}.{VERSION}")
    host.link(f"/usr/lib/nvidia/current/{glx}", f"{glx}.{VERSION}")
    host.link(f"/etc/alternatives/glx--{glx}", f"/usr/lib/nvidia/current/{glx}")
    host.link(f"/usr/lib/xorg/modules/extensions/{glx}", f"/etc/alternatives/glx--{glx}")
    host.put(f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")


def rhel(host: Any) -> None:
    """RHEL and Fedora: /usr/lib64, 32-bit libraries in /usr/lib."""
    _merged_usr(host, "bin", "lib", "lib64")
    _libraries(host, "/usr/lib64")
    _libraries(host, "/usr/lib", "libc6")
    _cache(host, ("/lib64", "libc6,x86-64"), ("/lib", "libc6"))
    _program(host, f"/usr/bin/{SMI}")
    # A path where most have a bare name: ctk811.
    host.put("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", _icd("/usr/lib64"))
    host.put("/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    host.put("/usr/lib64/xorg/modules/drivers/nvidia_drv.so")
    host.put(f"/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}")


def opensuse(host: Any) -> None:
    """/usr/lib64, no merged root; Xorg's modules in its directory for updates."""
    _libraries(host, "/usr/lib64")
    _cache(host, ("/usr/lib64", "libc6,x86-64"))
    _program(host, f"/usr/bin/{SMI}")
    host.put("/etc/vulkan/icd.d/nvidia_icd.json")
    host.put(f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    host.put("/usr/lib64/xorg/modules/updates/drivers/nvidia_drv.so")


def arch(host: Any) -> None:
    """Everything in /usr/lib, /usr/lib64 is a link to it; 32-bit libraries in /usr/lib32."""
    _libraries(host, "/usr/lib")
    for link, target in (("/usr/lib64", "lib"), ("/lib", "usr/lib"), ("/lib64", "usr/lib")):
        host.link(link, target)
    _libraries(host, "/usr/lib32", "libc6")
    _cache(host, ("/usr/lib", "libc6,x86-64"), ("/usr/lib32", "libc6"))
    _program(host, f"/usr/bin/{SMI}")
    host.put("/usr/share/vulkan/icd.d/nvidia_icd.json")
    host.put("/usr/lib/nvidia/xorg/nvidia_drv.so")


def cos_from_host(host: Any) -> None:
    """Container-Optimized OS, seen from /: no loader cache knows its directory."""
    base = "/home/kubernetes/bin/nvidia"
    _libraries(host, f"{base}/lib64")
    host.cache([])
    _program(host, f"{base}/bin/{SMI}")
    host.put(f"{base}/vulkan/icd.d/nvidia_icd.json")


def cos_as_root(host: Any) -> None:
    """Container-Optimized OS with driver-root = /home/kubernetes/bin/nvidia."""
    _libraries(host, "/lib64")
    _program(host, f"/bin/{SMI}")
    host.put("/vulkan/icd.d/nvidia_icd.json")
    host.put(f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")


def talos(host: Any) -> None:
    """musl with a glibc of its own for the driver, no loader cache where one is expected."""
    _libraries(host, "/usr/local/glibc/usr/lib")
    _program(host, f"/usr/local/bin/{SMI}")
    host.put(f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    host.link("/lib", "usr/lib")


def nixos(host: Any) -> None:
    """No standard directory at all: links into the store."""
    store = "/nix/store/0a1b-nvidia-x11-550.54.15-6.6.30"
    _libraries(host, f"{store}/lib")
    _libraries(host, f"{store}-lib32/lib", "libc6")
    host.link("/run/opengl-driver", f"{store}-drivers")
    host.link(f"{store}-drivers/lib", f"{store}/lib")
    host.link("/run/opengl-driver-32", f"{store}-drivers-32")
    host.link(f"{store}-drivers-32/lib", f"{store}-lib32/lib")
    _program(host, f"{store}-bin/bin/{SMI}")
    host.link(f"/run/current-system/sw/bin/{SMI}", f"{store}-bin/bin/{SMI}")
    host.put(f"{store}/share/vulkan/icd.d/nvidia_icd.x86_64.json", _icd(f"{store}/lib"))
    host.link(f"{store}-drivers/share", f"{store}/share")


def local(host: Any) -> None:
    """/usr/local/nvidia, as images of cloud nodes have it."""
    _libraries(host, "/usr/local/nvidia/lib64")
    _program(host, f"/usr/local/nvidia/bin/{SMI}")
    host.put("/usr/local/nvidia/vulkan/icd.d/nvidia_icd.json")


def two_versions(host: Any) -> None:
    """An update that left the old driver behind, whose files the loader cache still names."""
    _libraries(host, "/usr/lib64")
    _libraries(host, X86, version=OLD)
    _cache(host, (X86, "libc6,x86-64"))
    _program(host, f"/usr/bin/{SMI}")
    for version in (OLD, VERSION):
        host.put(f"/lib/firmware/nvidia/{version}/gsp_ga10x.bin")
        host.put(f"/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.{version}")


def aarch64(host: Any) -> None:
    """A server with an Arm processor."""
    _merged_usr(host, "bin", "lib")
    _libraries(host, ARM, "libc6,aarch64")
    _cache(host, (ARM.removeprefix("/usr"), "libc6,aarch64"))
    _program(host, f"/usr/bin/{SMI}")
    host.put("/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json")
    host.put("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")


def driver_container(host: Any) -> None:
    """The tree of a container that installs drivers: links are absolute, within the tree."""
    ubuntu(host)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (host.root / f"{X86}/{name}"[1:]).unlink()
        host.link(f"{X86}/{name}", f"{X86}/{name.removesuffix('.1')}.{VERSION}")


def open_modules(host: Any) -> None:
    """Open kernel modules say their version in another order of words; the files are the same."""
    ubuntu(host)
    line = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build\n"
    host.proc_text("driver/nvidia/version", line)


def mig(host: Any) -> None:
    """A partitioned GPU: two GPU instances, the first with two compute instances."""
    ubuntu(host)
    host.proc_text("devices", "Character devices:\n195 nvidia\n235 nvidia-caps\n511 nvidia-uvm\n")
    for name, minor in MIG_CAPABILITIES.items():
        host.proc_text(f"driver/nvidia/capabilities/{name}/access", f"DeviceFileMinor: {minor}\n")
        host.fake_node(f"nvidia-caps/nvidia-cap{minor}", 235, minor)


STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0f1e2d3c4b5a6978"


def wsl(host: Any) -> None:
    """WSL 2: Windows' driver store, with a driver left behind and another vendor's package."""
    old = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_00000000000000aa"
    for age, store in enumerate((STORE, old)):
        for name, soname in WSL_FILES.items():
            path = host.library(f"{store}/{name}", soname)
            os.utime(path, (2 * 10**9 - age, 2 * 10**9 - age))
        for name in ("nvcubins.bin", "nvngx_dlss.dll", "nv_dispi.inf", "nvoptix.bin"):
            host.put(f"{store}/{name}")
        _program(host, f"{store}/{SMI}")
    host.put("/usr/lib/wsl/drivers/iigd_dch.inf_amd64_1234567890abcdef/igd12umd64.so")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libd3d12.so", "libdxcore.so"):
        host.library(f"/usr/lib/wsl/lib/{name}", name)
    # A native driver package as well, which is nobody's: ctk1739.
    _libraries(host, X86)
    _cache(host, (X86, "libc6,x86-64"))
    host.fake_node("dxg", 10, 125)


def jetson(host: Any) -> None:
    """Jetson Linux: lists of what containers get, for all boards, so that not all is there."""
    host.put("/etc/nv_tegra_release", b"# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n")
    tegra = f"{ARM}/tegra"
    for name, soname in (
        ("libcuda.so.1.1", "libcuda.so.1"),
        ("libnvrm_gpu.so", "libnvrm_gpu.so"),
        ("libnvos.so", "libnvos.so"),
        ("libnvidia-ptxjitcompiler.so.36.4.3", "libnvidia-ptxjitcompiler.so.1"),
    ):
        host.library(f"{tegra}/{name}", soname, "libc6,aarch64")
    host.link(f"{tegra}/libcuda.so", "libcuda.so.1.1")
    host.link(f"{ARM}/libcuda.so", "tegra/libcuda.so")
    host.link(f"{tegra}/libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.36.4.3")
    host.put("/usr/share/nvidia/tegra-fonts/a.ttf")
    host.put("/etc/vulkan/icd.d/nvidia_icd.json")
    host.put(f"{tegra}-egl/nvidia.json")
    host.library("/usr/lib/aarch64-linux-gnu/libcudnn.so.9.1", "libcudnn.so.9", "libc6,aarch64")
    for name, lines in CSV.items():
        text = "".join(f"{line}\n" for line in lines)
        host.put(f"/etc/nvidia-container-runtime/host-files-for-container.d/{name}", text.encode())
    for minor, name in enumerate(("nvmap", "nvhost-ctrl", "nvhost-as-gpu", "nvgpu/igpu0/ctrl")):
        host.fake_node(name, 10 if minor < 2 else 508, 40 + minor)
    host.fake_node("nvhost-vic", 508, 50)
    host.fake_node("null", 1, 3)


WSL_FILES = {
    "libcuda.so.1.1": "libcuda.so.1",
    "libcuda_loader.so": "libcuda.so.1",  # what WSL has as its libcuda.so.1
    "libnvidia-encode.so.1": "libnvidia-encode.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so": "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.1",
    "libnvdxgdmal.so.1": "libnvdxgdmal.so.1",
}
MIG_CAPABILITIES = {
    "mig/config": 1,
    "gpu0/mig/gi1": 12,
    "gpu0/mig/gi1/ci0": 13,
    "gpu0/mig/gi1/ci1": 14,
    "gpu0/mig/gi5": 48,
    "gpu0/mig/gi5/ci0": 49,
}
CSV = {
    "devices.csv": (
        "dev, /dev/nvmap",
        "dev, /dev/nvhost-[av]*",
        "dev, /dev/nvhost-ctrl-nvdla0",
        "dir, /dev/nvgpu/igpu0",
    ),
    "drivers.csv": (
        f"lib, {ARM}/tegra/libcuda.so.1.1",
        f"lib, {ARM}/tegra/libnv*.so",
        f"lib, {ARM}/tegra/libnvidia-ptxjitcompiler.so.1",
        f"lib, {ARM}/tegra/libnvscf.so",
        f"sym, {ARM}/libcuda.so",
        "lib, /etc/vulkan/icd.d/nvidia_icd.json",
        "dir, /usr/share/nvidia/tegra-fonts",
        "  ",
        "# not a line",
        "lib /usr/lib/nothing",
        "lib, ../etc/shadow",
    ),
    "l4t.csv": (f"dir, {ARM}/tegra-egl", f"lib, {ARM}/tegra/libcuda.so.1.1"),
    "cudnn.csv": (f"lib, {ARM}/libcudnn.so.9.1",),
}

# name -> (machine, how to lay it out)
LAYOUTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "ubuntu": ("x86_64", ubuntu),
    "debian": ("x86_64", debian),
    "rhel": ("x86_64", rhel),
    "opensuse": ("x86_64", opensuse),
    "arch": ("x86_64", arch),
    "cos-from-host": ("x86_64", cos_from_host),
    "cos-as-root": ("x86_64", cos_as_root),
    "talos": ("x86_64", talos),
    "nixos": ("x86_64", nixos),
    "usr-local-nvidia": ("x86_64", local),
    "two-versions": ("x86_64", two_versions),
    "aarch64": ("aarch64", aarch64),
    "driver-container": ("x86_64", driver_container),
    "open-modules": ("x86_64", open_modules),
    "mig": ("x86_64", mig),
    "wsl": ("x86_64", wsl),
    "jetson": ("aarch64", jetson),
}
# No driver is loaded there, and no GPU is in /proc.
WITHOUT_DRIVER = ("wsl", "jetson")
