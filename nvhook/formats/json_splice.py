"""Change a JSON text without touching the rest of it: what is not changed stays byte for byte.

Parsing and writing again would keep the meaning at best: numbers, escapes, order and blanks of an
engine's config.json are its own, and a field nvhook has never heard of is none of its business.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_scanner, scanstring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    Path: TypeAlias = tuple[str, ...]

_BLANKS = " \t\n\r"


class _Plain:
    """What the C scanner reads its options from; values are only skipped."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012 - only read by the scanner of old interpreters


_skip: Callable[[str, int], tuple[object, int]] = make_scanner(_Plain())  # type: ignore[arg-type]


def encode(value: object) -> str:
    """Return the compact JSON text of None, a bool, int, str, list, tuple or dict."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{encode(str(k))}:{encode(v)}" for k, v in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([encode(item) for item in value]) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"not a JSON value: {value!r}")


class Splice:
    """A JSON object's text and the changes to be made to it.

    The text must be valid JSON (formats/json_text says so) with an object at its top. A path is
    a tuple of member names from there; a member that is null counts as absent.
    """

    __slots__ = ("_added", "_appended", "_changes", "_members", "_removed", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._changes: list[tuple[int, int, str]] = []
        self._appended: dict[Path, list[object]] = {}
        self._removed: dict[Path, set[int]] = {}
        self._added: dict[Path, dict[str, object]] = {}  # by the object that gets the members
        self._members: dict[Path, dict[str, tuple[int, int]]] = {}

    def replace(self, path: Path, index: int, value: object) -> None:
        """Put another value in the place of an item of a list."""
        self._changes.append((*self._items(path)[index], encode(value)))

    def remove(self, path: Path, index: int) -> None:
        """Take an item out of a list."""
        self._removed.setdefault(path, set()).add(index)

    def append(self, path: Path, values: Sequence[object]) -> None:
        """Add items to the end of a list, made with all that leads to it if it is absent."""
        if values:
            self._appended.setdefault(path, []).extend(values)

    def appended(self) -> dict[Path, str] | None:
        """Return the compact JSON of each list's items, None if something else changes, too."""
        if self._changes or self._removed:  # before result(), which fills these
            return None
        return {path: encode(values)[1:-1] for path, values in self._appended.items()}

    def result(self) -> str:
        """Return the changed text."""
        for path in {**self._removed, **self._appended}:
            if self._span(path) is None:
                self._create(path)
            else:
                self._change_list(path)
        for path, members in self._added.items():
            self._add_members(path, members)
        parts = []
        done = 0
        for start, end, new in sorted(self._changes, key=lambda change: change[:2]):
            parts += [self.text[done:start], new]
            done = end
        return "".join(parts) + self.text[done:]

    def _change_list(self, path: Path) -> None:
        spans = self._items(path)
        removed = self._removed.get(path, set())
        kept = False
        for index, (start, end) in enumerate(spans):
            if index not in removed:
                kept = True
            elif kept:  # with the comma before it
                self._changes.append((spans[index - 1][1], end, ""))
            else:  # with the comma after it
                self._changes.append(
                    (start, spans[index + 1][0] if spans[index + 1 :] else end, "")
                )
        if path in self._appended:
            last = spans[-1][1] if spans else self._span_of(path)[0] + 1
            text = encode(self._appended[path])[1:-1]
            self._changes.append((last, last, "," + text if kept else text))

    def _create(self, path: Path) -> None:
        """Note a list as a member of the deepest object there is on the way to it."""
        depth = len(path) - 1
        while self._span(path[:depth]) is None:
            depth -= 1
        members = self._added.setdefault(path[:depth], {})
        for name in path[depth:-1]:
            members = members.setdefault(name, {})  # type: ignore[assignment]
        members[path[-1]] = self._appended[path]

    def _add_members(self, path: Path, members: dict[str, object]) -> None:
        """Put members into an object: in the place of a null of that name, or at its end."""
        there = self._members_of(path)
        new = {name: value for name, value in members.items() if name not in there}
        for name in members.keys() - new:
            self._changes.append((*there[name], encode(members[name])))
        if new:
            last = max(end for _, end in there.values()) if there else self._span_of(path)[0] + 1
            text = encode(new)[1:-1]
            self._changes.append((last, last, "," + text if there else text))

    def _span(self, path: Path) -> tuple[int, int] | None:
        """Return where the value of a path stands, None if it is absent or null."""
        if not path:
            return _blank(self.text, 0), len(self.text)
        if self._span(path[:-1]) is None:
            return None
        span = self._members_of(path[:-1]).get(path[-1])
        return None if span is None or self.text.startswith("null", span[0]) else span

    def _span_of(self, path: Path) -> tuple[int, int]:
        span = self._span(path)
        assert span is not None
        return span

    def _members_of(self, path: Path) -> dict[str, tuple[int, int]]:
        if path not in self._members:
            self._members[path] = dict(_object_members(self.text, self._span_of(path)[0]))
        return self._members[path]

    def _items(self, path: Path) -> list[tuple[int, int]]:
        return list(_list_items(self.text, self._span_of(path)[0]))


def _blank(text: str, at: int) -> int:
    while text[at] in _BLANKS:
        at += 1
    return at


def _object_members(text: str, start: int) -> Iterator[tuple[str, tuple[int, int]]]:
    at = _blank(text, start + 1)
    while text[at] != "}":
        name, at = scanstring(text, at + 1, False)
        start = _blank(text, _blank(text, at) + 1)
        _, end = _skip(text, start)
        yield name, (start, end)
        at = _blank(text, end)
        if text[at] == ",":
            at = _blank(text, at + 1)


def _list_items(text: str, start: int) -> Iterator[tuple[int, int]]:
    at = _blank(text, start + 1)
    while text[at] != "]":
        _, end = _skip(text, at)
        yield at, end
        at = _blank(text, end)
        if text[at] == ",":
            at = _blank(text, at + 1)
