"""The C that reads what engines write, as a library for tests: more of it than nvhook calls."""

import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cffi import FFI

SOURCES = Path(__file__).parents[2] / "nvhook/_native"
FILES = ("request.c", "json.c", "sha256.c")


@dataclass(frozen=True)
class Request:
    """What read_request says."""

    wanted: bool
    understood: bool
    repeatable: bool
    user_namespace: bool
    gpu_hooks: bool
    root_path: str


@cache
def _library() -> tuple[FFI, Any]:
    ffi = FFI()
    ffi.cdef("struct span { const char *from, *to; };")
    for header in ("request.h",):
        text = (SOURCES / header).read_text()
        ffi.cdef(text.split("/* cdef begin */")[1].split("/* cdef end */")[0])
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/core.so"
        files = [str(SOURCES / name) for name in FILES]
        options = ["-std=gnu11", "-O", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        subprocess.run(["gcc", *options, *files, "-o", path], check=True)
        return ffi, ffi.dlopen(path)


def read_request(text: bytes) -> Request:
    ffi, lib = _library()
    read = lib.read_request(ffi.from_buffer(text), len(text))
    return Request(
        read.wanted,
        read.understood,
        read.repeatable,
        read.user_namespace,
        read.gpu_hooks,
        ffi.string(read.root_path).decode(),
    )


def read_state(text: bytes) -> tuple[bool, str, int, str]:
    """Return whether a state is understood, and its id, pid and bundle."""
    ffi, lib = _library()
    state = ffi.new("struct state *")
    understood = lib.read_state(ffi.from_buffer(text), len(text), state)
    return understood, ffi.string(state.id).decode(), state.pid, ffi.string(state.bundle).decode()
