"""Start the hook from one file that holds the hot path's modules, instead of forty.

hot_archive fills MODULES in and compiles this file; the launcher runs the result where it exists
for its interpreter. Finding and checking forty .pyc files costs 2-3 ms, a third of the
interpreter's own start.
"""

import sys
from _frozen_importlib import ModuleSpec
from marshal import loads

# name -> (is a package, marshalled code)
MODULES: dict[str, tuple[bool, bytes]] = {}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


class Archive:
    """The import system's finder and loader of MODULES; everything else is found as usual."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of an archived module."""
        if name not in MODULES:
            return None
        is_package = MODULES[name][0]
        spec = ModuleSpec(name, Archive, is_package=is_package)  # type: ignore[arg-type]
        if is_package:
            spec.submodule_search_locations = [f"{sys.argv[1]}/{name.replace('.', '/')}"]
        return spec

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None:
        """Leave making the module to the import system."""

    @staticmethod
    def exec_module(module: "ModuleType") -> None:
        """Run an archived module's code."""
        exec(loads(MODULES[module.__name__][1]), module.__dict__)  # noqa: S102, S302 - our own code


def start() -> None:
    """Run the hook: argv is this file, the directory of the package, ``hook``, its arguments."""
    sys.meta_path.insert(0, Archive)
    sys.path.append(sys.argv[1])
    from nvhook.hook import main

    main(sys.argv[2:])


if __name__ == "__main__":
    start()
