"""Set keys in a TOML text line by line, so that it can be taken back exactly.

A line that nvhook writes ends in MARK. A line that it replaces stays below it, as a comment that
begins with WAS. So the original is the text without the former and without the latter's prefix,
whatever else was edited since, and comments, order and layout of the rest are never touched. A
library that writes a text from parsed values would need a copy of the original for that.
"""

import copy
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from nvhook.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Keys = tuple[str, ...]
Assignment = tuple[Keys, object]

MARK = "# by nvhook configure"
WAS = "#nvhook-was: "
CREATED = "# file made by nvhook configure"

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_SPACE = re.compile(r"[ \t\r\n]*")
_KEY_PART = re.compile(r"""[ \t]*([A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')[ \t]*""")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"""(?:"{0,2})|\'\'\'.*?\'\'\'(?:'{0,2})'''
    r"""|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[\[\]{}\n]|[^"'\#\[\]{}\n]+""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Statement:
    """A table's header or a key with its value: its keys from the root, its lines (from 0).

    ``written`` is the key as it stands there, empty for a header.
    """

    keys: Keys
    written: str
    first: int
    last: int

    @property
    def is_header(self) -> bool:
        """Say whether this is a table's header."""
        return not self.written


def parse(text: str, file: str) -> dict[str, object]:
    """Return the values of a TOML text.

    Raises: ConfigError with file, line and reason.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", place)
        number = line[1] if line else text.count("\n") + 1
        raise ConfigError(f"{file} line {number}: {reason[:1].lower()}{reason[1:]}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None


def lookup(document: dict[str, object], keys: Keys) -> object:
    """Return the value at keys, None if it is not there."""
    value: object = document
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def table(document: dict[str, object], keys: Keys) -> dict[str, object]:
    """Return the table at keys, an empty one if it is not there."""
    value = lookup(document, keys)
    return value if isinstance(value, dict) else {}


def undo(text: str) -> str:
    """Return the text as it was before ``assign``; what is not nvhook's stays as it is."""
    lines: list[str] = _LINE.findall(text)
    kept = [line.removeprefix(WAS) for line in lines if not _is_ours(line)]
    # A file without an end of its last line had none before either, see _join.
    if lines and _is_ours(lines[-1]) and not lines[-1].endswith("\n") and kept:
        kept[-1] = kept[-1].rstrip("\r\n")
    return "".join(kept)


def unregister(text: str) -> str | None:
    """Return the text as it was before, None if nvhook made the file and nothing else is in it."""
    before = undo(text)
    made = CREATED in [line.rstrip("\r\n") for line in _LINE.findall(text)]
    return None if made and not before.strip() else before


def assign(text: str | None, assignments: Sequence[Assignment], file: str) -> str:
    """Return the text with each key set to its (last) value, and no other change in meaning.

    Raises: ConfigError, also where a table's form (inline, dotted) leaves no line to change.
    """
    if text is None:
        text, origin = "", CREATED + "\n"
    else:
        origin = text
    document = parse(text, file)
    last = dict(assignments)
    missing = [(keys, value) for keys, value in last.items() if lookup(document, keys) != value]
    if not missing:
        return text
    wanted = copy.deepcopy(document)
    for keys, value in missing:
        _put(wanted, keys, value, file)
    result = _rewrite(origin, missing, file)
    # This covers how people and programs write these files; any other form is refused, not guessed.
    try:
        exact = parse(result, file) == wanted and undo(result) == text
    except ConfigError:
        exact = False
    if not exact:
        raise ConfigError(
            f"{file}: {'.'.join(missing[0][0][:-1])} is written in a form that can't be changed",
            "write inline and dotted tables as [table]",
        )
    return result


def _is_ours(line: str) -> bool:
    body = line.rstrip("\r\n")
    return body.endswith(MARK) or body == CREATED


def _put(document: dict[str, object], keys: Keys, value: object, file: str) -> None:
    place = document
    for depth, key in enumerate(keys[:-1], 1):
        inner = place.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{file}: {'.'.join(keys[:depth])} is not a table")
        place = inner
    place[keys[-1]] = copy.deepcopy(value)


def _rewrite(text: str, assignments: Sequence[Assignment], file: str) -> str:
    lines: list[str] = _LINE.findall(text)
    statements = _statements(text)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    after: dict[int, list[str]] = {}  # line number -> lines to put behind it
    instead: dict[int, str] = {}  # line number of a replaced statement -> the line in front of it
    replaced: set[int] = set()
    new_tables: dict[Keys, list[str]] = {}
    for keys, value in assignments:
        right = f" = {_literal(value, file)}  {MARK}{end}"
        line = _key(keys[-1]) + right
        found = _find(statements, keys, is_header=False)
        header = _find(statements, keys[:-1], is_header=True)
        if found is not None:
            old = statements[found]
            instead[old.first] = _indent(lines[old.first]) + old.written + right
            replaced.update(range(old.first, old.last + 1))
        elif header is not None:
            where = statements[header].last
            after.setdefault(where, []).append(_indent_in(statements, header, lines) + line)
        else:
            new_tables.setdefault(keys[:-1], []).append(line)
    result: list[str] = []
    for number, line in enumerate(lines):
        result.extend([instead[number]] if number in instead else [])
        result.append(WAS + line if number in replaced else line)
        result.extend(after.get(number, []))
    for keys, added in new_tables.items():
        if keys:
            result.append(f"[{'.'.join(map(_key, keys))}]  {MARK}{end}")
        result.extend(("  " if keys else "") + line for line in added)
    return _join(result, end, text.endswith("\n") or not text)


def _join(lines: list[str], end: str, ends: bool) -> str:
    text = "".join(line if line.endswith("\n") else line + end for line in lines)
    return text if ends else text.removesuffix(end)


def _find(statements: list[_Statement], keys: Keys, is_header: bool) -> int | None:
    for number, statement in enumerate(statements):
        if statement.keys == keys and statement.is_header == is_header:
            return number
    return None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indent_in(statements: list[_Statement], header: int, lines: list[str]) -> str:
    if header + 1 < len(statements) and not statements[header + 1].is_header:
        return _indent(lines[statements[header + 1].first])
    return _indent(lines[statements[header].first])


def _statements(text: str) -> list[_Statement]:
    """Cut a valid TOML text into headers and assignments; keys of [[arrays]] are ("[]", ...)."""
    statements: list[_Statement] = []
    base: Keys = ()
    at = number = 0
    while True:
        space = _SPACE.match(text, at)
        assert space is not None
        number += space[0].count("\n")
        at = space.end()
        if at == len(text):
            return statements
        start = at
        if text[at] == "#":
            at = _end_of_value(text, at)
            continue
        if text[at] == "[":
            is_array = text.startswith("[[", at)
            keys, at = _keys(text, at + 1 + is_array)
            base = ("[]", *keys) if is_array else keys
            at = _end_of_value(text, at + 1 + is_array)
            keys, written = (), ""
        else:
            keys, at = _keys(text, at)
            written = text[start:at].rstrip(" \t")
            at = _end_of_value(text, at + 1)
        last = number + text.count("\n", start, at)
        statements.append(_Statement(base + keys, written, number, last))
        number = last


def _keys(text: str, at: int) -> tuple[Keys, int]:
    """Return a dotted key and where it ends."""
    keys: list[str] = []
    while True:
        part = _KEY_PART.match(text, at)
        assert part is not None
        name = part[1]
        keys.append(str(tomllib.loads(f"k = {name}")["k"]) if name[0] in "\"'" else name)
        at = part.end()
        if text[at : at + 1] != ".":
            return tuple(keys), at
        at += 1


def _end_of_value(text: str, at: int) -> int:
    """Return where the line that ends a value ends (its newline, or the end of the text)."""
    depth = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token is not None
        if token[0] == "\n" and depth == 0:
            return at
        depth += (token[0] in {"[", "{"}) - (token[0] in {"]", "}"})
        at = token.end()
    return at


def _key(name: str) -> str:
    return name if _BARE.match(name) else _string(name)


def _string(value: str) -> str:
    # A JSON string is a TOML string, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _literal(value: object, file: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item, file) for item in value) + "]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(key)} = {_literal(item, file)}" for key, item in value.items())
        return "{" + pairs + "}"
    raise ConfigError(f"{file}: can't copy the value {value}")
