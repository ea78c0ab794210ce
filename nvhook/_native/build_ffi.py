"""Write the C source of the _syscalls extension (run by meson at build time only)."""

import pathlib
import sys

from cffi import FFI

HERE = pathlib.Path(__file__).parent
HEADERS = ("syscalls.h", "root.h")


def main() -> None:
    """Emit the module source to the path in argv[1]."""
    ffi = FFI()
    for name in HEADERS:
        header = (HERE / name).read_text()
        ffi.cdef(header.split("/* cdef begin */")[1].split("/* cdef end */")[0])
    # Python's part of a nvh_recorder.
    ffi.cdef('extern "Python" int nvh_recorded(void *context, const struct nvh_step *step);')
    includes = "".join(f'#include "{name}"\n' for name in HEADERS)
    ffi.set_source("nvhook._native._syscalls", includes, py_limited_api=True)
    ffi.emit_c_code(sys.argv[1])


if __name__ == "__main__":
    main()
