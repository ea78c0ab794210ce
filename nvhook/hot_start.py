"""Start the hook from one file that holds the hot path's modules, instead of forty.

hot_archive fills MODULES in and compiles this file; the launcher runs the result where it exists
for its interpreter. Finding and checking forty .pyc files costs 3 ms, almost half of the
interpreter's own start.
"""

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

# (name, is a package, code), every module after those it imports
MODULES: "tuple[tuple[str, bool, CodeType], ...]" = ("filled in by hot_archive",)  # type: ignore[assignment]


def load(site: str) -> None:
    """Run every module; what is not among them is found in site as usual."""
    sys.path.append(site)
    loaded = sys.modules
    make = type(sys)
    for name, is_package, code in MODULES:
        module = loaded[name] = make(name)
        parent, _, tail = name.rpartition(".")
        module.__package__ = name if is_package else parent
        if is_package:
            module.__path__ = [f"{site}/{name.replace('.', '/')}"]
        if parent:
            setattr(loaded[parent], tail, module)
        exec(code, module.__dict__)  # noqa: S102 - our own


def start() -> None:
    """Run the hook: argv is this file, the directory of the package, ``hook``, its arguments."""
    gc.disable()  # 20 ms of life make no garbage worth looking for
    load(sys.argv[1])
    loaded = sys.modules["nvhook.hook"]
    loaded.main(sys.argv[2:])


if __name__ == "__main__":
    start()
