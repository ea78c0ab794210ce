"""The types that the type checker has of the C functions are those of the headers."""

import ast
import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "nvhook/_native"
HEADERS = ("syscalls.h", "root.h")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
FUNCTION = re.compile(r"^(\w[\w ]*[ *])(nvh_\w+)\(([^)]*)\);", re.MULTILINE)


def declared() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the result and the parameters' kinds of each function that Python may call."""
    found = {}
    for header in HEADERS:
        text = (NATIVE / header).read_text().split("/* cdef begin */")[1]
        text = COMMENT.sub("", text.split("/* cdef end */")[0])
        for result, name, parameters in FUNCTION.findall(text):
            kinds = tuple(
                "Pointer" if re.search(r"[*\[]|recorder", each) else "int"
                for each in parameters.split(",")
                if each.strip() != "void"
            )
            kind = "Pointer" if "*" in result else "None" if result.strip() == "void" else "int"
            found[name] = (kind, kinds)
    return found


def typed() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the same of the type checker's file."""
    tree = ast.parse((NATIVE / "_syscalls.pyi").read_text())
    [lib] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        node.name: (
            ast.unparse(node.returns or ast.Constant(None)),
            tuple(
                ast.unparse(each.annotation) for each in node.args.posonlyargs if each.annotation
            ),
        )
        for node in lib.body
        if isinstance(node, ast.FunctionDef)
    }


def test_every_function_has_its_type() -> None:
    assert typed() == declared()


@pytest.mark.parametrize("header", HEADERS)
def test_constants_have_their_type(header) -> None:
    text = COMMENT.sub("", (NATIVE / header).read_text())
    stub = (NATIVE / "_syscalls.pyi").read_text()
    for body in re.findall(r"enum \{(.*?)\}", text, re.DOTALL):
        for name in re.findall(r"NVH_\w+", body):
            assert f"    {name}: int\n" in stub
