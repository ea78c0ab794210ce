"""Change members of a JSON text and keep the rest of it, and its indentation, as it is.

``insert`` puts a member at an object's end, in the layout of the member before it; ``remove`` is
its exact inverse. Everything works on texts and paths, a path being the keys from the root.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from nvhook.errors import ConfigError

Keys = tuple[str, ...]
# What render writes: a JSON text as it stands, or an object of such.
Tree = str | Mapping[str, "Tree"]

_SPACE = re.compile(r"[ \t\r\n]*")
DEFAULT_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Member:
    """Where a member of an object stands: offsets of its key and its value in the text."""

    key: str
    start: int
    key_end: int
    value_start: int
    value_end: int


def parse(text: str, file: str) -> object:
    """Return the value of a JSON text.

    Raises: ConfigError with file, line and reason.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise ConfigError(f"{file} line {error.lineno}: {reason}") from None
    except _RefusedError as error:
        raise ConfigError(f"{file}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None
    except ValueError:
        raise ConfigError(f"{file}: a number has too many digits") from None


def members(text: str, keys: Keys = ()) -> list[Member] | None:
    """Return the members of the object at keys, None if there is no object."""
    at = _value_start(text, keys)
    return None if at is None or text[at] != "{" else _members(text, at)


def raw(text: str, keys: Keys = ()) -> str | None:
    """Return the value at keys as it is written, None if it is not there."""
    start = _value_start(text, keys)
    return None if start is None else text[start : _value_end(text, start)]


def replace(text: str, keys: Keys, value: str) -> str:
    """Return the text with another value at keys, which must be there."""
    start = _value_start(text, keys)
    assert start is not None
    return text[:start] + value + text[_value_end(text, start) :]


def insert(text: str, keys: Keys, tree: Tree) -> str:
    """Return the text with a new last member keys[-1] in the object keys[:-1].

    The object must be there, not empty, and must not have the member.
    """
    found = members(text, keys[:-1])
    assert found
    last = found[-1]
    gap = _gap(text, found)
    colon = text[last.key_end : last.value_start]
    indent = gap.rpartition("\n")[2] if "\n" in gap else None
    if len(found) == 1 and indent is None and colon.endswith(" "):
        gap = " "  # {"a": 1} has no second member to look at
    value = render(tree, text, indent, colon)
    member = f",{gap}{_string(keys[-1])}{colon}{value}"
    return text[: last.value_end] + member + text[last.value_end :]


def remove(text: str, keys: Keys) -> str:
    """Return the text without a member, which must be there; an object left empty is ``{}``."""
    found = members(text, keys[:-1])
    assert found
    number = [member.key for member in found].index(keys[-1])
    if len(found) == 1:
        return replace(text, keys[:-1], "{}")
    if number == 0:
        return text[: found[0].start] + text[found[1].start :]
    return text[: found[number - 1].value_end] + text[found[number].value_end :]


def render(tree: Tree, text: str, indent: str | None, colon: str = ": ") -> str:
    """Return a value as it is written in text: by lines at this indent, None: on one line."""
    if isinstance(tree, str):
        return tree
    newline = "\r\n" if "\r\n" in text else "\n"
    inner = None if indent is None else indent + _unit(text)
    pairs = [f"{_string(key)}{colon}{render(v, text, inner, colon)}" for key, v in tree.items()]
    if indent is None:
        return "{" + ", ".join(pairs) + "}"
    start = f"{newline}{inner}"
    return "{" + start + f",{start}".join(pairs) + f"{newline}{indent}" + "}"


def indent_of(text: str, keys: Keys) -> str | None:
    """Return the indent of the member at keys, None if it shares its line with another."""
    found = members(text, keys[:-1])
    assert found
    gap = _gap(text, found)
    return gap.rpartition("\n")[2] if "\n" in gap else None


class _RefusedError(Exception):
    """A value that Python would take and another reader may not."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise _RefusedError(f"the key {twice!r} stands there twice")
    return value


def _constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is not a number")


def _gap(text: str, found: list[Member]) -> str:
    """Return the blanks in front of the object's last key."""
    before = text[: found[-1].start]
    return before[len(before.rstrip(" \t\r\n")) :]


def _unit(text: str) -> str:
    """Return one step of indentation: that of the root object's members."""
    found = members(text)
    if not found:
        return DEFAULT_INDENT
    before = text[: found[0].start].rpartition("\n")
    return before[2] if before[1] and not before[2].strip(" \t") and before[2] else DEFAULT_INDENT


def _value_start(text: str, keys: Keys) -> int | None:
    at = _skip(text, 0)
    for key in keys:
        if text[at] != "{":
            return None
        found = [member for member in _members(text, at) if member.key == key]
        if not found:
            return None
        at = found[0].value_start
    return at


def _members(text: str, at: int) -> list[Member]:
    found: list[Member] = []
    at = _skip(text, at + 1)
    while text[at] != "}":
        start = at
        key, key_end = _decode(text, start)
        value_start = _skip(text, _skip(text, key_end) + 1)
        value_end = _value_end(text, value_start)
        found.append(Member(str(key), start, key_end, value_start, value_end))
        at = _skip(text, value_end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _value_end(text: str, start: int) -> int:
    return _decode(text, start)[1]


def _decode(text: str, start: int) -> tuple[object, int]:
    return json.JSONDecoder().raw_decode(text, start)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
