"""Device programs attached by a bpf_link: swapped on the link, which keeps them attached."""

from __future__ import annotations

import os
from errno import EINVAL, ENOENT

from nvhook._native import SyscallError, call, ffi, lib
from nvhook.kernel.programs import failed

MAX_LINKS = 65536


def update_link(cgroup: int, number: int, new: int, old: int) -> bool:
    """Swap a program that is attached by a bpf_link; False if there is no such link.

    Raises: NvhookError.
    """
    inode = os.fstat(cgroup).st_ino
    following = ffi.new("uint32_t *")
    program, directory = ffi.new("uint32_t *"), ffi.new("uint64_t *")
    for _ in range(MAX_LINKS):
        try:
            call(lib.nvh_bpf_link_next, following[0], following)
            link = call(lib.nvh_bpf_link_fd, following[0])
        except SyscallError as error:
            if error.syscall == "bpf_link_fd" and error.errno == ENOENT:
                continue
            if error.errno in {ENOENT, EINVAL}:  # the end; a kernel without links
                return False
            raise failed("look for the link of a device program", error) from error
        try:
            ours = call(lib.nvh_bpf_link_info, link, program, directory)
            if ours and program[0] == number and directory[0] == inode:
                call(lib.nvh_bpf_link_update, link, new, old)
                return True
        except SyscallError as error:
            raise failed("update the link of a device program", error) from error
        finally:
            os.close(link)
    return False
