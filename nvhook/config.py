"""nvhook's own configuration: one TOML file, every setting with a default.

A dot in a setting's key is TOML's: ``handler.mounts = ...``, or ``mounts = ...`` below
``[handler]``.

What a file says is remembered in nvhook's state directory until the file changes: config_file reads
it then.
"""

from __future__ import annotations

import os
import time

from nvhook import observations, state
from nvhook.core.catalog import CAPABILITIES
from nvhook.core.edits import MOUNTS_BY_HOOK, MOUNTS_IN_SPEC
from nvhook.core.request import SWARM_PREFIX
from nvhook.errors import ConfigError, FormatError
from nvhook.formats import json_text
from nvhook.log import LEVELS
from nvhook.record import record, replace

DEFAULT_PATH = "/etc/nvhook/config.toml"
MAX_SIZE = 1 << 20


@record
class Config:
    """The value of every setting; paths are absolute, without a slash at the end."""

    driver_root: str = "/"
    dev_root: str = "/dev"
    proc_root: str = "/proc"
    sys_root: str = "/sys"
    state_directory: str = state.DIRECTORY
    log_path: str = "/var/log/nvhook.log"
    log_level: str = "info"
    accept_envvar_when_unprivileged: bool = True
    accept_volume_mounts: bool = False
    accept_cdi_annotations: bool = True
    supported_driver_capabilities: tuple[str, ...] = CAPABILITIES
    inject_unlisted_driver_libraries: bool = True
    cuda_forward_compatibility: bool = True
    swarm_resource: tuple[str, ...] = ()
    disable_require: bool = False
    device_rules: bool = True
    recordings: bool = True
    cdi_spec_directories: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    handler_runtimes: tuple[str, ...] = ("runc", "crun")
    handler_mounts: str = MOUNTS_BY_HOOK


DEFAULTS = Config()


@record
class Setting:
    """One key of the file.

    ``kind`` is path, file, level, side, flag, names, paths, programs or capabilities.
    """

    key: str
    kind: str
    doc: str

    @property
    def attribute(self) -> str:
        """Return the name of the setting in Config."""
        return self.key.replace("-", "_").replace(".", "_")

    @property
    def default(self) -> object:
        """Return the value where the file says nothing."""
        return getattr(DEFAULTS, self.attribute)


