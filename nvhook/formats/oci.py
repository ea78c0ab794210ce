"""What an OCI runtime tells a hook: the state on stdin, and the bundle's config.json.

Unknown fields are ignored, known ones must have the right type. Source: OCI runtime specification
1.0-1.2, and what docker, containerd, podman, runc and crun write (tests/data/oci).
"""

from nvhook.errors import FormatError
from nvhook.formats import json_text
from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MAX_STATE = 1 << 20
MAX_CONFIG = 16 << 20

# Of variables, annotations and mounts, only these can decide anything: the launcher knows a
# container again by a digest of them (_native/request.c).
OBSERVED_VARIABLES = ("NVIDIA_", "CUDA_VERSION", "DOCKER_RESOURCE")  # what names begin with
OBSERVED_ANNOTATIONS = "cdi.k8s.io/"  # what keys begin with
OBSERVED_MOUNTS = "/var/run/nvidia-container-devices"  # in destinations


class State(Record):
    """The state of a container, as a hook gets it.

    ``pid`` is the container's first process, 0 where there is none; ``bundle`` is absolute;
    ``status`` is ``creating`` (runc) or ``created`` (crun) at prestart, empty from old engines;
    ``root`` is crun's copy of config.json's root.path, otherwise empty.
    """

    __slots__ = ("annotations", "bundle", "id", "pid", "root", "status")

    def __init__(
        self,
        id: str,  # noqa: A002 - the name the specification uses
        pid: int,
        bundle: str,
        status: str = "",
        annotations: dict[str, str] | None = None,
        root: str = "",
    ) -> None:
        self.id: Final = id
        self.pid: Final = pid
        self.bundle: Final = bundle
        self.status: Final = status
        self.annotations: Final = annotations or {}
        self.root: Final = root


class ContainerConfig(Record):
    """The part of config.json that decides about GPUs.

    ``env`` has the last value of each variable, ordered by the entry that won. ``root_path`` is
    absolute but not resolved: it may contain symbolic links. ``privileged`` means CAP_SYS_ADMIN in
    the bounding set, whatever gave it. ``mounts`` are (source, destination) pairs, ``devices`` the
    (path, major, minor) of character devices. Variables, annotations and mounts that are not
    observed are left out here, whoever makes it, so that nothing can come to depend on them.
    """

    __slots__ = (
        "annotations",
        "devices",
        "env",
        "mounts",
        "privileged",
        "root_path",
        "rootfs_propagation",
        "user_namespace",
    )

    def __init__(
        self,
        env: dict[str, str],
        root_path: str,
        privileged: bool = False,
        mounts: tuple[tuple[str, str], ...] = (),
        user_namespace: bool = False,
        annotations: dict[str, str] | None = None,
        rootfs_propagation: str = "",
        devices: tuple[tuple[str, int, int], ...] = (),
    ) -> None:
        self.env: Final = {
            name: value for name, value in env.items() if name.startswith(OBSERVED_VARIABLES)
        }
        self.root_path: Final = root_path
        self.privileged: Final = privileged
        self.mounts: Final = tuple([pair for pair in mounts if OBSERVED_MOUNTS in pair[1]])
        self.user_namespace: Final = user_namespace
        self.annotations: Final = {
            key: value
            for key, value in (annotations or {}).items()
            if key.startswith(OBSERVED_ANNOTATIONS)
        }
        self.rootfs_propagation: Final = rootfs_propagation
        self.devices: Final = devices


def parse_state(data: bytes, need_pid: bool = True) -> State:
    """Return the state a runtime wrote on a hook's stdin.

    Raises: FormatError, also for a pid of 0 or 1 when need_pid: createContainer and later stages
    see those, where /proc/1 is the host's init.
    """
    document = _object(json_text.parse(data, "state", MAX_STATE), "state")
    what = "state"
    pid = document.get("pid")
    pid = 0 if pid is None else pid
    if isinstance(pid, bool) or not isinstance(pid, int) or not 0 <= pid < 1 << 31:
        raise FormatError("state: pid is not a process number")
    if need_pid and pid <= 1:
        raise FormatError(
            f"state has {f'pid {pid}' if pid else 'no pid'}: the container is not being created",
            "run nvhook as a prestart or createRuntime hook only",
        )
    bundle = _text(document, "bundle", what) or _text(document, "bundlePath", what)  # old docker
    if not bundle:
        raise FormatError("state has no bundle")
    if not bundle.startswith("/"):
        raise FormatError(f"state: bundle {bundle!r} is not an absolute path")
    identifier = _text(document, "id", what)
    if not identifier:
        raise FormatError("state has no id")
    return State(
        id=identifier,
        pid=pid,
        bundle=_path(bundle, "state: bundle"),
        status=_text(document, "status", what),
        annotations=_annotations(document, what),
        root=_text(document, "root", what),
    )


