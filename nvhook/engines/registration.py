"""What an engine is told about nvhook."""

import re
from dataclasses import dataclass

from nvhook.errors import ConfigError

DEFAULT_NAME = "nvidia"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Registration:
    """An OCI runtime for an engine: its name, its binary, and what else is asked for.

    Raises: ConfigError if the name or the path can't be one.
    """

    runtime_name: str
    runtime_path: str
    set_as_default: bool = False
    cdi: bool = False

    def __post_init__(self) -> None:
        name, path = self.runtime_name, self.runtime_path
        if not _NAME.match(name) or name.startswith("io.containerd."):
            raise ConfigError(
                f"{name!r} can't be a runtime's name", "letters, digits, dots and dashes"
            )
        if name in {"runc", "crun"}:
            raise ConfigError(
                f"the name {name} is the real runtime's", "choose another --runtime-name"
            )
        if not path.startswith("/") or not path.isprintable():
            raise ConfigError(f"the runtime's path {path!r} is not an absolute path")
