"""JSON without the json module, whose import takes as long as the start of Python.

Stricter than the json module, because engines and runtimes written in Go and C read the same text:
what they could understand differently (duplicate keys, NaN, bad UTF-8) is refused.
"""

from __future__ import annotations

from _json import make_scanner

from nvhook.errors import FormatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LIMIT = 16 << 20
_BLANKS = " \t\n\r"


def parse(data: bytes, what: str, limit: int = LIMIT) -> object:
    """Return the value of a JSON text of at most limit bytes; what names the text in errors.

    Raises: FormatError, and nothing else.
    """
    if len(data) > limit:
        raise FormatError(f"{what} is larger than {limit} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{what} is not UTF-8: bad byte at offset {error.start}") from None
    start = len(text) - len(text.lstrip(_BLANKS))
    if start == len(text):
        raise FormatError(f"{what} is empty")
    try:
        try:
            value, end = _scan(text, start)
        except SystemError:
            # Before 3.12 the scanner reports an error only if this module is there already.
            import json.decoder  # noqa: F401

            value, end = _scan(text, start)
        if "\\ud" in text or "\\uD" in text:
            value = _without_surrogates(value)
    except StopIteration as stop:
        raise _not_json(what, text, "expecting value", stop.value) from None
    except RecursionError:
        raise FormatError(f"{what} is not JSON: nested too deeply") from None
    except _RefusedError as error:
        raise FormatError(f"{what} is not JSON: {error}") from None
    except ValueError as error:  # json.JSONDecodeError, whose class costs the import of json
        position = getattr(error, "pos", None)
        if position is None:
            raise FormatError(f"{what} is not JSON: a number has too many digits") from None
        raise _not_json(what, text, str(getattr(error, "msg", error)), position) from None
    if rest := text[end:].lstrip(_BLANKS):
        raise _not_json(what, text, "extra data", len(text) - len(rest))
    return value


class _RefusedError(Exception):
    """A value that Python would take and another reader may not."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"duplicate key {key!r}")
            seen.add(key)
    return value


def _constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is not a number")


class _Context:
    """What the C scanner reads its options from."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_object)
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_constant)
    memo: dict[str, str] = {}  # noqa: RUF012 - only read by the scanner of old interpreters


_scan = make_scanner(_Context())  # type: ignore[arg-type]  # typeshed wants a JSONDecoder


def _not_json(what: str, text: str, reason: str, position: int) -> FormatError:
    if position >= len(text.rstrip(_BLANKS)):
        return FormatError(f"{what} is not JSON: it ends too early, after {position} characters")
    reason = reason[:1].lower() + reason[1:].removesuffix(" at")
    return FormatError(f"{what} is not JSON: {reason} at character {position}")


def _without_surrogates(value: object) -> object:
    """Replace halves of surrogate pairs, which no path or log line could be made of."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return "".join(["\ufffd" if "\ud800" <= c <= "\udfff" else c for c in value])
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
