"""The plugin's configuration file: NVIDIA's ``version: v1``, alone or in a ConfigMap.

What NVIDIA's plugin reads and then ignores (``resources``, ``rename``, ``devices``) counts here.
A key that it would ignore unread is an error, since it is a mistake; but for the two below
``flags`` that published examples have there.

Source: kubernetes reference, section 2.1 and 2.8; tests/data/device_plugin.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from nvhook.errors import ConfigError, FormatError, RequestError
from nvhook.formats import yaml_text
from nvhook.formats.yaml_text import Unquoted
from nvhook.kubelet.names import SHARED_SUFFIX, full_name
from nvhook.kubelet.settings import (
    LABEL_OPTIONS,
    OPTIONS,
    DeviceSelector,
    NameRule,
    SharedResource,
    Sharing,
    SharingMethod,
)
from nvhook.settings import FLAG, FLAG_SHAPE, LIST_SHAPE, Kind, did_you_mean

VERSION = "v1"
MAX_SIZE = 1 << 20
# A map with one configuration applies everywhere; of several, this one where none is chosen.
DEFAULT_NAME = "default"
MIN_REPLICAS, MAX_REPLICAS = 2, 1 << 20
_ALL_OPTIONS = OPTIONS + LABEL_OPTIONS
# YAML's words, of which none is one in quotes.
_FLAGS = dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True)
_FLAGS |= dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False)
_METHODS: Mapping[str, SharingMethod] = {"timeSlicing": "time-slicing", "mps": "mps"}
_SHARING_FLAGS = ("renameByDefault", "failRequestsGreaterThanOne")
_SHARED = ("name", "rename", "devices", "replicas")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file sets, by field of Settings or LabelSettings, and what it says in vain."""

    values: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def load(path: str, name: str = "") -> Loaded:
    """Return what a file sets. Of a ConfigMap, or a directory that is one, ``name`` chooses.

    Raises: ConfigError, which names the file, the key and its line.
    """
    if os.path.isdir(path):
        # A mounted ConfigMap has its keys as files, beside names with dots that are its own.
        names = [each for each in sorted(os.listdir(path)) if not each.startswith(".")]
        chosen = _choose(path, names, name)
        if chosen is None:
            return Loaded(warnings=(_undecided(path, names),))
        return parse(_read(f"{path}/{chosen}"), f"{path}/{chosen}")
    data = _read(path)
    configurations = _config_map(data, path)
    if configurations is None:
        if name:
            raise ConfigError(f"{path} is one configuration, and has none that is called {name}")
        return parse(data, path)
    chosen = _choose(path, [*configurations], name)
    if chosen is None:
        return Loaded(warnings=(_undecided(path, [*configurations]),))
    return parse(configurations[chosen].encode(), f"{path} data.{chosen}")


def parse(data: bytes, what: str) -> Loaded:
    """Return what a text of version v1 sets; ``what`` names it in errors.

    Raises: ConfigError.
    """
    warnings: list[str] = []
    root = _Node(data, what, (), _document(data, what))
    known = {"version", "flags", "resources", "sharing", "imex"}
    parts = root.keys(known, _hint)
    version = parts.get("version")
    if version is not None and version.value != VERSION:
        raise version.wrong(f"{str(version.value)!r} is not known, {VERSION} is")
    values: dict[str, object] = {}
    for section in ("flags", "imex"):
        if section in parts:
            values |= _flags(parts[section], section, warnings)
    if "resources" in parts:
        rules = parts["resources"].keys({"gpus", "mig"})
        for key, name in (("gpus", "gpu_names"), ("mig", "mig_names")):
            if key in rules:
                values[name] = tuple(_name_rule(each) for each in rules[key].items())
    if "sharing" in parts:
        sharing = _sharing(parts["sharing"], warnings)
        values |= {} if sharing is None else {"sharing": sharing}
    return Loaded(values, tuple(warnings))


