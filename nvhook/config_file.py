"""Read the configuration file itself: once after each change, which is when its errors are told.

The TOML parser is slow to import (15 ms and more): what a file says is remembered by config.
"""

import sys

from nvhook.config import BY_KEY, MAX_SIZE
from nvhook.errors import ConfigError
from nvhook.settings import did_you_mean


def read(name: str, fd: int) -> bytes:
    """Return the content of an open file; name is what it is called.

    Raises: ConfigError if it is too large.
    """
    with open(fd, "rb", closefd=False) as stream:
        data = stream.read(MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        raise ConfigError(f"configuration file {name} is larger than {MAX_SIZE} bytes")
    return data


def parse(name: str, data: bytes) -> dict[str, object]:
    """Return the checked settings of a file by dotted key, as the file has them.

    Raises: ConfigError.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, object] = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name} line {line}: not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        last = f"line {data.count(10) + 1}, the end"
        text = str(error).replace("end of document", last)
        raise ConfigError(f"{name}: {text[:1].lower()}{text[1:]}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply") from None
    document = _flat(document)
    for key in document:
        if key not in BY_KEY:
            hint = did_you_mean(key, BY_KEY) or f"known keys: {', '.join(BY_KEY)}"
            raise ConfigError(f"{_where(name, data, key)}: unknown key {key}", hint)
    check(document, name, data)
    return document


def check(document: dict[str, object], name: str, data: bytes = b"") -> None:
    """Check settings by key, as a file has them; name and data are the file's.

    Raises: ConfigError.
    """
    for key, value in document.items():
        kind = BY_KEY[key].kind
        if kind.of(value) is None:
            raise ConfigError(f"{_where(name, data, key)}: {key} must be {kind.wanted}")


def _flat(document: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Return the values by dotted key."""
    values = {}
    for key, value in document.items():
        table = f"{prefix}{key}."
        if isinstance(value, dict) and any(known.startswith(table) for known in BY_KEY):
            values.update(_flat(value, table))
        else:
            values[prefix + key] = value
    return values


def _where(name: str, data: bytes, key: str) -> str:
    """Return the file and, where it can be told, the line a key stands on."""
    table = ""
    for number, line in enumerate(data.decode().splitlines(), 1):
        first = line.strip(" \t\"'")
        if first.startswith("["):
            table = first.strip("[] \t\"'") + "."
            if key == table[:-1]:
                return f"{name} line {number}"
        for spelled in (key, key.removeprefix(table)):
            if first.startswith(spelled) and first[len(spelled) :].lstrip(" \t\"'")[:1] in {
                "=",
                ".",
            }:
                return f"{name} line {number}"
    return name
