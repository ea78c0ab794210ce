"""An image of Python and this installation of nvhook, at their places on this machine.

The Containerfile's image has them within a distribution; building it needs the network.
"""

import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from tests.engines.images import write_archive

IMAGE = "localhost/nvhook/device-plugin:1"
# What is installed for tests and lint alone.
OMITTED = re.compile(
    r".*/(__pycache__|test|tests|idlelib|ensurepip|pip|setuptools|mypy|mypyc|.*__mypyc.*"
    r"|hypothesis|_pytest|pytest|pyfakefs|grpc_tools|grimp|importlinter|ruff|pygments)"
)
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}


def make_plugin_archive(path: Path) -> None:
    """Write the image's archive."""
    pythons = _pythons()
    trees = [*pythons, Path(sysconfig.get_path("stdlib")), Path(sys.prefix)]
    layer = path.with_name("plugin-layer.tar")
    with tarfile.open(layer, "w") as tar:
        for name, target in LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for tree in trees:
            tar.add(tree, filter=_wanted)
        for library in _libraries([*pythons, *Path(sys.prefix).rglob("*.so"), *_extensions()]):
            # Where merged-usr links lead to, with the content behind the library's own links.
            tar.add(library.resolve(), library.parent.resolve() / library.name)
    write_archive(path, [(IMAGE, layer, {"Env": ["PATH=/usr/bin"]})])
    layer.unlink()


def _pythons() -> list[Path]:
    """Return where the virtual environment's interpreter leads, link by link."""
    found = [Path(sys.executable)]
    while found[-1].is_symlink():
        found.append(found[-1].parent / found[-1].readlink())
    return found[1:]


def _extensions() -> list[Path]:
    return list(Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("*.so"))


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if OMITTED.fullmatch(f"/{member.name}") else member


def _libraries(programs: list[Path]) -> set[Path]:
    """Return the libraries that programs and modules are linked with, and the loader."""
    wanted = [str(path) for path in programs if not OMITTED.match(f"{path}/")]
    done = subprocess.run(["ldd", *wanted], capture_output=True, text=True, check=False)
    return {Path(found) for found in re.findall(r"\s(/\S+\.so[.0-9]*) \(0x", done.stdout)}
