"""Device rules as both cgroup versions take them."""

from __future__ import annotations

from nvhook.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

# (type, major, minor, access): ("c", 195, 0, "rw"). In a device program no access at all is a
# denial, whatever the program behind says.
DeviceRule: TypeAlias = tuple[str, int, int, str]

# The numbers of struct bpf_cgroup_dev_ctx (linux/bpf.h).
TYPES = {"b": 1, "c": 2}
ACCESS = {"m": 1, "r": 2, "w": 4}
MAX_MAJOR = (1 << 12) - 1
MAX_MINOR = (1 << 20) - 1


def canonical(rules: Iterable[DeviceRule], denials: bool = False) -> tuple[DeviceRule, ...]:
    """Sort rules and join those of one device.

    denials: rules without any access are taken, too; an access wins over a denial.

    Raises: UnsupportedError for a rule that no device number can match.
    """
    joined: dict[tuple[str, int, int], set[str]] = {}
    for kind, major, minor, access in rules:
        numbers = 0 <= major <= MAX_MAJOR and 0 <= minor <= MAX_MINOR
        if (
            kind not in TYPES
            or not numbers
            or not (access or denials)
            or not set(access) <= set(ACCESS)
        ):
            raise UnsupportedError(f"{kind} {major}:{minor} {access} is not a device rule")
        joined.setdefault((kind, major, minor), set()).update(access)
    return tuple(
        [(*key, "".join([c for c in "rwm" if c in joined[key]])) for key in sorted(joined)]
    )
