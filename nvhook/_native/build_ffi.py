"""Write the C source of the _syscalls extension (run by meson at build time only)."""

import pathlib
import sys

from cffi import FFI

HERE = pathlib.Path(__file__).parent


def main() -> None:
    """Emit the module source to the path in argv[1]."""
    ffi = FFI()
    header = (HERE / "syscalls.h").read_text()
    declarations = header.split("/* cdef begin */")[1].split("/* cdef end */")[0]
    ffi.cdef(declarations)
    ffi.set_source("nvhook._native._syscalls", '#include "syscalls.h"', py_limited_api=True)
    ffi.emit_c_code(sys.argv[1])


if __name__ == "__main__":
    main()
