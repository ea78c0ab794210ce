"""Settings and the kinds of their values: checked alike, whatever file, flag or variable has them.

Tables name a kind for each setting: config.SETTINGS is nvhook's own file, kubelet.settings what the
device plugin is told. Every first start of the hook loads this.
"""

from __future__ import annotations

from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# What a source has, before anything is known of the kind: a bool, a str, or a list of str.
FLAG_SHAPE, TEXT_SHAPE, LIST_SHAPE = "flag", "text", "list"
# As Go's strconv.ParseBool has them.
TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


@record
class Kind:
    """A kind of values.

    ``take`` gets a value of the shape, a list as a tuple, and returns what nvhook has for it, None
    if it is none of the kind. ``wanted`` is what a value must be, in words.
    """

    shape: str
    wanted: str
    take: Callable[..., object]

    def of(self, value: object) -> object:
        """Return a value as nvhook has it, of one as TOML and JSON have it; None: it is none."""
        plain = shaped(self.shape, value)
        return None if plain is None else self.take(plain)

    def of_text(self, text: str) -> object:
        """Return a value as nvhook has it, of a flag or variable; None: it is none."""
        if self.shape == FLAG_SHAPE:
            return True if text in TRUE else False if text in FALSE else None
        return self.of(words(text) if self.shape == LIST_SHAPE else text)


@record
class Setting:
    """A setting.

    ``key`` is its name in the file, dotted; ``attribute`` that of its value, empty for a setting
    that is accepted and has no effect. The first of ``flags`` and ``variables`` is the name to
    use, the others are older ones.
    """

    key: str
    kind: Kind
    doc: str
    attribute: str
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


def shaped(shape: str, value: object) -> bool | str | tuple[str, ...] | None:
    """Return a value as it is, a list as a tuple; None if it has another shape."""
    if shape == FLAG_SHAPE:
        return value if isinstance(value, bool) else None
    if shape == TEXT_SHAPE:
        return str(value) if isinstance(value, str) and "\0" not in value else None
    if not isinstance(value, list | tuple):
        return None
    texts = [str(item) for item in value if isinstance(item, str) and "\0" not in item]
    return tuple(texts) if len(texts) == len(value) else None


def words(text: str) -> list[str]:
    """Return what a text lists with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def one_of(choices: Iterable[str], wanted: str = "") -> Kind:
    """Return the kind of texts that are one of some."""
    known = tuple(choices)
    text = wanted or f"one of {', '.join(known)}"
    return Kind(TEXT_SHAPE, text, lambda value: value if value in known else None)


def list_of(each: Callable[[str], str | None], wanted: str, least: int = 0) -> Kind:
    """Return the kind of lists of at least so many; each item is converted, None if it is bad."""

    def take(items: tuple[str, ...]) -> object:
        taken = tuple([each(item) for item in items])
        return None if None in taken or len(taken) < least else taken

    return Kind(LIST_SHAPE, wanted, take)


def absolute(text: str) -> str | None:
    """Return an absolute path without a slash at the end; None of any other text."""
    return (text.rstrip("/") or "/") if text.startswith("/") else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question, empty where nothing known is like the word."""
    import difflib

    close = difflib.get_close_matches(word, [*known], 1)
    return f"did you mean {close[0]}?" if close else ""


FLAG = Kind(FLAG_SHAPE, "true or false", lambda value: value)
TEXT = Kind(TEXT_SHAPE, "a text", lambda text: text)
PATH = Kind(TEXT_SHAPE, "an absolute path", absolute)
FILE = Kind(TEXT_SHAPE, "an absolute path, or empty", lambda text: absolute(text) if text else text)
PATHS = list_of(absolute, "a list of absolute paths")
