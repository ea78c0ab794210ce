"""Where the driver's files are on hosts: data that only discovery reads.

Source: nvidia-container-stack reference, sections 2 and 3, and the layouts of distributions.
"""

# Directories with nvidia/<driver version>/gsp*.bin in them; {release} is uname -r.
FIRMWARE_DIRECTORIES = (
    "/lib/firmware/updates/{release}",
    "/lib/firmware/updates",
    "/lib/firmware/{release}",
    "/lib/firmware",
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
    "/home/kubernetes/bin/nvidia/lib64",  # Container-Optimized OS
    "/usr/local/glibc/usr/lib",  # Talos: the rest of the system is musl
    "/run/opengl-driver/lib",  # NixOS
)
LIBRARY_DIRECTORIES_32 = (
    "/usr/lib/i386-linux-gnu",
    "/usr/lib/i386-linux-gnu/nvidia/current",
    "/usr/lib32",
    "/lib/i386-linux-gnu",
    "/lib32",
    "/usr/lib",
    "/lib",
    "/run/opengl-driver-32/lib",  # NixOS
)


# (group of catalog.FILE_GROUPS, directory in containers, names: the first that exists is taken).
# Looked for below DATA_DIRECTORIES; a file from /etc or a share directory keeps its place.
DATA_FILES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("opencl", "/etc", ("OpenCL/vendors/nvidia.icd",)),
    (
        "vulkan",
        "/etc",
        (
            "vulkan/icd.d/nvidia_icd.json",
            "vulkan/icd.d/nvidia_icd.{machine}.json",
        ),
    ),
    ("vulkan", "/etc", ("vulkan/icd.d/nvidia_layers.json",)),
    ("vulkan", "/etc", ("vulkan/implicit_layer.d/nvidia_layers.json",)),
    ("egl", "/usr/share", ("glvnd/egl_vendor.d/10_nvidia.json",)),
    ("egl", "/usr/share", ("egl/egl_external_platform.d/15_nvidia_gbm.json",)),
    ("egl", "/usr/share", ("egl/egl_external_platform.d/10_nvidia_wayland.json",)),
    ("egl", "/usr/share", ("egl/egl_external_platform.d/09_nvidia_wayland2.json",)),
    ("egl", "/usr/share", ("egl/egl_external_platform.d/20_nvidia_xcb.json",)),
    ("egl", "/usr/share", ("egl/egl_external_platform.d/20_nvidia_xlib.json",)),
    ("optix", "/usr/share", ("nvidia/nvoptix.bin",)),
    ("xorg", "/usr/share", ("X11/xorg.conf.d/10-nvidia.conf",)),
    ("xorg", "/usr/share", ("X11/xorg.conf.d/nvidia-drm-outputclass.conf",)),
)
STANDARD_DATA_DIRECTORIES = ("/etc", "/usr/local/share", "/usr/share")
DATA_DIRECTORIES = (
    *STANDARD_DATA_DIRECTORIES,
    "/run/opengl-driver/share",  # NixOS
    "",  # a driver root that is nothing but the driver, as Container-Optimized OS has it
    "/home/kubernetes/bin/nvidia",
    "/usr/local/nvidia",
)

# Xorg's own modules: they are mounted where they are, Xorg has a path for each distribution. What
# they are called, and what a link to them may be called instead: Debian's has no version.
XORG_MODULES = (
    ("nvidia_drv.so", "nvidia_drv.so"),
    ("libglxserver_nvidia.so.{version}", "libglxserver_nvidia.so"),
)
# {library}: every directory of LIBRARY_DIRECTORIES.
XORG_DIRECTORIES = (
    "{library}/nvidia/xorg",
    "{library}/xorg/modules/drivers",
    "{library}/xorg/modules/extensions",
    "{library}/xorg/modules/updates/drivers",
    "{library}/xorg/modules/updates/extensions",
    "/usr/X11R6/lib/modules/drivers",
    "/usr/X11R6/lib/modules/extensions",
    "/usr/X11R6/lib64/modules/drivers",
    "/usr/X11R6/lib64/modules/extensions",
)
