"""Start a hot door (hook, runtime) from one file that holds its modules, instead of forty.

hot_archive fills MODULES in and compiles this file; the launcher runs the result where it exists
for its interpreter. Finding and checking forty .pyc files costs 3 ms, almost half of the
interpreter's own start.
"""

import gc
import sys
from _frozen_importlib import ModuleSpec
from _imp import create_dynamic, exec_dynamic, extension_suffixes
from posix import RTLD_LAZY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

# (name, is a package, code), every module after those it imports
MODULES: "tuple[tuple[str, bool, CodeType], ...]" = ("filled in by hot_archive",)  # type: ignore[assignment]


# Compiled modules: what needs them, their name, and where they usually are: in the site of the
# package, or among Python's own.
EXTENSIONS = (
    ("nvhook._native", "_cffi_backend", "{site}/_cffi_backend{suffix}"),
    ("nvhook._native", "nvhook._native._syscalls", "{site}/nvhook/_native/_syscalls.abi3.so"),
    ("nvhook.formats.json_text", "_json", "{python}/_json{suffix}"),
)


def load(site: str) -> None:
    """Run every module that is not loaded; what is not among them is found in site as usual."""
    if site not in sys.path:
        sys.path.append(site)
    loaded = sys.modules
    make = type(sys)
    for name, is_package, code in MODULES:
        if name in loaded:  # by the door that hands its work over: handoff.py
            continue
        module = loaded[name] = make(name)
        parent, _, tail = name.rpartition(".")
        module.__package__ = name if is_package else parent
        if is_package:
            module.__path__ = [f"{site}/{name.replace('.', '/')}"]
        if parent:
            setattr(loaded[parent], tail, module)
        exec(code, module.__dict__)  # noqa: S102 - our own


def load_extensions(site: str) -> None:
    """Load compiled modules from where they should be, without a search of every directory.

    What is not there, or built in, is imported as usual by the module that needs it.
    """
    sys.setdlopenflags(RTLD_LAZY)  # a tenth of their functions is called
    suffix = extension_suffixes()[0]
    python = next((path for path in sys.path if path.endswith("/lib-dynload")), "")
    ours = [name for name, _, _ in MODULES]
    for needed_by, name, pattern in EXTENSIONS:
        if needed_by not in ours or name in sys.modules:
            continue
        file = pattern.format(site=site, suffix=suffix, python=python)
        try:
            module = create_dynamic(ModuleSpec(name, None, origin=file))
        except ImportError:
            continue
        exec_dynamic(module)
        sys.modules[name] = module


def start() -> None:
    """Run a door: argv is this file, the package's directory, the door's name, its arguments."""
    gc.disable()  # 20 ms of life make no garbage worth looking for
    load_extensions(sys.argv[1])
    load(sys.argv[1])
    door = sys.modules[f"nvhook.{sys.argv[2]}"]
    door.main(sys.argv[2:])


if __name__ == "__main__":
    start()
