"""The nodes and files of a feature: looked for only when it is asked for."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase

from nvhook import observations
from nvhook.core.inventory import HostFile
from nvhook.host.nodes import read_node
from nvhook.host.root_paths import join_root, open_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.features import Feature
    from nvhook.core.inventory import HostNode


def find_feature_nodes(feature: Feature, dev_root: str) -> tuple[HostNode, ...]:
    """Return the device nodes of a feature, by name, the numbers in it as numbers."""
    directory = dev_root.rstrip("/")
    names: dict[str, None] = {}
    for pattern in feature.patterns:
        folder = pattern.rpartition("/")[0]
        prefix = f"{folder}/" if folder else ""
        present = (
            observations.names(f"{directory}/{folder}", _literal(pattern[len(prefix) :])) or ()
        )
        matching = [prefix + name for name in present if fnmatchcase(prefix + name, pattern)]
        names.update(dict.fromkeys(sorted(matching, key=_natural)))
    nodes = [
        read_node(directory, name)
        for name in names
        if not any(fnmatchcase(name, pattern) for pattern in feature.without)
    ]
    return tuple([node for node in nodes if node is not None])


def find_feature_files(feature: Feature, driver_root: str, dev_root: str) -> tuple[HostFile, ...]:
    """Return the files and directories of a feature that this host has."""
    machine = os.path.dirname(dev_root.rstrip("/")) or "/"
    places = [(driver_root, path) for path in feature.files]
    places += [(machine, path) for path in feature.machine_files]
    found = []
    for root, path in places:
        opened = open_path(root, path)
        if opened is None:
            observations.place(root, path, None)
        else:
            observations.place(root, path, os.fstat(opened[0]), opened[1])
            os.close(opened[0])
            found.append(HostFile(feature.name, path, path, join_root(root, opened[1])))
    return tuple(found)


def _literal(pattern: str) -> str:
    """Return what every name that matches begins with."""
    return pattern[: min([pattern.index(c) for c in "*?[" if c in pattern], default=len(pattern))]


def _natural(name: str) -> tuple[str, int]:
    """Sort channel2 before channel10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)
