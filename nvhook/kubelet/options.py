"""Options of the device plugin: their kinds, and how they are declared.

Names and meaning are NVIDIA's; those without a key in NVIDIA's file are nvhook's own. Source:
kubernetes reference, section 2.1.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import field, fields
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

from nvhook.settings import FLAG, LIST_SHAPE, TEXT, TEXT_SHAPE, Kind, Setting, one_of

T = TypeVar("T")

_UNITS = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}
_PART = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|h|m|s)", re.ASCII)
_DURATION = re.compile(f"(?:{_PART.pattern})+", re.ASCII)
_ADDRESS = re.compile(r".*:([0-9]{1,5})", re.ASCII)
_CHANNELS: dict[tuple[str, ...], tuple[int, ...]] = {(): (), ("0",): (0,)}


def option(default: T, names: str, doc: str, kind: Kind | None = None) -> T:
    """Declare a field of settings that is an option; without a kind, its type says what it takes.

    ``names`` are its --flags, its VARIABLES and its dotted key in the file.
    """
    return field(default=default, metadata={"option": (names, doc, kind)})


def options_of(settings: type) -> tuple[Setting, ...]:
    """Return the options that a class of settings declares."""
    hints = get_type_hints(settings)
    found = []
    for each in fields(settings):
        if each.metadata:
            names, doc, kind = each.metadata["option"]
            kind = kind or _kind_of(hints[each.name])
            found.append(named(kind, names, doc, each.name))
    return tuple(found)


def named(kind: Kind, names: str, doc: str, attribute: str = "") -> Setting:
    """Return an option by its names."""
    flags = tuple(name for name in names.split() if name.startswith("-"))
    variables = tuple(name for name in names.split() if name.isupper())
    key = next((name for name in names.split() if "." in name), "")
    return Setting(key, kind, doc, attribute, flags, variables)


def _kind_of(hint: object) -> Kind:
    """Return the kind of a field: true or false, a text, one of some words, or a list of some."""
    if get_origin(hint) is Literal:
        return one_of(get_args(hint))
    if get_origin(hint) is tuple:
        return some_of(get_args(get_args(hint)[0]))
    return FLAG if hint is bool else TEXT


def option_of(attribute: str, options: Iterable[Setting]) -> Setting:
    """Return the option that sets a field."""
    return next(each for each in options if each.attribute == attribute)


def some_of(choices: tuple[str, ...]) -> Kind:
    """Return the kind of lists of at least one of some words."""
    wanted = f"a list of some of {', '.join(choices)}"
    return Kind(
        LIST_SHAPE,
        wanted,
        lambda words: _unique(words) if words and set(words).issubset(choices) else None,
    )


def _unique(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _address(text: str) -> str | None:
    found = _ADDRESS.fullmatch(text)
    return text if not text or (found and int(found[1]) < 1 << 16) else None


def _seconds(text: str) -> float | None:
    """Return the seconds of a duration as Go writes it, or of a plain number."""
    if text == "infinite":
        return math.inf
    if _DURATION.fullmatch(text) is None:
        return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


# Empty: as if nothing were said.
PLACE = Kind(TEXT_SHAPE, "an absolute path", lambda text: text if text[:1] in {"", "/"} else None)
ADDRESS = Kind(TEXT_SHAPE, "HOST:PORT, or :PORT for every address of this host", _address)
DURATION = Kind(TEXT_SHAPE, "60s, 1h30m, a number of seconds, or infinite", _seconds)
SELECTORS = Kind(LIST_SHAPE, "a list of indices, UUIDs, PCI bus ids and model patterns", _unique)
CHANNELS = Kind(
    LIST_SHAPE,
    "empty, or 0: other IMEX channels are given by a DRA driver",
    lambda words: _CHANNELS.get(_unique(words)),
)
