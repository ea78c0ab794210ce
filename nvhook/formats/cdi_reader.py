"""CDI specs from text: strict, and with every violation found, not only the first.

A file is JSON or YAML by its extension. Types follow the Go library, which reads both with one YAML
decoder: a number may stand for a text (``name: 0``), null for an absent field.
"""

from __future__ import annotations

from nvhook.errors import FormatError
from nvhook.formats import json_text, yaml_text
from nvhook.formats.cdi_rules import violations
from nvhook.formats.cdi_spec import (
    MAX_SIZE,
    NO_EDITS,
    CdiDevice,
    CdiDeviceNode,
    CdiMount,
    ContainerEdits,
    Hook,
    IntelRdt,
    NetDevice,
    Spec,
)
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Item = TypeVar("Item")

EXTENSIONS = (".json", ".yaml")
_UINT32 = (1 << 32) - 1
_INT64 = (1 << 63) - 1


@record
class Finding:
    """A violation: ``path`` is the place inside the document, empty for the whole file."""

    file: str
    path: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.path, self.reason) if part)


def parse(data: bytes, file: str) -> Spec:
    """Return the spec in a file's bytes; file names it and tells by its extension what it is.

    Raises: FormatError, with the first violation and how many more there are.
    """
    spec, findings = read(data, file)
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise FormatError(f"{findings[0]}{more}", "nvhook cdi validate FILE shows all")
    return spec


def read(data: bytes, file: str) -> tuple[Spec, tuple[Finding, ...]]:
    """Return what can be understood of a spec, and every violation in it."""
    try:
        document = _document(data, file)
    except FormatError as error:
        return Spec("", "", ()), (Finding(file, "", error.message.removeprefix(f"{file} ")),)
    reader = _Reader()
    spec = reader.spec(document)
    # What has the wrong type was reported and read as absent: don't report it as absent, too.
    told = {path for path, _ in reader.findings}
    around = {outer for path in told for outer in _outer(path)}
    found = reader.findings + [
        (path, reason)
        for path, reason in violations(spec)
        if path not in around and told.isdisjoint(_outer(path))
    ]
    return spec, tuple(Finding(file, path, reason) for path, reason in found)


def _outer(path: str) -> list[str]:
    """Return a place and those it is in: of ``a.b[0]`` itself, ``a.b``, ``a`` and the whole."""
    ends = [index for index, character in enumerate(path) if character in ".["]
    return ["", *[path[:end] for end in ends], path]


def _document(data: bytes, file: str) -> object:
    extension = "." + file.rpartition(".")[2]
    if extension not in EXTENSIONS:
        raise FormatError(f"{file} is neither .json nor .yaml by its name")
    if extension == ".json":
        return json_text.parse(data, file, MAX_SIZE)
    return yaml_text.parse(data, file, MAX_SIZE)


