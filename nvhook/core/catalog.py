"""What NVIDIA's driver consists of, by driver capability: data, and nothing but data.

Source: nvidia-container-stack reference, sections 2.1 (libnvidia-container) and 2.2 (nvidia-ctk).
Library names are what precedes the version: ``libcuda.so`` stands for ``libcuda.so.550.54.14``.
"""

CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
DEFAULT_CAPABILITIES = ("compute", "utility")

LIBRARIES: dict[str, tuple[str, ...]] = {
    "utility": (
        "libnvidia-ml.so",
        "libnvidia-cfg.so",
        "libnvidia-nscq.so",
    ),
    "compute": (
        "libcuda.so",
        "libcudadebugger.so",
        "libnvidia-opencl.so",
        "libnvidia-gpucomp.so",
        "libnvidia-ptxjitcompiler.so",
        "libnvidia-fatbinaryloader.so",
        "libnvidia-allocator.so",
        "libnvidia-compiler.so",
        "libnvidia-pkcs11.so",
        "libnvidia-pkcs11-openssl3.so",
        "libnvidia-nvvm.so",
        "libnvidia-nvvm70.so",
        "libnvidia-tileiras.so",
    ),
    "video": (
        "libvdpau_nvidia.so",
        "libnvidia-encode.so",
        "libnvidia-opticalflow.so",
        "libnvcuvid.so",
    ),
    "graphics": (
        "libnvidia-eglcore.so",
        "libnvidia-glcore.so",
        "libnvidia-tls.so",
        "libnvidia-glsi.so",
        "libnvidia-fbc.so",
        "libnvidia-ifr.so",
        "libnvidia-rtcore.so",
        "libnvoptix.so",
        "libGLX_nvidia.so",
        "libEGL_nvidia.so",
        "libGLESv2_nvidia.so",
        "libGLESv1_CM_nvidia.so",
        "libnvidia-glvkspirv.so",
        "libnvidia-cbl.so",
    ),
    "ngx": ("libnvidia-ngx.so",),
}
# NVIDIA: the display capability is the graphics libraries plus the modeset node.
LIBRARIES["display"] = LIBRARIES["graphics"]

# Shared by more than one capability, and by none alone.
GRAPHICS_NEEDS = ("libnvidia-allocator.so", "libnvidia-gpucomp.so")
LIBRARIES["graphics"] += GRAPHICS_NEEDS
LIBRARIES["display"] += GRAPHICS_NEEDS

# Libraries with a version of their own: the driver's version need not end their file name.
OWN_VERSION = ("libnvidia-nscq.so", "libnvidia-nvvm70.so")

BINARIES: dict[str, tuple[str, ...]] = {
    "utility": (
        "nvidia-smi",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nv-fabricmanager",
    ),
    "compute": (
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-imex",
        "nvidia-imex-ctl",
    ),
}

# Below the driver root, tried in this order; the first that exists is taken.
SOCKETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "utility": (
        ("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket"),
        ("/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket"),
    ),
    "compute": (("/tmp/nvidia-mps",),),  # noqa: S108 - MPS's own default pipe directory
}

# Directories with nvidia/<driver version>/gsp*.bin in them; {release} is uname -r.
FIRMWARE_DIRECTORIES = (
    "/lib/firmware/updates/{release}",
    "/lib/firmware/updates",
    "/lib/firmware/{release}",
    "/lib/firmware",
)
FIRMWARE_CAPABILITIES = ("compute", "utility", "graphics", "video", "display", "ngx")

BINARY_DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/nvidia/bin",  # beside /usr/local/nvidia/lib64: machines that carry the driver there
    "/usr/lib/nvidia/current",  # Debian, where nothing has made the links to /etc/alternatives
)

# Where libraries are looked for when the loader cache does not know them.
# {triplet}: x86_64-linux-gnu.
LIBRARY_DIRECTORIES = (
    "/usr/lib64",
    "/usr/lib/{triplet}",
    "/usr/lib/{triplet}/nvidia/current",
    "/usr/lib/{triplet}/vdpau",
    "/usr/lib64/vdpau",
    "/usr/lib64/nvidia",
    "/lib64",
    "/lib/{triplet}",
    "/lib/{triplet}/nvidia/current",
    "/usr/lib",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/lib64/nvidia",
    "/var/lib/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
)
LIBRARY_DIRECTORIES_32 = (
    "/usr/lib/i386-linux-gnu",
    "/usr/lib/i386-linux-gnu/nvidia/current",
    "/usr/lib32",
    "/lib/i386-linux-gnu",
    "/lib32",
    "/usr/lib",
    "/lib",
)

# (link name, library that must be there, target; {soname}/{file} of that library)
SYMLINKS: tuple[tuple[str, str, str], ...] = (
    ("libcuda.so", "libcuda.so", "libcuda.so.1"),
    ("libGLX_indirect.so.0", "libGLX_nvidia.so", "{file}"),
    ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
)

# node name -> (majors name, minor, capabilities that need it; empty: every GPU container)
CONTROL_NODES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "nvidiactl": ("nvidia", 255, ()),
    "nvidia-uvm": ("nvidia-uvm", 0, ("compute",)),
    "nvidia-uvm-tools": ("nvidia-uvm", 1, ("compute",)),
    "nvidia-modeset": ("nvidia", 254, ("display", "graphics")),
}

# The required set: without these a container that asked for the capability gets an error.
REQUIRED_NODES = ("nvidiactl", "nvidia-uvm")
REQUIRED_LIBRARIES = {"compute": ("libcuda.so",), "utility": ("libnvidia-ml.so",)}

PROC_DRIVER = "/proc/driver/nvidia"
PROC_FILES = ("params", "version", "registry")
