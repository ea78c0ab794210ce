"""Discover a Jetson: the CSV files of its system list what a container gets."""

from __future__ import annotations

import posixpath
from fnmatch import fnmatchcase

from nvhook.core.inventory import Gpu, HostFile, HostNode, Inventory, Library
from nvhook.core.platforms import (
    BASE_CSV,
    CSV_DIRECTORY,
    TEGRA,
    TEGRA_RELEASE,
    l4t_cuda,
    l4t_release,
)
from nvhook.errors import HostError
from nvhook.formats import tegra_csv
from nvhook.host.driver_texts import driver_directory, read_majors, read_text
from nvhook.host.nodes import read_node
from nvhook.host.platforms import read_library
from nvhook.host.root_paths import MAX_LINKS, join_root, list_directory, read_link, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CSV = 1 << 20
_UUID = "GPU-????????-????-????-????-????????????"


class Listed:
    """What the entries of the lists lead to; each thing once, in their order."""

    def __init__(self, driver_root: str, dev_root: str) -> None:
        self.driver_root = driver_root
        self.dev_root = dev_root
        self.nodes: dict[str, HostNode] = {}
        self.files: dict[str, HostFile] = {}
        self.libraries: dict[str, Library] = {}
        self.links: dict[str, str] = {}
        self.absent: list[tegra_csv.Entry] = []

    def add(self, entry: tegra_csv.Entry) -> None:
        """Take what an entry names; a list is for all boards of a family, so much is absent."""
        is_below_dev = entry.path.startswith("/dev/")
        if entry.kind == "dev" or is_below_dev:
            found = is_below_dev and self._add_nodes(entry.path.removeprefix("/dev"))
        else:
            paths = _matching(self.driver_root, entry.path)
            found = True in [self._add_file(entry.kind, path) for path in paths]
        if not found:
            self.absent.append(entry)

    def _add_nodes(self, pattern: str) -> bool:
        """Take the nodes of a path below the dev root; of a directory all that it has."""
        names = []
        for path in _matching(self.dev_root, pattern):
            listed = list_directory(self.dev_root, path)
            names += [path] if listed is None else [f"{path}/{name}" for name in listed[0]]
        nodes = [read_node(self.dev_root.rstrip("/"), name.lstrip("/")) for name in names]
        self.nodes |= {node.name: node for node in nodes if node is not None}
        return any(node is not None for node in nodes)

    def _add_file(self, kind: str, path: str) -> bool:
        """Take a file or directory with the links that lead to it; of ``sym`` the links alone."""
        links = self._links(path)
        self.links |= links
        if kind == "sym":
            return bool(links)
        resolved = resolve(self.driver_root, path)
        if resolved is None:
            return False
        library = read_library(self.driver_root, resolved) if kind == "lib" else None
        if library is not None:
            self.libraries.setdefault(resolved, library)
        else:
            host_path = join_root(self.driver_root, resolved)
            self.files.setdefault(resolved, HostFile(kind, resolved, resolved, host_path))
        return True

    def _links(self, path: str) -> dict[str, str]:
        """Return the chain of links that begins with a path: link -> target as it stands there."""
        chain: dict[str, str] = {}
        while len(chain) < MAX_LINKS and path not in chain:
            target = read_link(self.driver_root, path)
            if target is None:
                break
            chain[path] = target
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return chain


def discover(driver_root: str, dev_root: str, proc_root: str, every_csv: bool = False) -> Inventory:
    """Return what the base lists name, or all lists.

    Raises: HostError where there is no list.
    """
    found = read_lists(driver_root, dev_root, every_csv)
    release = l4t_release(_text(driver_root, TEGRA_RELEASE))
    model = (read_text(proc_root.rstrip("/") + "/device-tree/model", 256) or "").strip("\0\n ")
    own = resolve(driver_root, TEGRA_RELEASE)
    if own is not None:
        found.files[own] = HostFile("lib", TEGRA_RELEASE, own, join_root(driver_root, own))
    version = read_text(driver_directory(proc_root) + "/version") or ""
    return Inventory(
        driver_version=_version(version),
        cuda_version=l4t_cuda(release),
        driver_root=driver_root,
        proc_root=proc_root,
        majors=read_majors(proc_root),
        gpus=(Gpu(0, _UUID, 0, "", model or "Tegra"),),
        nodes=tuple(found.nodes.values()),
        libraries=tuple(found.libraries.values()),
        files=tuple(found.files.values()),
        proc_files={},
        platform=TEGRA,
        links=tuple(found.links.items()),
    )


def read_lists(driver_root: str, dev_root: str, every_csv: bool) -> Listed:
    """Return what the lists name.

    Raises: HostError where there is no list.
    """
    listed = list_directory(driver_root, CSV_DIRECTORY)
    names = [name for name in (listed[0] if listed is not None else ()) if name.endswith(".csv")]
    if not every_csv:
        names = [name for name in BASE_CSV if name in names]
    if not names:
        raise HostError(
            f"this is a Jetson, but {CSV_DIRECTORY} has none of {', '.join(BASE_CSV)}",
            "install the package nvidia-l4t-init: its lists say what containers get",
        )
    found = Listed(driver_root, dev_root)
    for name in names:
        entries, _ = tegra_csv.parse(_text(driver_root, f"{CSV_DIRECTORY}/{name}"))
        for entry in entries:
            found.add(entry)
    return found


def _version(text: str) -> str:
    from nvhook.errors import FormatError
    from nvhook.formats.proc_driver import parse_version

    try:
        return parse_version(text)
    except FormatError:
        return ""


def _text(driver_root: str, path: str) -> str:
    resolved = resolve(driver_root, path)
    return "" if resolved is None else read_text(join_root(driver_root, resolved), MAX_CSV) or ""


def _matching(root: str, pattern: str) -> Iterator[str]:
    """Yield the paths inside a root that a shell pattern means; one without any is itself."""
    directory, _, name = pattern.rstrip("/").rpartition("/")
    if not any(character in pattern for character in "*?["):
        yield pattern.rstrip("/")
        return
    for parent in _matching(root, directory) if directory else ("",):
        listed = list_directory(root, parent or "/")
        for each in listed[0] if listed is not None else ():
            if fnmatchcase(each, name) and (each[:1] != "." or name[:1] == "."):
                yield f"{parent}/{each}"
