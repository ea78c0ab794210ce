"""What NVIDIA's driver consists of, by driver capability: data, and nothing but data.

Where its files are on a host stands in core.places.

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
        "libnvidia-sandboxutils.so",
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
        "libnvidia-api.so",
        "libnvidia-present.so",
        "libnvidia-vulkan-producer.so",
        "libnvidia-egl-gbm.so",
        "libnvidia-egl-wayland.so",
        "libnvidia-egl-wayland2.so",
        "libnvidia-egl-xcb.so",
        "libnvidia-egl-xlib.so",
        "libGL.so",
        "libEGL.so",
        "libGLESv1_CM.so",
        "libGLESv2.so",
    ),
    "ngx": ("libnvidia-ngx.so",),
}
# NVIDIA: the display capability is the graphics libraries plus the modeset node.
LIBRARIES["display"] = LIBRARIES["graphics"]

# Shared by more than one capability, and by none alone.
GRAPHICS_NEEDS = ("libnvidia-allocator.so", "libnvidia-gpucomp.so")
LIBRARIES["graphics"] += GRAPHICS_NEEDS
LIBRARIES["display"] += GRAPHICS_NEEDS

# A capability that is nothing without another: the video libraries load libcuda.
IMPLIED = {"video": ("compute",)}

# Drivers before glvnd have these instead of GLVND's; where both are on disk, glvnd's count.
WITHOUT_GLVND = ("libGL.so", "libEGL.so", "libGLESv1_CM.so", "libGLESv2.so")
GLVND = "libGLX_nvidia.so"

# Libraries with a version of their own: the driver's version need not end their file name.
OWN_VERSION = (
    "libnvidia-api.so",
    "libnvidia-nscq.so",
    "libnvidia-nvvm70.so",
    "libnvidia-egl-gbm.so",
    "libnvidia-egl-wayland.so",
    "libnvidia-egl-wayland2.so",
    "libnvidia-egl-xcb.so",
    "libnvidia-egl-xlib.so",
)

LISTED = frozenset([name for names in LIBRARIES.values() for name in names])
# Who gets a library that carries the driver's version and is in no list.
UNLISTED_CAPABILITIES = ("compute", "utility")

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
    "graphics": ("nvidia-xconfig",),
    "display": ("nvidia-xconfig",),
}

# Group of files (core.places says which and where) -> the capabilities that need it. Each is
# mounted where programs look for it.
GRAPHICS = ("display", "graphics")
FILE_GROUPS: dict[str, tuple[str, ...]] = {
    "opencl": ("compute",),
    "vulkan": GRAPHICS,
    "egl": GRAPHICS,
    "optix": GRAPHICS,
    "xorg": GRAPHICS,
    "named": GRAPHICS,
}
# The group of libraries that one of these files names by its path on the host: in a container
# that keeps libraries elsewhere they are there, too.
NAMED_LIBRARIES = "named"
# A GPU's nodes for rendering and for its screens.
DRM_CAPABILITIES = GRAPHICS
# What EGL of the driver may use, in a file of the driver's application profiles: see
# graphics.profile.
PROFILE_FILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"

# Below the driver root, tried in this order; the first that exists is taken.
SOCKETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "utility": (
        ("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket"),
        ("/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket"),
    ),
    "compute": (("/tmp/nvidia-mps",),),  # noqa: S108 - MPS's own default pipe directory
}

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
    "/home/kubernetes/bin/nvidia/bin",  # Container-Optimized OS
    "/run/current-system/sw/bin",  # NixOS
)

# Where packages of their own put what Vulkan, EGL and OpenCL read.
ICD_DIRECTORIES = (
    "/etc/OpenCL/vendors",
    "/etc/vulkan/icd.d",
    "/usr/share/vulkan/icd.d",
    "/usr/share/glvnd/egl_vendor.d",
)

# (link name, library that must be there, target; {file}: the file of that library). Names with a
# slash are loaded by their path and are in no loader cache.
SYMLINKS: tuple[tuple[str, str, str], ...] = (
    ("libcuda.so", "libcuda.so", "libcuda.so.1"),
    ("libGLX_indirect.so.0", "libGLX_nvidia.so", "{file}"),
    ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    ("libnvidia-vulkan-producer.so", "libnvidia-vulkan-producer.so", "{file}"),
)
# The same, only for a container with a capability of GRAPHICS.
GRAPHICS_SYMLINKS: tuple[tuple[str, str, str], ...] = (
    ("gbm/nvidia-drm_gbm.so", "libnvidia-allocator.so", "../libnvidia-allocator.so.1"),
)
# Xorg loads its GLX module by this name, beside the file with the driver's version.
XORG_LINK = ("libglxserver_nvidia.so", "libglxserver_nvidia.so.{version}")

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
