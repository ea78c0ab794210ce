"""Read, compare and replace an engine's configuration file."""

import difflib
import os
import re
import stat
from collections.abc import Iterable

from nvhook.errors import ConfigError

LIMIT = 4 << 20  # bytes; a real file has some KiB


def read_text(file: str) -> str | None:
    """Return what is in a file, None if it does not exist.

    Raises: ConfigError.
    """
    try:
        # O_NONBLOCK: a FIFO must not hang the command.
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failed("read", file, error) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"{file} is not a regular file")
    with open(fd, "rb") as stream:
        data = stream.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise ConfigError(f"{file} is larger than {LIMIT} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{file} line {line}: not UTF-8") from None


def write_text(file: str, text: str | None) -> None:
    """Replace a file in one step, None: remove it; a symbolic link stays, its target is replaced.

    Mode and owner stay; a new file is 0644, and missing directories are made.

    Raises: ConfigError; the file is as before then.
    """
    target = os.path.realpath(file)
    directory = os.path.dirname(target)
    try:
        if text is None:
            os.unlink(target)
        else:
            os.makedirs(directory, exist_ok=True)
            _replace(target, directory, text.encode())
        _sync_directory(directory)
    except OSError as error:
        raise _failed("write", file, error) from None


def diff(before: str | None, after: str | None, file: str) -> list[str]:
    """Return a unified diff as patch reads it."""
    lines = [re.findall(r"[^\n]*\n|[^\n]+", text or "") for text in (before, after)]
    names = [file if text is not None else os.devnull for text in (before, after)]
    no_end = "\n\\ No newline at end of file\n"
    return [
        line if line.endswith("\n") else line + no_end
        for line in difflib.unified_diff(lines[0], lines[1], names[0], names[1])
    ]


def read_others(files: Iterable[str], own: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return what is in other files that can be read, and a warning for each that can't."""
    texts: list[tuple[str, str]] = []
    unread: list[str] = []
    for file in files:
        if os.path.isdir(file) or os.path.realpath(file) == os.path.realpath(own):
            continue
        try:
            text = read_text(file)
        except ConfigError as error:
            unread.append(str(error))
        else:
            texts += [] if text is None else [(file, text)]
    return texts, unread


def _replace(target: str, directory: str, data: bytes) -> None:
    temporary = f"{directory}/.nvhook-{os.getpid()}-{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600)
    try:
        with open(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            _copy_status(target, fd)
            os.fsync(fd)
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _copy_status(target: str, fd: int) -> None:
    try:
        old = os.stat(target)
    except FileNotFoundError:
        os.fchmod(fd, 0o644)
        return
    os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, stat.S_IMODE(old.st_mode))  # after the owner, which takes set-id bits away
    for name in os.listxattr(target):  # SELinux labels, ACLs
        os.setxattr(fd, name, os.getxattr(target, name))


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _failed(what: str, file: str, error: OSError) -> ConfigError:
    hint = "run it as root" if isinstance(error, PermissionError) else ""
    return ConfigError(f"can't {what} {file}: {error.strerror}", hint)
