"""The C core as Python functions: the one place that turns -errno into an exception."""

import posix

from nvhook._native._syscalls import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class SyscallError(OSError):
    """A system call failed; ``syscall`` is its name, ``errno`` the reason."""

    def __init__(self, errno: int, syscall: str) -> None:
        super().__init__(errno, posix.strerror(errno))
        self.syscall = syscall

    def __str__(self) -> str:
        return f"{self.syscall}: {self.strerror}"


def call(name: str, *arguments: "Any") -> int:
    """Call ``nvh_<name>`` and return its value.

    Raises: SyscallError for a negative result.
    """
    result: int = getattr(lib, "nvh_" + name)(*arguments)
    if result < 0:
        raise SyscallError(-result, name)
    return result


__all__ = ["SyscallError", "call", "ffi", "lib"]