def parse_config(data: bytes, bundle: str) -> ContainerConfig:
    """Return what matters of a bundle's config.json.

    bundle, absolute, completes a relative root.path.

    Raises: FormatError.
    """
    return container_of(parse_document(data), bundle)


def parse_document(data: bytes) -> dict[str, object]:
    """Return the object a config.json holds.

    Raises: FormatError.
    """
    return _object(json_text.parse(data, "config.json", MAX_CONFIG), "config.json")


def container_of(document: dict[str, object], bundle: str) -> ContainerConfig:
    """Return what matters of a config.json that is parsed; bundle completes a relative root.path.

    Raises: FormatError.
    """
    what = "config.json"
    for required in ("process", "root"):
        if document.get(required) is None:
            raise FormatError(f"config.json has no {required}")
    process = _member(document, "process", what)
    root = _member(document, "root", what)
    root_path = _text(root, "path", "config.json: root")
    if not root_path:
        raise FormatError("config.json has no root.path")
    if not root_path.startswith("/"):
        root_path = f"{bundle}/{root_path}"
    linux = _member(document, "linux", what)
    namespaces = _list(linux, "namespaces", "config.json: linux")
    return ContainerConfig(
        env=_environment(process),
        root_path=_path(root_path, "config.json: root.path"),
        privileged="CAP_SYS_ADMIN" in _bounding(process),
        mounts=_mounts(document),
        user_namespace=any(
            _object(item, "config.json: a namespace").get("type") == "user" for item in namespaces
        ),
        annotations=_annotations(document, what),
        rootfs_propagation=_text(linux, "rootfsPropagation", "config.json: linux"),
        devices=_devices(linux),
    )


def _environment(process: dict[str, object]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for entry in _list(process, "env", "config.json: process"):
        if not isinstance(entry, str):
            raise FormatError("config.json: process.env has an entry that is not a string")
        name, equals, value = entry.partition("=")
        if equals:
            variables.pop(name, None)  # docker --gpus appends: the last one wins and moves back
            variables[name] = value
    return variables


def _bounding(process: dict[str, object]) -> list[object]:
    capabilities = process.get("capabilities")
    if capabilities is None:
        return []
    if isinstance(capabilities, list):  # the form before OCI 1.0.0-rc5
        return capabilities
    what = "config.json: process.capabilities"
    return _list(_object(capabilities, what), "bounding", what)


def _mounts(document: dict[str, object]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in _list(document, "mounts", "config.json"):
        mount = _object(item, "config.json: a mount")
        destination = _text(mount, "destination", "config.json: a mount")
        if not destination:
            raise FormatError("config.json has a mount without destination")
        pairs.append((_text(mount, "source", "config.json: a mount"), destination))
    return tuple(pairs)


def _devices(linux: dict[str, object]) -> tuple[tuple[str, int, int], ...]:
    what = "config.json: a device"
    devices = []
    for item in _list(linux, "devices", "config.json: linux"):
        device = _object(item, what)
        if _text(device, "type", what) in {"c", "u"}:
            major, minor = device.get("major", 0), device.get("minor", 0)
            if not isinstance(major, int) or not isinstance(minor, int):
                raise FormatError(f"{what} has no number")
            devices.append((_text(device, "path", what), major, minor))
    return tuple(devices)


def _annotations(document: dict[str, object], what: str) -> dict[str, str]:
    annotations = _member(document, "annotations", what)
    return {key: _text(annotations, key, f"{what}: annotations") for key in annotations}


def _path(path: str, what: str) -> str:
    if "\0" in path:
        raise FormatError(f"{what} has a zero byte")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    return "/" + "/".join(parts)  # ".." stays: only the kernel knows where it leads


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FormatError(f"{what} is not an object")
    return value


def _member(document: dict[str, object], key: str, what: str) -> dict[str, object]:
    value = document.get(key)
    return {} if value is None else _object(value, f"{what}: {key}")


def _list(document: dict[str, object], key: str, what: str) -> list[object]:
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise FormatError(f"{what}.{key} is not a list")
    return value


def _text(document: dict[str, object], key: str, what: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise FormatError(f"{what}: {key} is not a string")
    return value