class _Reader:
    """Turns a document into values; what has no place or the wrong type becomes a finding."""

    def __init__(self) -> None:
        self.findings: list[tuple[str, str]] = []

    def spec(self, document: object) -> Spec:
        if document is None:
            self._report("", "must be an object")
        known = ("cdiVersion", "kind", "annotations", "devices", "containerEdits")
        fields = self._object(document, "", known)
        return Spec(
            version=self._text(fields, "cdiVersion", ""),
            kind=self._text(fields, "kind", ""),
            annotations=self._annotations(fields, ""),
            devices=self._items(fields, "devices", "", self._device),
            edits=self._edits(fields.get("containerEdits"), "containerEdits"),
        )

    def _device(self, value: object, path: str) -> CdiDevice:
        fields = self._object(value, path, ("name", "annotations", "containerEdits"))
        return CdiDevice(
            name=self._text(fields, "name", path),
            annotations=self._annotations(fields, path),
            edits=self._edits(fields.get("containerEdits"), f"{path}.containerEdits"),
        )

    def _edits(self, value: object, path: str) -> ContainerEdits:
        if value is None:
            return NO_EDITS
        known = (
            "env",
            "deviceNodes",
            "netDevices",
            "hooks",
            "mounts",
            "intelRdt",
            "additionalGids",
        )
        fields = self._object(value, path, known)
        return ContainerEdits(
            env=self._texts(fields, "env", path),
            device_nodes=self._items(fields, "deviceNodes", path, self._node),
            net_devices=self._items(fields, "netDevices", path, self._net_device),
            hooks=self._items(fields, "hooks", path, self._hook),
            mounts=self._items(fields, "mounts", path, self._mount),
            intel_rdt=self._rdt(fields.get("intelRdt"), f"{path}.intelRdt"),
            additional_gids=self._items(fields, "additionalGids", path, self._gid),
        )

    def _node(self, value: object, path: str) -> CdiDeviceNode:
        known = (
            "path",
            "hostPath",
            "type",
            "major",
            "minor",
            "fileMode",
            "permissions",
            "uid",
            "gid",
        )
        fields = self._object(value, path, known)
        return CdiDeviceNode(
            path=self._text(fields, "path", path),
            host_path=self._text(fields, "hostPath", path),
            type=self._text(fields, "type", path),
            major=self._number(fields, "major", path) or 0,
            minor=self._number(fields, "minor", path) or 0,
            file_mode=self._id(fields, "fileMode", path),
            permissions=self._text(fields, "permissions", path),
            uid=self._id(fields, "uid", path),
            gid=self._id(fields, "gid", path),
        )

    def _net_device(self, value: object, path: str) -> NetDevice:
        fields = self._object(value, path, ("hostInterfaceName", "name"))
        return NetDevice(
            self._text(fields, "hostInterfaceName", path), self._text(fields, "name", path)
        )

    def _hook(self, value: object, path: str) -> Hook:
        fields = self._object(value, path, ("hookName", "path", "args", "env", "timeout"))
        return Hook(
            hook_name=self._text(fields, "hookName", path),
            path=self._text(fields, "path", path),
            args=self._texts(fields, "args", path),
            env=self._texts(fields, "env", path),
            timeout=self._number(fields, "timeout", path),
        )

    def _mount(self, value: object, path: str) -> CdiMount:
        fields = self._object(value, path, ("hostPath", "containerPath", "options", "type"))
        return CdiMount(
            host_path=self._text(fields, "hostPath", path),
            container_path=self._text(fields, "containerPath", path),
            options=self._texts(fields, "options", path),
            type=self._text(fields, "type", path),
        )

    def _rdt(self, value: object, path: str) -> IntelRdt | None:
        if value is None:
            return None
        known = ("closID", "l3CacheSchema", "memBwSchema", "schemata", "enableMonitoring")
        fields = self._object(value, path, known)
        listed = fields.get("schemata") is not None
        return IntelRdt(
            clos_id=self._text(fields, "closID", path),
            l3_cache_schema=self._text(fields, "l3CacheSchema", path),
            mem_bw_schema=self._text(fields, "memBwSchema", path),
            schemata=self._texts(fields, "schemata", path) if listed else None,
            enable_monitoring=self._flag(fields, "enableMonitoring", path),
        )

    def _gid(self, value: object, path: str) -> int:
        number = _integer(value)
        if number is None or not 0 <= number <= _UINT32:
            self._report(path, "must be a group number")
            return 0
        return number

    def _annotations(self, fields: dict[str, object], path: str) -> dict[str, str]:
        where = _join(path, "annotations")
        value = fields.get("annotations")
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._report(where, "must be an object")
            return {}
        return {key: self._text(value, key, where) for key in value}

    def _report(self, path: str, reason: str) -> None:
        self.findings.append((path, reason))

    def _object(self, value: object, path: str, known: tuple[str, ...]) -> dict[str, object]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._report(path, "must be an object")
            return {}
        for key in value:
            if key not in known:
                self._report(_join(path, key), f"unknown field; known are {', '.join(known)}")
        return value

    def _items(
        self,
        fields: dict[str, object],
        key: str,
        path: str,
        read_item: Callable[[object, str], Item],
    ) -> tuple[Item, ...]:
        where = _join(path, key)
        value = fields.get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            self._report(where, "must be a list")
            return ()
        return tuple([read_item(item, f"{where}[{index}]") for index, item in enumerate(value)])

    def _texts(self, fields: dict[str, object], key: str, path: str) -> tuple[str, ...]:
        return self._items(fields, key, path, self._string)

    def _text(self, fields: dict[str, object], key: str, path: str) -> str:
        return self._string(fields.get(key), _join(path, key))

    def _string(self, value: object, path: str) -> str:
        if value is None:
            return ""
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            self._report(path, "must be a text")
            return ""
        text = str(value)
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            self._report(path, "has a zero byte or half a surrogate pair")
            return ""
        return text

    def _flag(self, fields: dict[str, object], key: str, path: str) -> bool:
        value = fields.get(key)
        if isinstance(value, yaml_text.Unquoted) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if value is not None and not isinstance(value, bool):
            self._report(_join(path, key), "must be true or false")
            return False
        return bool(value)

    def _number(self, fields: dict[str, object], key: str, path: str) -> int | None:
        value = fields.get(key)
        if value is None:
            return None
        number = _integer(value)
        if number is None or not -_INT64 - 1 <= number <= _INT64:
            self._report(_join(path, key), "must be a whole number")
            return None
        return number

    def _id(self, fields: dict[str, object], key: str, path: str) -> int | None:
        number = self._number(fields, key, path)
        if number is not None and not 0 <= number <= _UINT32:
            self._report(_join(path, key), f"must be 0 to {_UINT32}")
            return None
        return number


def _integer(value: object) -> int | None:
    """Return a JSON number, or an unquoted YAML one: decimal, 0x, 0o, 0b, or octal after a 0."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if not isinstance(value, yaml_text.Unquoted) or not value.isascii() or len(value) > 40:
        return None
    digits = value.lstrip("+-")
    octal = digits[:1] == "0" and digits.isdigit() and len(digits) > 1
    try:
        return int(value, 8) if octal else int(value, 0)
    except ValueError:
        return None


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
