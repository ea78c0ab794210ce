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
from nvhook.settings import FILE, FLAG, LIST_SHAPE, PATH, PATHS, Kind, Setting, list_of, one_of

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


def _capabilities(names: tuple[str, ...]) -> tuple[str, ...] | None:
    if "all" in names:
        return CAPABILITIES
    return tuple(sorted(set(names))) if set(names).issubset(CAPABILITIES) else None


def _setting(key: str, kind: Kind, doc: str) -> Setting:
    return Setting(key, kind, doc, key.replace("-", "_").replace(".", "_"))


_CAPABILITY_LIST = Kind(
    LIST_SHAPE, "a list of some of all, " + ", ".join(CAPABILITIES), _capabilities
)
# The launcher decides by this prefix whether a container can be about a GPU at all.
_SWARM_NAMES = list_of(
    lambda name: name if name.startswith(SWARM_PREFIX) else None,
    f"a list of names that begin with {SWARM_PREFIX}",
)
_PROGRAMS = list_of(
    lambda name: name if name and not name.isspace() else None,
    "a list of at least one name or absolute path",
    1,
)
_SIDE = one_of((MOUNTS_BY_HOOK, MOUNTS_IN_SPEC), f"{MOUNTS_BY_HOOK} or {MOUNTS_IN_SPEC}")

SETTINGS = (
    _setting("driver-root", PATH, "where the driver's user-space files are installed"),
    _setting("dev-root", PATH, "directory with the host's NVIDIA device nodes"),
    _setting("proc-root", PATH, "the host's /proc"),
    _setting("sys-root", PATH, "the host's /sys"),
    _setting("state-directory", PATH, "where the inventory is remembered"),
    _setting("log-path", FILE, "log file; empty: no log"),
    _setting("log-level", one_of(LEVELS), "debug, info, warning or error"),
    _setting(
        "accept-envvar-when-unprivileged",
        FLAG,
        "let containers without CAP_SYS_ADMIN ask with NVIDIA_VISIBLE_DEVICES",
    ),
    _setting(
        "accept-volume-mounts",
        FLAG,
        "let containers ask by mounts below /var/run/nvidia-container-devices",
    ),
    _setting(
        "accept-cdi-annotations",
        FLAG,
        "let containers ask with CDI names in annotations cdi.k8s.io/...",
    ),
    _setting(
        "supported-driver-capabilities",
        _CAPABILITY_LIST,
        "driver capabilities that containers may have",
    ),
    _setting(
        "inject-unlisted-driver-libraries",
        FLAG,
        "give compute and utility every library with the driver's version, known to nvhook or not",
    ),
    _setting(
        "cuda-forward-compatibility",
        FLAG,
        "let an image's libraries in /usr/local/cuda/compat win where they suit the host's driver",
    ),
    _setting(
        "swarm-resource",
        _SWARM_NAMES,
        "variables of Docker Swarm that replace NVIDIA_VISIBLE_DEVICES",
    ),
    _setting(
        "disable-require",
        FLAG,
        "start containers whatever their NVIDIA_REQUIRE_... variables say",
    ),
    _setting("device-rules", FLAG, "allow the devices in the container's device cgroup"),
    _setting(
        "recordings",
        FLAG,
        "let the launcher repeat a start for the next container of its kind, without Python",
    ),
    _setting(
        "cdi-spec-directories",
        PATHS,
        "where specs of CDI devices are; of two definitions the later directory's counts",
    ),
    # The launcher reads this one, too: on one line, in this form.
    _setting(
        "handler.runtimes",
        _PROGRAMS,
        "the OCI runtimes nvhook-runtime stands in front of: the first one found is used",
    ),
    _setting(
        "handler.mounts",
        _SIDE,
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
        converted = None if setting is None else setting.kind.of(value)
        if setting is None or converted is None:
            raise ConfigError(f"{name}: bad value of {key}")
        values[setting.attribute] = converted
    return values
