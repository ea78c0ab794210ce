"""Additions to a bundle's config.json; everything that is there stays as the engine wrote it."""

from __future__ import annotations

from nvhook.errors import FormatError
from nvhook.formats.json_splice import Splice
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    T = TypeVar("T")
    Object = dict[str, object]

_ENV = ("process", "env")
_DEVICES = ("linux", "devices")
_RULES = ("linux", "resources", "devices")
_GIDS = ("process", "user", "additionalGids")


@record
class Additions:
    """What a config.json gets, each value as it stands there.

    ``env`` are ``NAME=value`` entries, ``devices`` linux.devices objects, ``rules``
    linux.resources.devices objects, ``gids`` supplementary groups, ``hooks`` (stage, hook) pairs.
    """

    env: tuple[str, ...] = ()
    devices: tuple[Object, ...] = ()
    rules: tuple[Object, ...] = ()
    mounts: tuple[Object, ...] = ()
    gids: tuple[int, ...] = ()
    hooks: tuple[tuple[str, Object], ...] = ()

    def __add__(self, other: Additions) -> Additions:
        """Return both, other's after these."""
        return Additions(
            env=self.env + other.env,
            devices=self.devices + other.devices,
            rules=self.rules + other.rules,
            mounts=self.mounts + other.mounts,
            gids=self.gids + other.gids,
            hooks=self.hooks + other.hooks,
        )


# The lists that get additions, in the order of the launcher's (_native/splice.h).
LISTS = (_DEVICES, _ENV, _RULES, ("mounts",), _GIDS, ("hooks", "createRuntime"))


def add(
    text: str,
    document: Object,
    additions: Additions,
    superseded: Callable[[Object], bool] = lambda hook: False,
) -> str:
    """Return a config.json's text with additions made; document is what the text says."""
    return splice(text, document, additions, superseded).result()


def splice(
    text: str,
    document: Object,
    additions: Additions,
    superseded: Callable[[Object], bool] = lambda hook: False,
) -> Splice:
    """Return a config.json's text and the changes that make additions.

    What is there already, and still counts, is not added again; a device of the same path is
    replaced, and hooks at prestart or createRuntime that are superseded are taken out.

    Raises: FormatError if what leads to an addition is no object or list.
    """
    changes = Splice(text)
    for stage in ("prestart", "createRuntime"):
        for index, hook in enumerate(_objects(document, ("hooks", stage))):
            if superseded(hook):
                changes.remove(("hooks", stage), index)
    _add_devices(changes, _objects(document, _DEVICES), additions.devices)
    changes.append(_ENV, _new_variables(_list(document, _ENV), additions.env))
    for path, there, values in (
        (_RULES, _rules_in_force(_objects(document, _RULES)), additions.rules),
        (("mounts",), _list(document, ("mounts",)), additions.mounts),
        (_GIDS, _list(document, _GIDS), [gid for gid in additions.gids if gid]),
    ):
        changes.append(path, [value for value in _once(values) if value not in there])
    for stage, hook in additions.hooks:
        if superseded(hook) or hook not in _objects(document, ("hooks", stage)):
            changes.append(("hooks", stage), [hook])
    return changes


def _new_variables(there: list[object], wanted: Sequence[str]) -> list[str]:
    """Return the variables that don't have their value yet; the last one of a name counts."""
    have = {entry.partition("=")[0]: entry for entry in there if isinstance(entry, str)}
    last = {entry.partition("=")[0]: entry for entry in wanted}
    return [entry for name, entry in last.items() if have.get(name) != entry]


def _rules_in_force(rules: list[Object]) -> list[Object]:
    """Return the rules after the last one that denies: it may take back those before it."""
    start = max([at for at, rule in enumerate(rules, 1) if not rule.get("allow")], default=0)
    return rules[start:]


def _add_devices(splice: Splice, there: list[Object], devices: Sequence[Object]) -> None:
    places = {device.get("path"): index for index, device in enumerate(there)}
    by_path = {device["path"]: device for device in devices}  # of two, the last one counts
    for path, device in by_path.items():
        index = places.get(path)
        if index is not None and _number(there[index]) != _number(device):
            splice.replace(_DEVICES, index, device)
    splice.append(_DEVICES, [by_path[path] for path in by_path if path not in places])


def _number(device: Object) -> tuple[object, ...]:
    return device.get("type"), device.get("major"), device.get("minor")


def _once(values: Sequence[T]) -> list[T]:
    kept: list[T] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def _list(document: Object, path: tuple[str, ...]) -> list[object]:
    """Return a list, empty where it or what leads to it is absent or null."""
    value: object = document
    for at, name in enumerate(path):
        if not isinstance(value, dict):
            raise FormatError(f"config.json: {'.'.join(path[:at])} is not an object")
        value = value.get(name)
        if value is None:
            return []
    if not isinstance(value, list):
        raise FormatError(f"config.json: {'.'.join(path)} is not a list")
    return value


def _objects(document: Object, path: tuple[str, ...]) -> list[Object]:
    objects = []
    for item in _list(document, path):
        if not isinstance(item, dict):
            raise FormatError(f"config.json: {'.'.join(path)} has an entry that is not an object")
        objects.append(item)
    return objects
