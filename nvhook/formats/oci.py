"""What an OCI runtime tells a hook: the state on stdin, and the bundle's config.json.

Unknown fields are ignored, known ones must have the right type. Source: OCI runtime specification
1.0-1.2, and what docker, containerd, podman, runc and crun write (tests/data/oci).
"""

from __future__ import annotations

from nvhook.errors import FormatError
from nvhook.formats import json_text
from nvhook.record import EMPTY, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_STATE = 1 << 20
MAX_CONFIG = 16 << 20

# Of variables, annotations and mounts, only these can decide anything: the launcher knows a
# container again by a digest of them (_native/request.c).
OBSERVED_VARIABLES = ("NVIDIA_", "CUDA_VERSION", "DOCKER_RESOURCE")  # what names begin with
OBSERVED_ANNOTATIONS = "cdi.k8s.io/"  # what keys begin with
OBSERVED_MOUNTS = "/var/run/nvidia-container-devices"  # in destinations


@record
class State:
    """The state of a container, as a hook gets it.

    ``pid`` is the container's first process, 0 where there is none; ``bundle`` is absolute;
    ``status`` is ``creating`` (runc) or ``created`` (crun) at prestart, empty from old engines;
    ``root`` is crun's copy of config.json's root.path, otherwise empty.
    """

    id: str
    pid: int
    bundle: str
    status: str = ""
    annotations: Mapping[str, str] = EMPTY
    root: str = ""


@record
class ContainerConfig:
    """The part of config.json that decides about GPUs.

    ``env`` has the last value of each variable, ordered by the entry that won. ``root_path`` is
    absolute but not resolved: it may contain symbolic links. ``privileged`` means CAP_SYS_ADMIN in
    the bounding set, whatever gave it. ``mounts`` are (source, destination) pairs, ``devices`` the
    (path, major, minor) of character devices. Variables, annotations and mounts that are not
    observed are left out by container_of, so that nothing can come to depend on them.
    """

    env: Mapping[str, str]
    root_path: str
    privileged: bool = False
    mounts: tuple[tuple[str, str], ...] = ()
    user_namespace: bool = False
    annotations: Mapping[str, str] = EMPTY
    rootfs_propagation: str = ""
    devices: tuple[tuple[str, int, int], ...] = ()


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
        annotations={
            key: value
            for key, value in _annotations(document, what).items()
            if key.startswith(OBSERVED_ANNOTATIONS)
        },
        rootfs_propagation=_text(linux, "rootfsPropagation", "config.json: linux"),
        devices=_devices(linux),
    )


def _environment(process: dict[str, object]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for entry in _list(process, "env", "config.json: process"):
        if not isinstance(entry, str):
            raise FormatError("config.json: process.env has an entry that is not a string")
        name, equals, value = entry.partition("=")
        if equals and name.startswith(OBSERVED_VARIABLES):
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
        source = _text(mount, "source", "config.json: a mount")
        if OBSERVED_MOUNTS in destination:
            pairs.append((source, destination))
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
