"""The C core as Python functions: the one place that turns -errno into an exception.

``lib`` has the functions of syscalls.h and root.h; _syscalls.pyi says their types.
"""

from __future__ import annotations

import os

from nvhook._native._syscalls import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec

    P = ParamSpec("P")


class SyscallError(OSError):
    """A system call failed; ``syscall`` is its name, ``errno`` the reason."""

    def __init__(self, errno: int, syscall: str) -> None:
        super().__init__(errno, os.strerror(errno))
        self.syscall = syscall

    def __str__(self) -> str:
        return f"{self.syscall}: {self.strerror}"


def call(function: Callable[P, int], *arguments: P.args, **named: P.kwargs) -> int:
    """Call a function of ``lib`` and return its value.

    Raises: SyscallError for a negative result.
    """
    result = function(*arguments, **named)
    if result < 0:
        raise SyscallError(-result, function.__name__.removeprefix("nvh_"))
    return result


__all__ = ["SyscallError", "call", "ffi", "lib"]
