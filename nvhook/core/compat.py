"""CUDA forward compatibility: whether an image's own, newer libcuda works with this host's driver.

Source: nvidia-container-stack reference, appendix E.
"""

from __future__ import annotations

from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.edits import CachedLibrary


@record
class CompatDirectory:
    """The compatibility libraries of an image.

    ``version`` is their driver version. ``drivers`` are the branches of hosts' drivers that they
    say they work with, ``cuda`` their CUDA version; both are empty where they say nothing.
    ``libraries`` are their loader cache entries to be.
    """

    version: str
    libraries: tuple[CachedLibrary, ...]
    drivers: tuple[int, ...] = ()
    cuda: str = ""


def is_wanted(compat: CompatDirectory, driver_version: str, cuda_version: str) -> bool:
    """Tell whether the image's libcuda is to be used instead of the host's.

    Versions are the host's; an empty CUDA version is one that nobody knows.
    """
    ours, theirs = _numbers(driver_version), _numbers(compat.version)
    if compat.drivers:
        return ours[:1] != () and ours[0] in compat.drivers and theirs > ours
    if compat.cuda:
        return bool(cuda_version) and _numbers(compat.cuda) > _numbers(cuda_version)
    return theirs[:1] > ours[:1]


def _numbers(version: str) -> tuple[int, ...]:
    fields = version.split(".")
    good = all(field.isascii() and field.isdigit() and len(field) < 10 for field in fields)
    return tuple([int(field) for field in fields]) if good else ()
