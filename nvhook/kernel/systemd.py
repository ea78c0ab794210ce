"""The device list of a systemd unit: what systemd makes the device cgroup from, at every reload.

A rule that was only added to the cgroup is lost at the next ``systemctl daemon-reload`` or
``set-property``: systemd then installs its own list again.
"""

from __future__ import annotations

from struct import error as struct_error
from struct import unpack_from

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


def allow(unit: str, rules: Iterable[DeviceRule], socket: str = SYSTEMD_SOCKET) -> str:
    """Put devices on a unit's list, until it ends; say what was done.

    Nothing is done to a unit without a list: with one it would be closed to all other devices.
    Rules are (type, major, minor, access).

    Raises: HostError.
    """
    entries = [(_path(rule), rule[3]) for rule in rules]
    with Connection(socket) as bus:
        policy, listed = _restrictions(bus, unit)
        if policy == "auto" and not listed:
            return f"{unit} restricts no devices"
        _set(bus, unit, [entries])
    return f"{unit}: {len(entries)} devices"


def forget(unit: str, rules: Iterable[DeviceRule], socket: str = SYSTEMD_SOCKET) -> None:
    """Take devices off a unit's list, as allow has put them there.

    Raises: HostError.
    """
    gone = {_path(rule) for rule in rules}
    with Connection(socket) as bus:
        _, listed = _restrictions(bus, unit)
        kept = [entry for entry in listed if entry[0] not in gone]
        if kept != listed:
            _set(bus, unit, [[], kept])  # an empty list empties it, the next one is added


def _path(rule: DeviceRule) -> str:
    """Return how a device is called on a list: parsed, it need not exist (systemd 240)."""
    kind, major, minor, _ = rule
    return f"/dev/{'block' if kind == 'b' else 'char'}/{major}:{minor}"


def _set(bus: Connection, unit: str, lists: list[list[tuple[str, str]]]) -> None:
    """Assign DeviceAllow, once for each list."""
    body = Writer()
    body.text(unit)
    body.number(1)  # runtime: in /run, gone with the unit
    properties = body.begin_array(8)
    for entries in lists:
        body.align(8)
        body.text("DeviceAllow")
        body.signature("a(ss)")
        place = body.begin_array(8)
        for path, access in entries:
            body.align(8)
            body.text(path)
            body.text(access)
        body.end_array(place, 8)
    body.end_array(properties, 8)
    manager = "/org/freedesktop/systemd1"
    bus.call(manager, f"{_BUS}.Manager", "SetUnitProperties", "sba(sv)", body)


def _restrictions(bus: Connection, unit: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a unit's DevicePolicy and DeviceAllow."""
    try:
        policy = _property(bus, unit, "DevicePolicy")
        return text_at(policy, _value_at(policy)), _pairs(_property(bus, unit, "DeviceAllow"))
    except (IndexError, struct_error) as failure:
        raise HostError(f"{bus.path}: an answer about {unit} is not understood") from failure


def _pairs(variant: bytes) -> list[tuple[str, str]]:
    """Return the value of a variant of type a(ss)."""
    at = _value_at(variant)
    at += -at % 4
    (length,) = unpack_from("<I", variant, at)
    at += 4
    at += -at % 8
    end = at + length
    found = []
    while at < end:
        texts = []
        for _ in range(2):
            texts.append(text_at(variant, at))
            at += -at % 4
            at += 4 + unpack_from("<I", variant, at)[0] + 1
        found.append((texts[0], texts[1]))
        at += -at % 8
    return found


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
