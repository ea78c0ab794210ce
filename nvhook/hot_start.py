"""Start a hot door (hook, runtime) from one file that holds its modules, instead of forty.

The launcher runs this file, compiled, where hot_archive has made both for its interpreter. Finding
and checking forty .pyc files costs 3 ms, almost half of the interpreter's own start.
"""

import gc
import marshal
import posix
import sys
from _frozen_importlib import ModuleSpec
from _imp import create_builtin, create_dynamic, exec_builtin, exec_dynamic, extension_suffixes

# Compiled modules: the doors that need them, their name, and where they usually are: in the site
# of the package, or among Python's own.
EXTENSIONS = (
    (("hook",), "_cffi_backend", "{site}/_cffi_backend{suffix}"),
    (("hook",), "nvhook._native._syscalls", "{site}/nvhook/_native/_syscalls.abi3.so"),
    (("hook", "runtime"), "_json", "{python}/_json{suffix}"),
)
# Parts of the interpreter that a door needs; built into some and found as usual in others.
BUILTINS = ("_stat", "_struct", "errno")


def load(site: str, door: str) -> None:
    """Load what a door needs: extensions, then its archive's modules; not what is there already."""
    if site not in sys.path:
        sys.path.append(site)
    _load_builtins()
    _load_extensions(site, door)
    archive = __file__.rpartition("/")[0] + f"/{door}.modules"
    fd = posix.open(archive, posix.O_RDONLY | posix.O_CLOEXEC)
    # Group by group, because memory used twice is cheaper than more of it.
    while size := int.from_bytes(posix.read(fd, 4), "little"):
        for name, is_package, code in marshal.loads(posix.read(fd, size)):  # noqa: S302 - our own
            if name not in sys.modules:
                _run(site, name, is_package, code)
    posix.close(fd)


def _run(site: str, name: str, is_package: bool, code: object) -> None:
    module = sys.modules[name] = type(sys)(name)
    parent, _, tail = name.rpartition(".")
    module.__package__ = name if is_package else parent
    if is_package:
        module.__path__ = [f"{site}/{name.replace('.', '/')}"]
    if parent:
        setattr(sys.modules[parent], tail, module)
    exec(code, module.__dict__)  # type: ignore[arg-type]  # noqa: S102 - our own


def _load_builtins() -> None:
    for name in BUILTINS:
        if name in sys.builtin_module_names and name not in sys.modules:
            module = sys.modules[name] = create_builtin(ModuleSpec(name, None, origin="built-in"))
            exec_builtin(module)


def _load_extensions(site: str, door: str) -> None:
    """Load compiled modules from where they should be, without a search of every directory.

    What is not there is imported as usual by the module that needs it.
    """
    sys.setdlopenflags(posix.RTLD_LAZY)  # a tenth of their functions is called
    suffix = extension_suffixes()[0]
    python = next((path for path in sys.path if path.endswith("/lib-dynload")), "")
    for doors, name, pattern in EXTENSIONS:
        if door not in doors or name in sys.modules:
            continue
        file = pattern.format(site=site, suffix=suffix, python=python)
        try:
            module = create_dynamic(ModuleSpec(name, None, origin=file))
        except ImportError:
            continue
        exec_dynamic(module)
        sys.modules[name] = module


def _leave_home() -> None:
    """Make the rest of the process see Python's own library, not the home it started with."""
    if posix.environ.pop(b"PYTHONHOME", None) is None:
        return
    posix.unsetenv(b"PYTHONHOME")
    compiled = sys.path[-1]  # the one directory that the home has not replaced
    library = compiled.rpartition("/")[0]
    sys.path[:] = [library, compiled]
    sys.prefix = sys.base_prefix = sys.exec_prefix
    sys._stdlib_dir = library  # type: ignore[attr-defined]
    sys.modules["encodings"].give_way()


def start() -> None:
    """Run a door: argv is this file, the package's directory, the door's name, its arguments."""
    gc.disable()  # 20 ms of life make no garbage worth looking for
    _leave_home()
    site, door = sys.argv[1:3]
    load(site, door)
    sys.modules[f"nvhook.{door}"].main(sys.argv[2:])


if __name__ == "__main__":
    start()
