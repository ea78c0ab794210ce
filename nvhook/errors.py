"""The exceptions of nvhook, and the line a person sees.

Every error is one lower-case line: what is wrong, and in brackets what to do.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MAX_LINE = 300


class NvhookError(Exception):
    """Something a person can act on.

    Raises nothing itself; ``str()`` gives the line without the ``nvhook:`` prefix.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.message} (hint: {self.hint})" if self.hint else self.message
        return one_line(text)


class ConfigError(NvhookError):
    """The configuration file is wrong."""


class FormatError(NvhookError):
    """Bytes are not in the format they should be in: state, config.json, ld.so.cache, ELF."""


class RequestError(NvhookError):
    """The container asks for something that does not exist or is not allowed."""


class HostError(NvhookError):
    """The host lacks something: driver, GPU, library, device node."""


class ContainerError(NvhookError):
    """The container can't be changed as planned."""


class UnsupportedError(NvhookError):
    """A renderer can't express an edit, or the kernel lacks a feature."""


def one_line(text: str, limit: int = MAX_LINE - len("nvhook: ") - 1) -> str:
    """Return text as one printable line of at most limit characters.

    Container-controlled names end up in errors: control characters must not reach a terminal.
    """
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def assert_never(value: NoReturn) -> NoReturn:
    """Mark a branch the type checker proves unreachable."""
    raise AssertionError(f"unhandled case: {value!r}")
