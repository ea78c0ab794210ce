"""The launcher's repeater as a library: its looks and its guards, without a container."""

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from cffi import FFI

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "nvhook/_native"
FILES = (
    "recording",
    "observe",
    "devices",
    "root",
    "bpf",
    "syscalls",
    "systemd",
    "splice",
    "request",
    "json",
    "blake2b",
)


@cache
def _library() -> tuple[FFI, Any]:
    ffi = FFI()
    ffi.cdef(
        """
        int holds(char *text, size_t size, int root);
        int looks_same(char *text, size_t size, int root);
        int opens_target(int pid, const char *root_path);
        int64_t root_in_map(int directory, const char *name);
        int has_source(char *text, size_t size);
        """
    )
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/repeat.so"
        files = [str(HERE / "repeat_parts.c"), *(str(SOURCES / f"{name}.c") for name in FILES)]
        options = ["-std=gnu11", "-O", "-Wall", "-Wextra", "-fPIC", "-shared", f"-I{SOURCES}"]
        subprocess.run(["gcc", *options, *files, "-o", path], check=True)
        return ffi, ffi.dlopen(path)


def holds(recording: bytes, root: int) -> bool:
    """Tell whether the launcher would repeat a recording for a root, by an open directory."""
    ffi, lib = _library()
    return bool(lib.holds(ffi.new("char[]", recording), len(recording), root))


def looks_same(look: bytes, root: int) -> bool:
    """Tell whether one look, a line, gives the same answer."""
    ffi, lib = _library()
    return bool(lib.looks_same(ffi.new("char[]", look), len(look), root))


def opens_target(pid: int, root_path: str) -> bool:
    """Tell whether the launcher takes a process and a root directory for a new container."""
    _, lib = _library()
    return bool(lib.opens_target(pid, root_path.encode()))


def root_in_map(directory: Path, name: str) -> int:
    """Return what the launcher takes for a user namespace's root, -1 for none."""
    _, lib = _library()
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        return int(lib.root_in_map(fd, name.encode()))
    finally:
        os.close(fd)


def has_source(*fields: object) -> bool:
    """Tell whether the launcher would mount what an operation mounted."""
    ffi, lib = _library()
    line = "\t".join(map(str, fields)).encode() + b"\n"
    return bool(lib.has_source(ffi.new("char[]", line), len(line)))
