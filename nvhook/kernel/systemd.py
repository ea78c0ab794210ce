"""The device list of a systemd unit: what systemd makes the device cgroup from, at every reload.

A rule that was only added to the cgroup is lost at the next ``systemctl daemon-reload`` or
``set-property``: systemd then installs its own list again.
"""

from _struct import error as struct_error  # type: ignore[attr-defined]  # typeshed has it not
from _struct import unpack_from

from nvhook.errors import HostError
from nvhook.kernel.cgroup import SYSTEMD_SOCKET
from nvhook.kernel.dbus import Connection, Writer, text_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.kernel.device_rules import DeviceRule

_BUS = "org.freedesktop.systemd1"
_KINDS = {".scope": "Scope", ".service": "Service"}
_KEPT = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def allow(unit: str, rules: "Iterable[DeviceRule]", socket: str = SYSTEMD_SOCKET) -> str:
    """Put devices on a unit's list, until it ends; say what was done.

    Nothing is done to a unit without a list: with one it would be closed to all other devices.
    Rules are (type, major, minor, access).

    Raises: HostError.
    """
    with Connection(socket) as bus:
        try:
            restricted = _is_restricted(bus, unit)
        except (IndexError, struct_error) as failure:
            raise HostError(f"{socket}: an answer about {unit} is not understood") from failure
        if not restricted:
            return f"{unit} restricts no devices"
        body = Writer()
        body.text(unit)
        body.number(1)  # runtime: in /run, gone with the unit
        properties = body.begin_array(8)
        body.align(8)
        body.text("DeviceAllow")
        body.signature("a(ss)")
        entries = body.begin_array(8)
        count = 0
        for kind, major, minor, access in rules:
            directory = "block" if kind == "b" else "char"
            body.align(8)
            body.text(f"/dev/{directory}/{major}:{minor}")  # parsed, it need not exist (v240)
            body.text(access)
            count += 1
        body.end_array(entries, 8)
        body.end_array(properties, 8)
        manager = "/org/freedesktop/systemd1"
        bus.call(manager, f"{_BUS}.Manager", "SetUnitProperties", "sba(sv)", body)
    return f"{unit}: {count} devices"


def _is_restricted(bus: Connection, unit: str) -> bool:
    policy = _property(bus, unit, "DevicePolicy")
    if text_at(policy, _value_at(policy)) != "auto":
        return True
    devices = _property(bus, unit, "DeviceAllow")
    at = _value_at(devices)
    at += -at % 4
    (length,) = unpack_from("<I", devices, at)
    return bool(length)


def _property(bus: Connection, unit: str, name: str) -> bytes:
    """Return a property as a marshalled variant."""
    kind = _KINDS["." + unit.rpartition(".")[2]]
    body = Writer()
    body.text(f"{_BUS}.{kind}")
    body.text(name)
    place = f"/org/freedesktop/systemd1/unit/{_escaped(unit)}"
    return bus.call(place, "org.freedesktop.DBus.Properties", "Get", "ss", body)


def _value_at(variant: bytes) -> int:
    """Return where the value of a variant begins, before alignment."""
    return 1 + variant[0] + 1


def _escaped(unit: str) -> str:
    """Return a unit's name as the last part of an object path."""
    return "".join(
        [
            c
            if c in _KEPT and (at or not c.isdigit())
            else "".join(f"_{b:02x}" for b in c.encode())
            for at, c in enumerate(unit)
        ]
    )
