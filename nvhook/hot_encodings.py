"""All that a hot door's interpreter has of ``encodings`` while it starts: UTF-8, for its streams.

Python needs encodings, codecs and io for its standard streams, and loading them is a sixth of its
start. The launcher gives the interpreter a home that has this in the place of ``encodings``
(hot_archive.py). Once it has started, all three are Python's own again: see ``give_way``.
"""

import _codecs
import _io
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from codecs import CodecInfo


class Encoder:
    """A stream's incremental encoder; UTF-8 has no state."""

    def __init__(self, errors: str = "strict") -> None:
        self.errors = errors

    def encode(self, text: str, final: bool = False) -> bytes:
        """Return text as bytes."""
        return _codecs.utf_8_encode(text, self.errors)[0]

    def reset(self) -> None:
        """Start again."""

    def getstate(self) -> int:
        """Return nothing of interest."""
        return 0

    def setstate(self, state: int) -> None:
        """Go on from a state."""


class Decoder:
    """A stream's incremental decoder: bytes that end amid a character wait for the rest of it."""

    def __init__(self, errors: str = "strict") -> None:
        self.errors = errors
        self.rest = b""

    def decode(self, data: bytes, final: bool = False) -> str:
        """Return the text that is complete, all of it if these are the last bytes."""
        data = self.rest + data
        text, taken = _codecs.utf_8_decode(data, self.errors, final)
        self.rest = data[taken:]
        return text

    def reset(self) -> None:
        """Start again."""
        self.rest = b""

    def getstate(self) -> tuple[bytes, int]:
        """Return what waits, and a flag that is not used."""
        return self.rest, 0

    def setstate(self, state: tuple[bytes, int]) -> None:
        """Go on from a state."""
        self.rest = state[0]


class Codec(tuple):  # type: ignore[type-arg]  # what codecs.CodecInfo is
    """UTF-8's functions and classes, as far as a stream needs them."""

    name = "utf-8"
    incrementalencoder = Encoder
    incrementaldecoder = Decoder
    _is_text_encoding = True


def search(name: str) -> "CodecInfo | None":
    """Return the codec of a normalized name."""
    if name in ("utf_8", "utf-8"):
        functions = _codecs.utf_8_encode, _codecs.utf_8_decode, None, None
        return Codec(functions)  # type: ignore[return-value]
    return None


def give_way() -> None:
    """Let everything but the standard streams have Python's own encodings, codecs and io.

    Who first asks for them imports them.
    """
    del sys.modules["encodings"], sys.modules["io"]
    _codecs.unregister(search)  # which forgets what was found
    _codecs.register(search_pythons_own)


def search_pythons_own(name: str) -> "CodecInfo | None":
    """Return Python's own codec of a normalized name."""
    import encodings

    return encodings.search_function(name)


_codecs.register(search)
# io is the C module and abstract base classes. The interpreter looks for the C module's functions.
sys.modules["io"] = _io