class _Node:
    """A value of the file, and where it stands."""

    def __init__(self, data: bytes, what: str, place: tuple[str | int, ...], value: object) -> None:
        self.value = value
        self._data = data
        self._what = what
        self._place = place

    def keys(self, known: set[str], hint: _Hint | None = None) -> dict[str, _Node]:
        """Return what an object has by key, without what is null.

        Raises: ConfigError for no object and for unknown keys.
        """
        if not isinstance(self.value, dict):
            raise self.wrong("must be an object of keys")
        children = {key: self._child(key, value) for key, value in self.value.items()}
        for key, child in children.items():
            if key not in known:
                remedy = hint(key) if hint is not None else ""
                raise child.wrong(
                    "is not known", remedy or f"known here: {', '.join(sorted(known))}"
                )
        return {key: child for key, child in children.items() if child.value is not None}

    def items(self) -> list[_Node]:
        """Return the items of a list of at least one.

        Raises: ConfigError.
        """
        if not isinstance(self.value, list) or not self.value:
            raise self.wrong("must be a list of at least one")
        return [self._child(index, value) for index, value in enumerate(self.value)]

    def of(self, kind: Kind) -> object:
        """Return a value of a kind.

        Raises: ConfigError.
        """
        if kind.shape == FLAG_SHAPE:
            value: object = _FLAGS.get(self.value) if isinstance(self.value, Unquoted) else None
        elif kind.shape == LIST_SHAPE and isinstance(self.value, str):
            value = kind.of_text(self.value)  # a list of one may be a text
        else:
            value = kind.of(self.value)
        if value is None:
            raise self.wrong(f"must be {kind.wanted}")
        return value

    def text(self) -> str:
        """Return a text that is not empty.

        Raises: ConfigError.
        """
        if not isinstance(self.value, str) or not self.value:
            raise self.wrong("must be a text")
        return str(self.value)

    def flag(self) -> bool:
        """Return true or false.

        Raises: ConfigError.
        """
        return bool(self.of(FLAG))

    def number(self, least: int, most: int) -> int:
        """Return a number.

        Raises: ConfigError.
        """
        text = self.value if isinstance(self.value, Unquoted) else ""
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise self.wrong("must be a number")
        if not least <= int(text) <= most:
            raise self.wrong(f"must be {least} to {most}")
        return int(text)

    def resource_name(self, suffix: str = "") -> str:
        """Return a full resource name that is one with the suffix, too.

        Raises: ConfigError.
        """
        name = self.text()
        try:
            full_name(name + suffix)
            return full_name(name)
        except RequestError as error:
            raise self.wrong(error.message, error.hint) from None

    def wrong(self, message: str, hint: str = "") -> ConfigError:
        """Return the error that says what is wrong with this."""
        line = yaml_text.line_of(self._data, self._place)
        dotted = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in self._place
        ).removeprefix(".")
        return ConfigError(f"{self._what} line {line}: {dotted or 'the file'} {message}", hint)

    def _child(self, part: str | int, value: object) -> _Node:
        return _Node(self._data, self._what, (*self._place, part), value)


_Hint: TypeAlias = Callable[[str], str]


def _flags(node: _Node, path: str, warnings: list[str]) -> dict[str, object]:
    """Return the options below a key, and those deeper down."""
    prefix = f"{path}."
    options = [each for each in _ALL_OPTIONS if each.key.startswith(prefix)]
    below = {each.key.removeprefix(prefix): each for each in options}
    direct = {key: option for key, option in below.items() if "." not in key}
    groups = {key.partition(".")[0] for key in below if "." in key}
    misplaced = {*_SHARING_FLAGS} if path == "flags" else set()
    values: dict[str, object] = {}
    for key, child in node.keys({*direct, *groups, *misplaced}, _hint).items():
        if key in groups:
            values |= _flags(child, prefix + key, warnings)
        elif key in misplaced:
            reason = "has no effect here: it belongs below sharing.timeSlicing or sharing.mps"
            warnings.append(str(child.wrong(reason)))
        else:
            value = child.of(direct[key].kind)
            values |= {direct[key].attribute: value} if direct[key].attribute else {}
    return values


def _name_rule(node: _Node) -> NameRule:
    keys = node.keys({"pattern", "name"})
    for key in ("pattern", "name"):
        if key not in keys:
            raise node.wrong(f"has no {key}")
    return NameRule(keys["pattern"].text(), keys["name"].resource_name())