SETTINGS = (
    Setting("driver-root", "path", "where the driver's user-space files are installed"),
    Setting("dev-root", "path", "directory with the host's NVIDIA device nodes"),
    Setting("proc-root", "path", "the host's /proc"),
    Setting("sys-root", "path", "the host's /sys"),
    Setting("state-directory", "path", "where the inventory is remembered"),
    Setting("log-path", "file", "log file; empty: no log"),
    Setting("log-level", "level", "debug, info, warning or error"),
    Setting(
        "accept-envvar-when-unprivileged",
        "flag",
        "let containers without CAP_SYS_ADMIN ask with NVIDIA_VISIBLE_DEVICES",
    ),
    Setting(
        "accept-volume-mounts",
        "flag",
        "let containers ask by mounts below /var/run/nvidia-container-devices",
    ),
    Setting(
        "accept-cdi-annotations",
        "flag",
        "let containers ask with CDI names in annotations cdi.k8s.io/...",
    ),
    Setting(
        "supported-driver-capabilities",
        "capabilities",
        "driver capabilities that containers may have",
    ),
    Setting(
        "inject-unlisted-driver-libraries",
        "flag",
        "give compute and utility every library with the driver's version, known to nvhook or not",
    ),
    Setting(
        "cuda-forward-compatibility",
        "flag",
        "let an image's libraries in /usr/local/cuda/compat win where they suit the host's driver",
    ),
    Setting(
        "swarm-resource", "names", "variables of Docker Swarm that replace NVIDIA_VISIBLE_DEVICES"
    ),
    Setting(
        "disable-require",
        "flag",
        "start containers whatever their NVIDIA_REQUIRE_... variables say",
    ),
    Setting("device-rules", "flag", "allow the devices in the container's device cgroup"),
    Setting(
        "recordings",
        "flag",
        "let the launcher repeat a start for the next container of its kind, without Python",
    ),
    Setting(
        "cdi-spec-directories",
        "paths",
        "where specs of CDI devices are; of two definitions the later directory's counts",
    ),
    # The launcher reads this one, too: on one line, in this form.
    Setting(
        "handler.runtimes",
        "programs",
        "the OCI runtimes nvhook-runtime stands in front of: the first one found is used",
    ),
    Setting(
        "handler.mounts",
        "side",
        "who mounts the driver's files in nvhook-runtime's containers: hook, or spec (the runtime)",
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}


def load(path: str | None = None) -> Config:
    """Return the configuration of a file, the defaults if the default file does not exist.

    Raises: ConfigError.
    """
    return replace(DEFAULTS, **explicit_values(path))


def explicit_values(path: str | None = None) -> dict[str, object]:
    """Return what the file sets, by attribute name.

    Raises: ConfigError.
    """
    name = DEFAULT_PATH if path is None else path
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if path is None:
            observations.stamp(name, None)
            return {}
        raise ConfigError(f"configuration file {name} does not exist") from None
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    try:
        status = os.fstat(fd)
        observations.stamp(name, status)
        key = _key(name, status)
        cache = f"{state.DIRECTORY}/config-{status.st_dev}-{status.st_ino}.json"
        values = _remembered(cache, key)
        if values is None:
            from nvhook import config_file

            document = config_file.parse(name, config_file.read(name, fd))
            values = _check(name, document)
            # A file written this very moment may change again without a new time stamp.
            if key == _key(name, os.fstat(fd)) and time.time_ns() - status.st_ctime_ns > 10**8:
                _remember(cache, key, document)
    except OSError as error:
        raise _unreadable(name, error) from None
    finally:
        os.close(fd)
    return values


def _unreadable(name: str, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else error
    return ConfigError(f"can't read configuration file {name}: {reason}")


def _key(name: str, status: os.stat_result) -> list[object]:
    return [name, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _remembered(cache: str, key: list[object]) -> dict[str, object] | None:
    data = state.read(cache, MAX_SIZE)
    if data is None:
        return None
    try:
        document = json_text.parse(data, cache)
        if not isinstance(document, dict) or document.get("key") != key:
            return None
        values = document.get("values")
        return _check(cache, values) if isinstance(values, dict) else None
    except (ConfigError, FormatError):
        return None  # written by another version of nvhook: read the file again


def _remember(cache: str, key: list[object], document: dict[str, object]) -> None:
    import json

    text = json.dumps({"key": key, "values": document})
    state.write(cache, text.encode())


def _check(name: str, document: dict[str, object]) -> dict[str, object]:
    """Return the values by attribute name, converted."""
    values = {}
    for key, value in document.items():
        setting = BY_KEY.get(key)
        converted = None if setting is None else convert(setting, value)
        if setting is None or converted is None:
            raise ConfigError(f"{name}: bad value of {key}")
        values[setting.attribute] = converted
    return values


def convert(setting: Setting, value: object) -> object:
    """Return the value as Config has it, None if it is not of the setting's kind."""
    if setting.kind == "flag":
        return value if isinstance(value, bool) else None
    if setting.kind == "level":
        return value if value in LEVELS else None
    if setting.kind == "side":
        return value if value in (MOUNTS_BY_HOOK, MOUNTS_IN_SPEC) else None
    if setting.kind in {"path", "file"}:
        return _path(value, setting.kind == "file")
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return None
    if setting.kind == "names":
        # The launcher decides by this prefix whether a container can be about a GPU at all.
        return tuple(value) if all(item.startswith(SWARM_PREFIX) for item in value) else None
    if setting.kind == "paths":
        paths = [_path(item, may_be_empty=False) for item in value]
        return None if None in paths else tuple(paths)
    if setting.kind == "programs":
        good = value and all(item and not item.isspace() and "\0" not in item for item in value)
        return tuple(value) if good else None
    if "all" in value:
        return CAPABILITIES
    return tuple(sorted(set(value))) if set(value).issubset(CAPABILITIES) else None


def _path(value: object, may_be_empty: bool) -> str | None:
    if not isinstance(value, str) or "\0" in value:
        return None
    if value.startswith("/"):
        return value.rstrip("/") or "/"
    return value if may_be_empty and not value else None
