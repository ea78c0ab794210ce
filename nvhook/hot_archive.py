"""Pack the modules of the hot path into one compiled file for one version of Python.

    python hot_archive.py FILE [PACKAGE-DIRECTORY]

The build and scripts/install-hook.sh run this with the interpreter that will run the hook. MODULES
is also the hook's import budget: a test compares it with what a real hook imports.
"""

import importlib.util
import marshal
import os
import sys

MODULES = (
    "nvhook",
    "nvhook._native",
    "nvhook.config",
    "nvhook.core",
    "nvhook.core.catalog",
    "nvhook.core.edits",
    "nvhook.core.inventory",
    "nvhook.core.layout",
    "nvhook.core.planner",
    "nvhook.core.request",
    "nvhook.core.selection",
    "nvhook.errors",
    "nvhook.executor",
    "nvhook.formats",
    "nvhook.formats.json_text",
    "nvhook.formats.ldcache",
    "nvhook.formats.ldcache_layout",
    "nvhook.formats.oci",
    "nvhook.formats.proc_driver",
    "nvhook.hook",
    "nvhook.host",
    "nvhook.host.driver_texts",
    "nvhook.host.inventory_cache",
    "nvhook.host.nodes",
    "nvhook.host.root_paths",
    "nvhook.kernel",
    "nvhook.kernel.cgroup",
    "nvhook.kernel.device_rules",
    "nvhook.kernel.mountinfo",
    "nvhook.kernel.mounts",
    "nvhook.kernel.process",
    "nvhook.kernel.rootfs",
    "nvhook.loader_cache",
    "nvhook.log",
    "nvhook.pipeline",
    "nvhook.record",
    "nvhook.state_file",
)
# Only where cgroup v2 decides about devices.
V2_MODULES = ("nvhook.kernel.bpf", "nvhook.kernel.programs")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

_PLACEHOLDER = "MODULES: dict[str, tuple[bool, bytes]] = {}"


def build(package: str) -> bytes:
    """Return the content of the .pyc file for the running interpreter.

    package is the directory of the nvhook package.
    """
    modules = {}
    for name in (*MODULES, *V2_MODULES):
        path = f"{package}/{name.removeprefix('nvhook').replace('.', '/').lstrip('/')}"
        is_package = os.path.isdir(path)
        path = f"{path.rstrip('/')}/__init__.py" if is_package else f"{path}.py"
        modules[name] = is_package, marshal.dumps(_compile(_read(path), f"{name}.py"))
    source = _read(f"{package}/hot_start.py")
    if source.count(_PLACEHOLDER) != 1:
        raise ValueError("hot_start.py has no place for the modules")
    code = _compile(source.replace(_PLACEHOLDER, f"MODULES = {modules!r}"), "hot_start.py")
    header = importlib.util.MAGIC_NUMBER + bytes(12)  # a script's time and size are not checked
    return header + marshal.dumps(code)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _compile(source: str, name: str) -> "CodeType":
    return compile(source, name, "exec", dont_inherit=True, optimize=2)


if __name__ == "__main__":
    target, *rest = sys.argv[1:]
    content = build(rest[0] if rest else os.path.dirname(os.path.abspath(__file__)))
    with open(target, "wb") as output:
        output.write(content)
