"""Where a container keeps libraries and binaries: decided from a few facts about its root."""

from __future__ import annotations

from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.compat import CompatDirectory

# Where CUDA's images have their forward-compatibility libraries (core.compat).
COMPAT_DIRECTORY = "/usr/local/cuda/compat"
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


@record
class ContainerLayout:
    """Container directories for 64-bit libraries, 32-bit libraries and binaries.

    An empty directory means: keep the path the file has on the host (what CDI specs do).
    ``compat`` is what the image has for CUDA forward compatibility.
    """

    libraries: str = ""
    libraries32: str = ""
    binaries: str = ""
    compat: CompatDirectory | None = None


def container_layout(machine: str, debian: bool, has_lib32: bool) -> ContainerLayout:
    """Return NVIDIA's choice of directories.

    ``debian``: the root has /etc/debian_version; ``has_lib32``: it has /usr/lib32.
    Source: libnvidia-container, nvc_container.c.
    """
    if debian:
        triplet = TRIPLETS.get(machine, f"{machine}-linux-gnu")
        return ContainerLayout(f"/usr/lib/{triplet}", "/usr/lib/i386-linux-gnu", "/usr/bin")
    return ContainerLayout("/usr/lib64", "/usr/lib32" if has_lib32 else "/usr/lib", "/usr/bin")
