"""Additions to a bundle's config.json; everything that is there stays as the engine wrote it."""

from nvhook.formats.json_splice import Splice
from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final, TypeVar

    T = TypeVar("T")
    Object = dict[str, object]

_DEVICES = ("linux", "devices")
_RULES = ("linux", "resources", "devices")
_GIDS = ("process", "user", "additionalGids")


class Additions(Record):
    """What a config.json gets, each value as it stands there.

    ``env`` are ``NAME=value`` entries, ``devices`` linux.devices objects, ``rules``
    linux.resources.devices objects, ``gids`` supplementary groups, ``hooks`` (stage, hook) pairs.
    """

    __slots__ = ("devices", "env", "gids", "hooks", "mounts", "rules")

    def __init__(
        self,
        env: "Sequence[str]" = (),
        devices: "Sequence[Object]" = (),
        rules: "Sequence[Object]" = (),
        mounts: "Sequence[Object]" = (),
        gids: "Sequence[int]" = (),
        hooks: "Sequence[tuple[str, Object]]" = (),
    ) -> None:
        self.env: Final = tuple(env)
        self.devices: Final = tuple(devices)
        self.rules: Final = tuple(rules)
        self.mounts: Final = tuple(mounts)
        self.gids: Final = tuple(gids)
        self.hooks: Final = tuple(hooks)

    def __add__(self, other: "Additions") -> "Additions":
        """Return both, other's after these."""
        return Additions(
            env=self.env + other.env,
            devices=self.devices + other.devices,
            rules=self.rules + other.rules,
            mounts=self.mounts + other.mounts,
            gids=self.gids + other.gids,
            hooks=self.hooks + other.hooks,
        )


def add(
    text: str,
    document: "Object",
    additions: Additions,
    superseded: "Callable[[Object], bool]" = lambda hook: False,
) -> str:
    """Return a config.json's text with additions made; document is what the text says.

    What is there already is not added again; a device of the same path is replaced, and hooks at
    prestart or createRuntime that are superseded are taken out. The parts that matter have been
    checked (formats/oci.parse_document).
    """
    splice = Splice(text)
    for stage in ("prestart", "createRuntime"):
        for index, hook in enumerate(_list(document, ("hooks", stage))):
            if superseded(hook):
                splice.remove(("hooks", stage), index)
    _add_devices(splice, _list(document, _DEVICES), additions.devices)
    for path, values in (
        (("process", "env"), additions.env),
        (_RULES, additions.rules),
        (("mounts",), additions.mounts),
        (_GIDS, [gid for gid in additions.gids if gid]),
    ):
        there = _list(document, path)
        splice.append(path, [value for value in _once(values) if value not in there])
    for stage, hook in additions.hooks:
        splice.append(("hooks", stage), [hook])
    return splice.result()


def _add_devices(splice: Splice, there: "list[Object]", devices: "Sequence[Object]") -> None:
    places = {device.get("path"): index for index, device in enumerate(there)}
    by_path = {device["path"]: device for device in devices}  # of two, the last one counts
    for path, device in by_path.items():
        index = places.get(path)
        if index is not None and _number(there[index]) != _number(device):
            splice.replace(_DEVICES, index, device)
    splice.append(_DEVICES, [by_path[path] for path in by_path if path not in places])


def _number(device: "Object") -> tuple[object, ...]:
    return device.get("type"), device.get("major"), device.get("minor")


def _once(values: "Sequence[T]") -> "list[T]":
    kept: list[T] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def _list(document: "Object", path: tuple[str, ...]) -> "list[Object]":
    value: object = document
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, list) else []
