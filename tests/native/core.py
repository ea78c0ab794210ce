"""The C that reads what engines write, as a library for tests: more of it than nvhook calls."""

import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cffi import FFI

SOURCES = Path(__file__).parents[2] / "nvhook/_native"
FILES = ("request.c", "splice.c", "json.c", "blake2b.c")


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
    for header in ("request.h", "splice.h"):
        text = (SOURCES / header).read_text()
        ffi.cdef(text.split("/* cdef begin */")[1].split("/* cdef end */")[0])
    ffi.cdef("void free(void *);")
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


def splice(text: bytes, items: list[str]) -> bytes | None:
    """Return a text with items, as JSON with commas between them, at the end of its lists.

    items: for devices, variables, rules, mounts, groups and hooks.
    """
    ffi, lib = _library()
    data = ffi.from_buffer(text)
    spans = ffi.new("struct span[]", lib.ADDITIONS)
    held = [ffi.new("char[]", item.encode()) for item in items]
    for span, buffer in zip(spans, held, strict=True):
        setattr(span, "from", buffer)
        span.to = buffer + (len(buffer) - 1)
    size = ffi.new("size_t *")
    request = ffi.new("struct request *", lib.read_request(data, len(text)))
    spliced = lib.splice_items(data, len(text), request, spans, size)
    if spliced == ffi.NULL:
        return None
    try:
        return bytes(ffi.buffer(spliced, size[0]))
    finally:
        lib.free(spliced)
