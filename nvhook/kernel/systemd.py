"""The device list of a systemd unit, which a container's cgroup may be (_native/systemd.c).

systemd installs a unit's list anew at every daemon-reload: what is not on it is taken away then.
"""

from __future__ import annotations

import os

from nvhook._native import ffi, lib
from nvhook.errors import HostError
from nvhook.kernel.cgroup import SYSTEMD_SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.kernel.device_rules import DeviceRule

SECONDS = 5  # for each answer


def allow(
    unit: str,
    rules: Iterable[DeviceRule],
    socket: str = SYSTEMD_SOCKET,
    seconds: int = SECONDS,
) -> str:
    """Put devices on a unit's list, until it ends; say what was done.

    Nothing is done to a unit without a list: with one it would be closed to all other devices.
    Rules are (type, major, minor, access).

    Raises: HostError.
    """
    count = _change(unit, rules, socket, seconds, forget=False)
    return f"{unit}: {count} devices" if count else f"{unit} restricts no devices"


def forget(unit: str, rules: Iterable[DeviceRule], socket: str = SYSTEMD_SOCKET) -> None:
    """Take devices off a unit's list, as allow has put them there.

    Raises: HostError.
    """
    _change(unit, rules, socket, SECONDS, forget=True)


def _change(unit: str, rules: Iterable[DeviceRule], socket: str, seconds: int, forget: bool) -> int:
    lines = [f"{kind} {major}:{minor} {access}" for kind, major, minor, access in rules]
    why = ffi.new("char[256]")
    arguments = os.fsencode(socket), os.fsencode(unit), "\n".join(lines).encode()
    count = lib.nvh_systemd_devices(*arguments, forget, seconds, why)
    if count < 0:
        raise HostError(ffi.string(why).decode("utf-8", "replace") or os.strerror(-count))
    return count
