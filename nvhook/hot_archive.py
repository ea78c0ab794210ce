"""Pack the modules of the hot doors into one file each, for one version of Python.

    python hot_archive.py DIRECTORY [PACKAGE-DIRECTORY]

makes start.pyc, which is hot_start compiled, encodings.pyc, which is hot_encodings, and for each
door DOOR.modules: groups of modules, each after those it imports, as a length of 4 bytes
(little-endian) and a marshalled tuple of (name, is a package, code). The build and
scripts/install-hook.sh run this with the interpreter that will run the doors. DIRECTORY is to be
the package's _hot/lib/python3.N, as the interpreter's own is called below its prefix: its home is
_hot when it starts. encodings.pyc holds the time and size of the interpreter it was tried with, in
the place of a source's; it is empty for one that does not start with it.

DOORS is also the import budget: a test compares it with what real containers make a door import.
"""

import ast
import importlib.util
import inspect
import marshal
import os
import subprocess
import sys
import tempfile

HOOK = (
    "nvhook",
    "nvhook._native",
    "nvhook.config",
    "nvhook.core",
    "nvhook.core.catalog",
    "nvhook.core.device_edits",
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
    "nvhook.formats.ldcache_layout",
    "nvhook.formats.ldcache_splice",
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
    "nvhook.kernel.descriptors",
    "nvhook.kernel.device_rules",
    "nvhook.kernel.mountinfo",
    "nvhook.kernel.mounts",
    "nvhook.kernel.process",
    "nvhook.kernel.refusals",
    "nvhook.kernel.replace",
    "nvhook.kernel.root_view",
    "nvhook.kernel.rootfs",
    "nvhook.loader_cache",
    "nvhook.log",
    "nvhook.pipeline",
    "nvhook.record",
    "nvhook.sources",
    "nvhook.state_file",
    "nvhook.target",
)
RUNTIME = (
    "nvhook",
    "nvhook.config",
    "nvhook.core",
    "nvhook.core.catalog",
    "nvhook.core.device_edits",
    "nvhook.core.edits",
    "nvhook.core.inventory",
    "nvhook.core.layout",
    "nvhook.core.oci_render",
    "nvhook.core.planner",
    "nvhook.core.request",
    "nvhook.core.selection",
    "nvhook.errors",
    "nvhook.formats",
    "nvhook.formats.json_splice",
    "nvhook.formats.json_text",
    "nvhook.formats.oci",
    "nvhook.formats.oci_edit",
    "nvhook.formats.proc_driver",
    "nvhook.handoff",
    "nvhook.host",
    "nvhook.host.driver_texts",
    "nvhook.host.inventory_cache",
    "nvhook.host.nodes",
    "nvhook.host.root_paths",
    "nvhook.kernel",
    "nvhook.kernel.descriptors",
    "nvhook.kernel.replace",
    "nvhook.log",
    "nvhook.pipeline",
    "nvhook.record",
    "nvhook.runtime",
    "nvhook.state_file",
)
DOORS = {"hook": HOOK, "runtime": RUNTIME}
# Only where cgroup v2 decides about devices; loaded from their own files.
V2_MODULES = ("nvhook.kernel.bpf", "nvhook.kernel.programs")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

# Bytes of a group: what glibc takes from the heap and reuses, not from the system.
GROUP = 64 << 10


def build(package: str) -> dict[str, bytes]:
    """Return the files for the running interpreter; package is the directory of nvhook."""
    encodings = _script("hot_encodings.py", package)
    return {
        "start.pyc": _script("hot_start.py", package),
        "encodings.pyc": _tried(encodings) if _starts_with(encodings) else b"",
        **{f"{door}.modules": _pack(_modules(door, package)) for door in DOORS},
    }


def _script(name: str, package: str) -> bytes:
    return _pyc(_compile(_read(f"{package}/{name}"), name))


def _pyc(code: "CodeType") -> bytes:
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)  # no time is compared


def _tried(encodings: bytes) -> bytes:
    """Say in the place of the source's time and size whose they are: what was tried may change."""
    status = os.stat(os.path.realpath(sys.executable))
    stamps = int(status.st_mtime), status.st_size
    fields = [(stamp & 0xFFFFFFFF).to_bytes(4, "little") for stamp in stamps]
    return b"".join((encodings[:8], *fields, encodings[16:]))


