"""What resources are called. Pure.

Source: kubernetes reference, sections 2.1 and 2.4; Kubernetes' rules for extended resources.
"""

import re

from nvhook.errors import RequestError

PREFIX = "nvidia.com/"
GPU = f"{PREFIX}gpu"
SHARED_SUFFIX = ".shared"
MAX_NAME = 63
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)


def full_name(name: str) -> str:
    """Return a resource's full name; what has no prefix gets NVIDIA's.

    Raises: RequestError for another prefix, or what Kubernetes would not take.
    """
    full = name if name.startswith(PREFIX) else PREFIX + name
    bare = full.removeprefix(PREFIX)
    if "/" in bare:
        raise RequestError(f"resource {name} is not below {PREFIX}", f"call it {GPU}, for instance")
    if len(full) > MAX_NAME:
        raise RequestError(f"resource name {full} has {len(full)} characters, at most {MAX_NAME}")
    if _NAME.fullmatch(bare) is None or ".." in bare:
        raise RequestError(
            f"{full!r} is no resource name",
            "small letters, digits, - and . inside, as in nvidia.com/gpu-small",
        )
    return full


def mig_name(profile: str) -> str:
    """Return what MIG devices of a profile are called: ``nvidia.com/mig-1g.10gb.me``.

    Raises: RequestError for a profile that makes no name.
    """
    return full_name("mig-" + (profile.replace("+", ".") or "unknown"))
