"""nvhook's own configuration: one TOML file, every setting with a default.

A dot in a setting's key is TOML's: ``handler.mounts = ...``, or ``mounts = ...`` below
``[handler]``.

What a file says is remembered in nvhook's state directory until the file changes: config_file reads
it then.
"""

import posix
import time

from nvhook import state
from nvhook.core.catalog import CAPABILITIES
from nvhook.core.edits import MOUNTS_BY_HOOK, MOUNTS_IN_SPEC
from nvhook.core.request import SWARM_PREFIX
from nvhook.errors import ConfigError, FormatError
from nvhook.formats import json_text
from nvhook.log import LEVELS
from nvhook.record import Record
from nvhook.settings import FILE, FLAG, LIST_SHAPE, PATH, PATHS, Kind, Setting, list_of, one_of

DEFAULT_PATH = "/etc/nvhook/config.toml"
MAX_SIZE = 1 << 20


def _capabilities(names: tuple[str, ...]) -> tuple[str, ...] | None:
    if "all" in names:
        return CAPABILITIES
    return tuple(sorted(set(names))) if set(names).issubset(CAPABILITIES) else None


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
    Setting("driver-root", PATH, "/", "where the driver's user-space files are installed"),
    Setting("dev-root", PATH, "/dev", "directory with the host's NVIDIA device nodes"),
    Setting("proc-root", PATH, "/proc", "the host's /proc"),
    Setting("sys-root", PATH, "/sys", "the host's /sys"),
    Setting("state-directory", PATH, state.DIRECTORY, "where the inventory is remembered"),
    Setting("log-path", FILE, "/var/log/nvhook.log", "log file; empty: no log"),
    Setting("log-level", one_of(LEVELS), "info", "debug, info, warning or error"),
    Setting(
        "accept-envvar-when-unprivileged",
        FLAG,
        True,
        "let containers without CAP_SYS_ADMIN ask with NVIDIA_VISIBLE_DEVICES",
    ),
    Setting(
        "accept-volume-mounts",
        FLAG,
        False,
        "let containers ask by mounts below /var/run/nvidia-container-devices",
    ),
    Setting(
        "accept-cdi-annotations",
        FLAG,
        True,
        "let containers ask with CDI names in annotations cdi.k8s.io/...",
    ),
    Setting(
        "supported-driver-capabilities",
        _CAPABILITY_LIST,
        CAPABILITIES,
        "driver capabilities that containers may have",
    ),
    Setting(
        "inject-unlisted-driver-libraries",
        FLAG,
        True,
        "give compute and utility every library with the driver's version, known to nvhook or not",
    ),
    Setting(
        "cuda-forward-compatibility",
        FLAG,
        True,
        "let an image's libraries in /usr/local/cuda/compat win where they suit the host's driver",
    ),
    Setting(
        "swarm-resource",
        _SWARM_NAMES,
        (),
        "variables of Docker Swarm that replace NVIDIA_VISIBLE_DEVICES",
    ),
    Setting(
        "disable-require",
        FLAG,
        False,
        "start containers whatever their NVIDIA_REQUIRE_... variables say",
    ),
    Setting("device-rules", FLAG, True, "allow the devices in the container's device cgroup"),
    Setting(
        "cdi-spec-directories",
        PATHS,
        ("/etc/cdi", "/var/run/cdi"),
        "where specs of CDI devices are; of two definitions the later directory's counts",
    ),
    # The launcher reads this one, too: on one line, in this form.
    Setting(
        "handler.runtimes",
        _PROGRAMS,
        ("runc", "crun"),
        "the OCI runtimes nvhook-runtime stands in front of: the first one found is used",
    ),
    Setting(
        "handler.mounts",
        _SIDE,
        MOUNTS_BY_HOOK,
        "who mounts the driver's files in nvhook-runtime's containers: hook, or spec (the runtime)",
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}


class Config(Record):
    """The value of every setting; paths are absolute, without a slash at the end."""

    __slots__ = tuple([setting.attribute for setting in SETTINGS])

    accept_cdi_annotations: bool
    accept_envvar_when_unprivileged: bool
    accept_volume_mounts: bool
    cdi_spec_directories: tuple[str, ...]
    cuda_forward_compatibility: bool
    dev_root: str
    device_rules: bool
    disable_require: bool
    driver_root: str
    handler_mounts: str
    handler_runtimes: tuple[str, ...]
    inject_unlisted_driver_libraries: bool
    log_level: str
    log_path: str
    proc_root: str
    state_directory: str
    supported_driver_capabilities: tuple[str, ...]
    swarm_resource: tuple[str, ...]
    sys_root: str

    def __init__(self, **values: object) -> None:
        for setting in SETTINGS:
            setattr(self, setting.attribute, values.pop(setting.attribute, setting.default))
        if values:
            raise TypeError(f"no such setting: {', '.join(values)}")


def load(path: str | None = None) -> Config:
    """Return the configuration of a file, the defaults if the default file does not exist.

    Raises: ConfigError.
    """
    return Config(**explicit_values(path))


def explicit_values(path: str | None = None) -> dict[str, object]:
    """Return what the file sets, by attribute name.

    Raises: ConfigError.
    """
    name = DEFAULT_PATH if path is None else path
    try:
        fd = posix.open(name, posix.O_RDONLY | posix.O_CLOEXEC)
    except FileNotFoundError:
        if path is None:
            return {}
        raise ConfigError(f"configuration file {name} does not exist") from None
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    try:
        status = posix.fstat(fd)
        key = _key(name, status)
        cache = f"{state.DIRECTORY}/config-{status.st_dev}-{status.st_ino}.json"
        values = _remembered(cache, key)
        if values is None:
            from nvhook import config_file

            document = config_file.parse(name, config_file.read(name, fd))
            values = _check(name, document)
            # A file written this very moment may change again without a new time stamp.
            if key == _key(name, posix.fstat(fd)) and time.time_ns() - status.st_ctime_ns > 10**8:
                _remember(cache, key, document)
    except OSError as error:
        raise _unreadable(name, error) from None
    finally:
        posix.close(fd)
    return values


def _unreadable(name: str, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else error
    return ConfigError(f"can't read configuration file {name}: {reason}")


def _key(name: str, status: posix.stat_result) -> list[object]:
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
