"""YAML to plain values, for files whose fields have known types.

Read event by event: no recursion, no tags, no objects. A scalar without quotes stays the text it is
(``Unquoted``), because what it means depends on the field: ``name: 0`` is a name, and readers
disagree about ``yes``, ``010`` and ``1:30``.
"""

from __future__ import annotations

from nvhook.errors import FormatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import yaml

    # None, str, Unquoted, lists and objects of such
    Value: TypeAlias = object

MAX_DEPTH = 64
# Aliases count as what they stand for: ten lines of them can make a document of any size.
MAX_VALUES = 200_000
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TEXT_TAG = "tag:yaml.org,2002:str"


class Unquoted(str):
    """The text of a scalar that may be a number, true or false, or a text after all."""

    __slots__ = ()


def parse(data: bytes, what: str, limit: int) -> object:
    """Return the value of a YAML text of at most limit bytes; what names the text in errors.

    Raises: FormatError, and nothing else.
    """
    import yaml

    if len(data) > limit:
        raise FormatError(f"{what} is larger than {limit} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{what} is not UTF-8: bad byte at offset {error.start}") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event)
    except _RefusedError as error:
        raise FormatError(f"{what} line {error.line}: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise FormatError(f"{what} is not YAML: line {line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # characters YAML does not have
        raise FormatError(f"{what} is not YAML: {str(error).partition(chr(10))[0]}") from None
    if builder.documents == 0 or (builder.documents == 1 and builder.root is None):
        raise FormatError(f"{what} is empty")
    return builder.root


class _RefusedError(Exception):
    """YAML that this reader does not take."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _Open:
    """A list or an object whose end has not come yet; ``key`` is the one that waits for a value."""

    __slots__ = ("anchor", "first", "key", "value")

    def __init__(
        self, value: list[object] | dict[str, object], anchor: str | None, first: int
    ) -> None:
        self.value = value
        self.anchor = anchor
        self.first = first
        self.key: str | None = None


class _Builder:
    """Puts the events of one document together."""

    def __init__(self) -> None:
        self.root: object = None
        self.documents = 0
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[object, int]] = {}
        self._count = 0

    def take(self, event: yaml.Event) -> None:
        """Take the next event."""
        import yaml

        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise _RefusedError("a second document begins here", line)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor, line)
        elif isinstance(event, yaml.ScalarEvent):
            self._refuse_tag(event.tag, line)
            value = _scalar(event.value, event.implicit[0] and event.tag != _TEXT_TAG)
            if event.anchor:
                self._anchors[event.anchor] = (value, 1)
            self._put(value, 1, line)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._refuse_tag(event.tag, line)
            if len(self._stack) == MAX_DEPTH:
                raise _RefusedError(f"nested more than {MAX_DEPTH} deep", line)
            empty: list[object] | dict[str, object] = (
                {} if isinstance(event, yaml.MappingStartEvent) else []
            )
            self._stack.append(_Open(empty, event.anchor, self._count))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self._stack.pop()
            if done.anchor:
                self._anchors[done.anchor] = (done.value, self._count - done.first + 1)
            self._put(done.value, 1, line)

    def _alias(self, anchor: str | None, line: int) -> None:
        if anchor is None or anchor not in self._anchors:
            raise _RefusedError(f"the anchor of alias *{anchor} is not complete before it", line)
        value, size = self._anchors[anchor]
        self._put(value, size, line)

    def _put(self, value: object, size: int, line: int) -> None:
        self._count += size
        if self._count > MAX_VALUES:
            raise _RefusedError(f"more than {MAX_VALUES} values", line)
        if not self._stack:
            self.root = value
            return
        top = self._stack[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is None:
            if not isinstance(value, str):
                raise _RefusedError("a key is not a text", line)
            if value == "<<" and isinstance(value, Unquoted):
                raise _RefusedError("merge keys (<<) are not supported", line)
            if value in top.value:
                raise _RefusedError(f"duplicate key {str(value)!r}", line)
            top.key = str(value)
        else:
            top.value[top.key] = value
            top.key = None

    @staticmethod
    def _refuse_tag(tag: str | None, line: int) -> None:
        if tag not in (None, "!", _TEXT_TAG):
            raise _RefusedError(f"tag {tag} is not supported", line)


def _scalar(text: str, plain: bool) -> str | None:
    if not plain:
        return text
    return None if text in _NULL else Unquoted(text)


def line_of(data: bytes, place: Sequence[str | int]) -> int:
    """Return the line of what stands at a place (keys and list positions) in a text parse takes.

    Of a place that does not exist, the line of the nearest thing above it that does.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    node = yaml.compose(data.decode(), Loader=loader)
    line = 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == part]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = [(item, item) for item in node.value[part : part + 1]]
        else:
            found = []
        if not found:
            break
        key, node = found[0]
        line = key.start_mark.line + 1
    return line
