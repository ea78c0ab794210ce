"""What an engine is told about nvhook."""

import re

from nvhook.errors import ConfigError
from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

DEFAULT_NAME = "nvidia"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z", re.ASCII)


class Registration(Record):
    """An OCI runtime for an engine: its name, its binary, and what else is asked for.

    Raises: ConfigError if the name or the path can't be one.
    """

    __slots__ = ("cdi", "runtime_name", "runtime_path", "set_as_default")

    def __init__(
        self, runtime_name: str, runtime_path: str, set_as_default: bool = False, cdi: bool = False
    ) -> None:
        if not _NAME.match(runtime_name) or runtime_name.startswith("io.containerd."):
            raise ConfigError(
                f"{runtime_name!r} can't be a runtime's name", "letters, digits, dots and dashes"
            )
        if runtime_name in {"runc", "crun"}:
            raise ConfigError(
                f"the name {runtime_name} is the real runtime's", "choose another --runtime-name"
            )
        if not runtime_path.startswith("/") or not runtime_path.isprintable():
            raise ConfigError(f"the runtime's path {runtime_path!r} is not an absolute path")
        self.runtime_name: Final = runtime_name
        self.runtime_path: Final = runtime_path
        self.set_as_default: Final = set_as_default
        self.cdi: Final = cdi
