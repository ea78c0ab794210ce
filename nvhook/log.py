"""A log file of key=value lines; logging takes longer to import than Python to start.

crun throws a hook's stderr away, so the file is where a failure can always be read. A log that
can't be written never fails a container.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LEVELS = ("debug", "info", "warning", "error")
DEFAULT_PATH = "/var/log/nvhook.log"
# A value with one of these stands in quotes.
_QUOTED = frozenset(' "=\\')


class Log:
    """Append lines to one file; every line is a single write, so that parallel hooks don't mix."""

    __slots__ = ("context", "level", "path")

    def __init__(self, path: str = DEFAULT_PATH, level: str = "info") -> None:
        self.path = path
        self.level = LEVELS.index(level)
        self.context: dict[str, object] = {}

    def configure(self, path: str, level: str) -> None:
        """Write to another file from now on, from this level up."""
        self.path = path
        self.level = LEVELS.index(level)

    def bind(self, **fields: object) -> None:
        """Add fields to every later line."""
        self.context.update(fields)

    def debug(self, message: str, **fields: object) -> None:
        """Write a line that only a developer wants."""
        self._write(0, message, fields)

    def info(self, message: str, **fields: object) -> None:
        """Write a line about what was done."""
        self._write(1, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Write a line about something an operator may want to change."""
        self._write(2, message, fields)

    def error(self, message: str, **fields: object) -> None:
        """Write a line about what failed."""
        self._write(3, message, fields)

    def parts(self, level: str, message: str, **fields: object) -> tuple[str, str]:
        """Return a line's message and its own fields as they are written; empty below the level."""
        if not self.path or LEVELS.index(level) < self.level:
            return "", ""
        return f"msg={_quote(message)}", _pairs(fields)

    def _write(self, level: int, message: str, fields: dict[str, object]) -> None:
        if level < self.level or not self.path:
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = f"time={stamp} level={LEVELS[level]} pid={os.getpid()} msg={_quote(message)}"
        text += _pairs({**self.context, **fields})
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(self.path, flags | os.O_CLOEXEC, 0o640)
        except OSError:
            return
        try:
            os.write(fd, text.encode("utf-8", "backslashreplace") + b"\n")
        except OSError:
            pass
        finally:
            os.close(fd)


def _pairs(fields: Mapping[str, object]) -> str:
    return "".join([f" {key}={_quote(str(value))}" for key, value in fields.items()])


def _quote(value: str) -> str:
    printable = value.isprintable()
    if value and printable and _QUOTED.isdisjoint(value):
        return value
    value = value.replace("\\", "\\\\").replace('"', '\\"')
    if not printable:
        value = "".join(
            [c if c.isprintable() else c.encode("unicode_escape").decode() for c in value]
        )
    return f'"{value}"'
