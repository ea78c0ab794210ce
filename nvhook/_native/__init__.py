"""The C core as Python functions: the one place that turns -errno into an exception."""

from __future__ import annotations

import os

from nvhook._native._syscalls import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_functions: dict[str, Callable[..., int]] = {}


class SyscallError(OSError):
    """A system call failed; ``syscall`` is its name, ``errno`` the reason."""

    def __init__(self, errno: int, syscall: str) -> None:
        super().__init__(errno, os.strerror(errno))
        self.syscall = syscall

    def __str__(self) -> str:
        return f"{self.syscall}: {self.strerror}"


def call(name: str, *arguments: Any) -> int:
    """Call ``nvh_<name>`` and return its value.

    Raises: SyscallError for a negative result.
    """
    function = _functions.get(name)
    if function is None:
        function = _functions[name] = getattr(lib, "nvh_" + name)
    result: int = function(*arguments)
    if result < 0:
        raise SyscallError(-result, name)
    return result


__all__ = ["SyscallError", "call", "ffi", "lib"]