def _sharing(node: _Node, warnings: list[str]) -> Sharing | None:
    methods = node.keys({*_METHODS}, _hint)
    if not methods:
        return None
    if len(methods) == 2:
        warnings.append(str(methods["timeSlicing"].wrong("has no effect beside sharing.mps")))
    key = "mps" if "mps" in methods else "timeSlicing"
    keys = methods[key].keys({*_SHARING_FLAGS, "resources"}, _hint)
    if "resources" not in keys:
        raise methods[key].wrong("has no resources", "name some: - name: nvidia.com/gpu")
    renames = "renameByDefault" in keys and keys["renameByDefault"].flag()
    # With MPS, two replicas of a GPU have one replica's limits.
    fails = keys.get("failRequestsGreaterThanOne")
    return Sharing(
        _METHODS[key],
        tuple(_shared_resource(each, renames) for each in keys["resources"].items()),
        renames,
        key == "mps" if fails is None else fails.flag(),
    )


def _shared_resource(node: _Node, renames: bool) -> SharedResource:
    keys = node.keys({*_SHARED})
    for key in ("name", "replicas"):
        if key not in keys:
            raise node.wrong(f"has no {key}")
    suffix = SHARED_SUFFIX if renames and "rename" not in keys else ""
    return SharedResource(
        keys["name"].resource_name(suffix),
        keys["replicas"].number(MIN_REPLICAS, MAX_REPLICAS),
        keys["rename"].resource_name() if "rename" in keys else "",
        _selector(keys["devices"]) if "devices" in keys else "all",
    )


def _selector(node: _Node) -> DeviceSelector:
    if isinstance(node.value, list):
        return tuple(dict.fromkeys(item.text() for item in node.items()))
    if node.value == "all":
        return "all"
    if isinstance(node.value, Unquoted) and node.value.isdigit():
        return node.number(1, MAX_REPLICAS)
    raise node.wrong("must be all, how many, or a list", "- 0, - GPU-..., - 'A100*' are items")


def _hint(key: str) -> str:
    """Say where a key belongs that stands at the wrong place."""
    places = {option.key.rpartition(".")[2]: option.key for option in _ALL_OPTIONS if option.key}
    places |= {key: f"sharing.{key}" for key in _METHODS}
    places |= dict.fromkeys((*_SHARING_FLAGS, "resources"), "sharing.timeSlicing or sharing.mps")
    if key in _METHODS:
        return f"it belongs below sharing, further to the right: {places[key]}"
    if key in _SHARING_FLAGS or key == "resources":
        return f"it belongs below {places[key]}"
    if key in places:
        return f"it belongs below {places[key].rpartition('.')[0]}"
    return did_you_mean(key, places)


def _document(data: bytes, what: str) -> object:
    try:
        return yaml_text.parse(data, what, MAX_SIZE)
    except FormatError as error:
        raise ConfigError(error.message, error.hint) from None


def _config_map(data: bytes, path: str) -> dict[str, str] | None:
    """Return the texts in a ConfigMap by name; None of a file that is none."""
    document = _document(data, path)
    if not isinstance(document, dict) or document.get("kind") != "ConfigMap":
        return None
    content = document.get("data") or {}
    node = _Node(data, path, ("data",), content)
    known = {*content} if isinstance(content, dict) else set()
    return {key: each.text() for key, each in node.keys(known).items()}


def _choose(path: str, names: list[str], name: str) -> str | None:
    """Return the configuration that applies; None where nothing decides."""
    if name and name not in names:
        raise ConfigError(f"{path} has no configuration {name}", f"it has {', '.join(names)}")
    if name or len(names) == 1:
        return name or names[0]
    return DEFAULT_NAME if DEFAULT_NAME in names else None


def _undecided(path: str, names: list[str]) -> str:
    return (
        f"{path}: none of its configurations ({', '.join(names) or 'it has none'}) applies:"
        f" choose with --config-name, or call one {DEFAULT_NAME}"
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"can't read configuration file {path}: {error.strerror}") from None
