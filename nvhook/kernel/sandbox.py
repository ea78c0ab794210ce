"""The host's ldconfig, confined, for the rare ld.so.cache that nvhook does not understand.

It reads files the image controls, so it runs from a sealed copy (the container can't reach the
host's binary through /proc/PID/exe), chrooted into a copy of the container's mounts in which no
device can be opened and no volume written, without capabilities, with a system call allow-list and
a deadline. The container's own ldconfig is never run.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal

import prctl

from nvhook._native import call, lib
from nvhook.errors import ContainerError, HostError
from nvhook.kernel import mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from nvhook.kernel.process import Process
    from nvhook.kernel.root import Root

# Debian and Ubuntu: ldconfig is a shell script around ldconfig.real on some versions.
_CANDIDATES = ("/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/sbin/ldconfig")
_CACHE = "/etc/ld.so.cache"
_SECONDS = 10
_ADDRESS_SPACE = 2 << 30
_FILE_SIZE = 64 << 20
_LAST_CAP = 40
_FAILED = 71


def ldconfig(process: Process, rootfs: Root, directories: tuple[str, ...]) -> None:
    """Rebuild a container's loader cache: its own configuration's directories, and these.

    Raises: HostError if the host has no ldconfig, ContainerError if it fails.
    """
    program = _sealed_ldconfig()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    rootfs.make_parent(_CACHE)
    child = os.fork()
    if child == 0:
        try:
            prctl.set_pdeathsig(signal.SIGKILL)
            # A FIFO in the image would hold it for ever; blocked time is no processor time.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_SECONDS)
            for standard in range(3):  # what it prints is the image's, and no one line
                os.dup2(null, standard)
            with process.mount_namespace():
                _confine_and_run(program, rootfs, directories)
        finally:
            os._exit(_FAILED)
    _, status = os.waitpid(child, 0)
    os.close(program)
    os.close(null)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        how = f"was ended by signal {-code}" if code < 0 else f"failed with status {code}"
        raise ContainerError(
            f"ldconfig {how} on the container's root",
            "its /etc/ld.so.cache is damaged: run ldconfig in the image, or remove the file",
        )


def _sealed_ldconfig() -> int:
    for path in _CANDIDATES:
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        with os.fdopen(source, "rb") as file:
            data = file.read()
        if not data.startswith(b"\x7fELF"):
            continue
        memory = os.memfd_create("ldconfig", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(data)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        return memory
    raise HostError(
        "the container's ld.so.cache can't be understood and the host has no ldconfig",
        "remove /etc/ld.so.cache from the image",
    )


def _confine_and_run(program: int, rootfs: Root, directories: tuple[str, ...]) -> NoReturn:
    os.fchdir(mounts.clone_tree(rootfs.fd))
    os.chroot(".")
    os.chdir("/")
    limits = {
        resource.RLIMIT_CPU: _SECONDS,
        resource.RLIMIT_AS: _ADDRESS_SPACE,
        resource.RLIMIT_FSIZE: _FILE_SIZE,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    for capability in range(_LAST_CAP + 1):
        if prctl.capbset_read(capability):
            prctl.capbset_drop(capability)
    uid, gid = rootfs.owner
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    prctl.set_no_new_privs(1)
    call(lib.nvh_seccomp_ldconfig)
    arguments = ["ldconfig", "-f", "/etc/ld.so.conf", "-C", _CACHE, "-X", *directories]
    os.execve(program, arguments, {})  # noqa: S606 - no shell is the point