def _starts_with(encodings: bytes) -> bool:
    """Try whether the interpreter needs no other file of its library to start."""
    python = os.path.realpath(sys.executable)
    expected = f"\N{BULLET} {os.path.dirname(os.__file__)}/lib-dynload\n"  # hot_start relies on it
    with tempfile.TemporaryDirectory() as home:
        directory = "/".join([home, *os.__file__.split("/")[-3:-1]])
        os.makedirs(directory)
        script = _pyc(compile("import sys; print('\N{BULLET}', sys.path[-1])", "try", "exec"))
        for name, content in (("encodings.pyc", encodings), ("start.pyc", script)):
            with open(f"{directory}/{name}", "wb") as file:
                file.write(content)
        done = subprocess.run(
            [python, "-S", "-X", "utf8", f"{directory}/start.pyc"],
            env={
                "LC_ALL": "C",
                "PYTHONHOME": f"{home}:{os.path.dirname(os.path.dirname(python))}",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    return (done.returncode, done.stdout, done.stderr) == (0, expected.encode(), b"")


def _modules(door: str, package: str) -> "list[tuple[str, bool, CodeType]]":
    sources = {}
    for name in DOORS[door]:
        path = f"{package}/{name.removeprefix('nvhook').replace('.', '/').lstrip('/')}"
        is_package = os.path.isdir(path)
        path = f"{path.rstrip('/')}/__init__.py" if is_package else f"{path}.py"
        sources[name] = is_package, _read(path)
    modules = []
    for name in _in_order({name: source for name, (_, source) in sources.items()}):
        is_package, source = sources[name]
        modules.append((name, is_package, _compile(source, f"{name}.py")))
    return modules


def _pack(modules: "list[tuple[str, bool, CodeType]]") -> bytes:
    groups: list[bytes] = []
    taken = 0
    for count in range(1, len(modules) + 1):
        # Without the next module, the group is as large as it may be.
        if count == len(modules) or len(marshal.dumps(tuple(modules[taken : count + 1]))) > GROUP:
            data = marshal.dumps(tuple(modules[taken:count]))
            groups += (len(data).to_bytes(4, "little"), data)
            taken = count
    return b"".join(groups)


def _in_order(sources: dict[str, str]) -> list[str]:
    """Return the modules, each after its package and what it imports at module level."""
    ordered: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in ordered:
            return
        needed = {name.rpartition(".")[0]}
        for node in ast.parse(sources[name]).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                needed |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        for other in sorted((needed & sources.keys()) - {name}):
            visit(other)
        ordered[name] = None

    for name in sources:
        visit(name)
    return list(ordered)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _compile(source: str, name: str) -> "CodeType":
    """Compile without what only a reader needs: docstrings, types, line numbers, names.

    A third of the file, and half a millisecond. NVHOOK_DEBUG=1 runs the modules themselves.
    """
    tree = ast.fix_missing_locations(_WithoutTypes().visit(ast.parse(source)))
    return _bare(compile(tree, name, "exec", dont_inherit=True, optimize=2))


class _WithoutTypes(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.stmt:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        plain = ast.Assign([node.target], node.value) if node.value else ast.Pass()
        return ast.copy_location(plain, node)


def _bare(code: "CodeType") -> "CodeType":
    """Return code without line numbers, and with one name for all of a function's own variables.

    Those are called by number; the names of parameters count where they are given by name.
    """
    changes: dict[str, Any] = {
        "co_linetable": b"",
        "co_consts": tuple(
            [_bare(each) if isinstance(each, type(code)) else each for each in code.co_consts]
        ),
    }
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    parameters = code.co_argcount + code.co_kwonlyargcount + stars
    named = code.co_varnames[:parameters]
    changes["co_varnames"] = named + ("_",) * (len(code.co_varnames) - parameters)
    if sys.version_info >= (3, 11):
        changes["co_qualname"] = code.co_name
    return code.replace(**changes)


if __name__ == "__main__":
    directory, *rest = sys.argv[1:]
    files = build(rest[0] if rest else os.path.dirname(os.path.abspath(__file__)))
    for file_name, content in files.items():
        with open(f"{directory}/{file_name}", "wb") as output:
            output.write(content)
