"""A drop-in for CRI-O: /etc/crio/crio.conf.d/99-nvhook.conf. Other files are only read."""

from collections.abc import Sequence

from nvhook.engines import toml_edit
from nvhook.engines.registration import Registration
from nvhook.engines.toml_edit import Assignment

DEFAULT_FILE = "/etc/crio/crio.conf.d/99-nvhook.conf"
MAIN_FILE = "/etc/crio/crio.conf"

_RUNTIME = ("crio", "runtime")
_RUNTIMES = (*_RUNTIME, "runtimes")
_DEFAULT = (*_RUNTIME, "default_runtime")


def register(
    text: str | None, wanted: Registration, file: str, others: Sequence[tuple[str, str]] = ()
) -> str:
    """Return the drop-in with the runtime; a text that has it already is returned as it is.

    others are the other files, (name, text) in the order CRI-O reads them: where they name conmon's
    path for runc or crun, the new runtime needs it, too.

    Raises: ConfigError.
    """
    earlier = toml_edit.parse(text or "", file)
    base = None if text is None else toml_edit.unregister(text)
    entry = (*_RUNTIMES, wanted.runtime_name)
    assignments: list[Assignment] = []
    if wanted.set_as_default or toml_edit.lookup(earlier, _DEFAULT) == wanted.runtime_name:
        assignments.append((_DEFAULT, wanted.runtime_name))
    assignments.append(((*entry, "runtime_path"), wanted.runtime_path))
    assignments.append(((*entry, "runtime_type"), "oci"))
    if (monitor := _monitor_path(others)) is not None:
        assignments.append(((*entry, "monitor_path"), monitor))
    return toml_edit.assign(base, assignments, file)


def unregister(text: str, file: str) -> str | None:
    """Return the text from before, None for a file that was not there; the same text if nothing is.

    Raises: ConfigError.
    """
    toml_edit.parse(text, file)
    return toml_edit.unregister(text)


def conflicts(others: Sequence[tuple[str, str]], wanted: Registration, file: str) -> list[str]:
    """Return what other files say about the same runtime and the default.

    CRI-O reads crio.conf, then crio.conf.d in the order of names; the last one counts.

    Raises: ConfigError.
    """
    found = []
    for other, text in others:
        document = toml_edit.parse(text, other)
        order = "later, and wins" if _read_after(other, file) else "earlier, and loses"
        entry = toml_edit.table(document, (*_RUNTIMES, wanted.runtime_name))
        path = entry.get("runtime_path")
        if entry and path != wanted.runtime_path:
            found.append(f"{other} is read {order}: its runtime {wanted.runtime_name} is {path}")
        default = toml_edit.lookup(document, _DEFAULT)
        changes = wanted.set_as_default and default not in {None, wanted.runtime_name}
        if changes and _read_after(other, file):
            found.append(f"{other} is read {order}: its default runtime is {default}")
    return found


def _read_after(other: str, file: str) -> bool:
    directory, _, name = file.rpartition("/")
    other_directory, _, other_name = other.rpartition("/")
    return other_directory == directory and other_name > name


def _monitor_path(others: Sequence[tuple[str, str]]) -> str | None:
    path = None
    for other, text in others:
        document = toml_edit.parse(text, other)
        for name in ("crun", "runc"):
            value = toml_edit.lookup(document, (*_RUNTIMES, name, "monitor_path"))
            path = value if isinstance(value, str) and value else path
    return path
