"""containerd's config.toml, versions 1 to 4, edited in place.

Not through a drop-in: containerd before 2.1 replaces the whole CRI section by that of an imported
file (containerd#5837), so a drop-in would have to repeat the section and would hide later changes
of it; and it needs a change of the main file (``imports``) anyway. The main file is always right.
"""

from nvhook.engines import toml_edit
from nvhook.engines.registration import Registration
from nvhook.engines.toml_edit import Assignment, Keys
from nvhook.errors import ConfigError

Table = dict[str, object]

DEFAULT_FILE = "/etc/containerd/config.toml"
NEWEST_VERSION = 4
RUNC_TYPE = "io.containerd.runc.v2"
_RUNC_TYPES = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")
CDI_ANNOTATIONS = "cdi.k8s.io/*"
# The last one is where /run/cdi is, too.
CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")

_V1, _V2, _V3 = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
_K3S_HINT = (
    "k3s finds nvidia-container-runtime by itself; or append the runtime to config-v3.toml.tmpl"
    ' below {{ template "base" . }}'
)


def register(text: str | None, wanted: Registration, file: str) -> str:
    """Return the text with the runtime; a text that has it already is returned as it is.

    What an earlier registration has set (default, CDI) stays set. A new file is of version 2, which
    containerd 1.3 and everything newer reads.

    Raises: ConfigError.
    """
    _refuse_templates(text, file)
    earlier = toml_edit.parse(text or "", file)
    base = None if text is None else toml_edit.unregister(text)
    document = toml_edit.parse(base or "", file)
    assignments: list[Assignment] = []
    if not document:
        assignments.append((("version",), 2))
        document = {"version": 2}
    cri = ("plugins", _section(document, file))
    default = (*cri, "containerd", "default_runtime_name")
    assignments += _cdi(document, cri, wanted.cdi or _had_cdi(earlier, document, cri))
    if wanted.set_as_default or toml_edit.lookup(earlier, default) == wanted.runtime_name:
        assignments.append((default, wanted.runtime_name))
    assignments += _runtime(document, cri, wanted, file)
    return toml_edit.assign(base, assignments, file)


def unregister(text: str, file: str) -> str | None:
    """Return the text from before, None for a file that was not there; the same text if nothing is.

    Raises: ConfigError.
    """
    _refuse_templates(text, file)
    toml_edit.parse(text, file)
    return toml_edit.unregister(text)


def imports(text: str, file: str) -> list[str]:
    """Return the patterns of the files that a file imports, relative to its directory.

    Raises: ConfigError.
    """
    patterns = toml_edit.parse(text, file).get("imports")
    return list(map(str, patterns)) if isinstance(patterns, list) else []


def warnings(text: str, file: str) -> list[str]:
    """Return what keeps containerd from using what the file says."""
    document = toml_edit.parse(text, file)
    found = []
    disabled = document.get("disabled_plugins")
    if isinstance(disabled, list) and {_V1, _V2, _V3} & {str(item) for item in disabled}:
        found.append(f"{file} disables the CRI plugin: runtimes are not used until it is enabled")
    if document.get("version", 1) == 1:
        found.append(f"{file} is of version 1, which containerd 2 may ignore")
    runc = ("plugins", _section(document, file), "containerd", "runtimes", "runc", "options")
    binary = toml_edit.lookup(document, (*runc, "BinaryName"))
    if isinstance(binary, str) and binary.startswith("/"):
        found.append(f"{file} has runc at {binary}: nvhook-runtime calls its own (NVHOOK_RUNTIME)")
    return found


def import_warnings(text: str, file: str, wanted: Registration) -> list[str]:
    """Return how an imported file changes what its main file says.

    Raises: ConfigError.
    """
    document = toml_edit.parse(text, file)
    sections = [name for name in (_V1, _V2, _V3) if toml_edit.table(document, ("plugins", name))]
    for name in sections:
        cri = ("plugins", name, "containerd")
        entry = toml_edit.lookup(document, (*cri, "runtimes", wanted.runtime_name))
        default = toml_edit.lookup(document, (*cri, "default_runtime_name"))
        if entry is not None:
            return [f"{file} is imported later and has its own runtime {wanted.runtime_name}"]
        if default not in {None, wanted.runtime_name} and wanted.set_as_default:
            return [f"{file} is imported later and sets the default runtime {default}"]
    if sections:
        return [f"{file} is imported: containerd before 2.1 takes the CRI section from there alone"]
    return []


def _refuse_templates(text: str | None, file: str) -> None:
    """Raise ConfigError for what k3s and RKE2 make the file from, or make from it."""
    lines = (text or "").split("\n")
    for number, line in enumerate(lines, 1):
        where = f"{file} line {number}"
        if line.startswith("# File generated by"):
            raise ConfigError(f"{where}: k3s writes this file anew at each start", _K3S_HINT)
        is_template = "{{" in line and not line.startswith("#")
        if is_template and (file.endswith(".tmpl") or not _is_toml(text or "")):
            raise ConfigError(f"{where}: a Go template of k3s, not TOML", _K3S_HINT)


def _is_toml(text: str) -> bool:
    try:
        toml_edit.parse(text, "")
    except ConfigError:
        return False
    return True


def _section(document: Table, file: str) -> str:
    """Return the name of the CRI runtime plugin's section.

    From version 3 on there is one name; ``grpc.v1.cri`` is another plugin there. containerd 2 reads
    the new name in older versions, too, and then takes its runtimes from that section alone.
    """
    version = document.get("version", 1)
    if not isinstance(version, int) or not 1 <= version <= NEWEST_VERSION:
        raise ConfigError(
            f"{file}: version {version} is not known", f"nvhook knows 1 to {NEWEST_VERSION}"
        )
    if version >= 3:
        return _V3
    plugins = toml_edit.table(document, ("plugins",))
    for name in (_V3, _V2):
        if toml_edit.table(document, ("plugins", name, "containerd")):
            return name
    for name in (_V2, _V3):
        if name in plugins:
            return name
    return _V2 if version == 2 else _V1


def _runtime(document: Table, cri: Keys, wanted: Registration, file: str) -> list[Assignment]:
    runtimes = (*cri, "containerd", "runtimes")
    keys = (*runtimes, wanted.runtime_name)
    assignments: list[Assignment] = []
    if not toml_edit.table(document, runtimes):
        # containerd 1.x has runc built in only as long as the file names no runtime at all.
        assignments.append(((*runtimes, "runc", "runtime_type"), RUNC_TYPE))
    entry = toml_edit.table(document, keys)
    kind = str(entry.get("runtime_type", RUNC_TYPE))
    if not kind.startswith(_RUNC_TYPES):
        raise ConfigError(
            f"{file}: the runtime {wanted.runtime_name} is of another type, {kind}",
            "choose another --runtime-name",
        )
    model = _model(document, cri)
    settings = dict(entry) if entry else dict(model)
    options = {**_settings(model.get("options")), **_settings(entry.get("options"))}
    annotations = settings.get("container_annotations")
    annotations = list(annotations) if isinstance(annotations, list) else []
    if CDI_ANNOTATIONS not in annotations:
        annotations.append(CDI_ANNOTATIONS)
    settings.update(runtime_type=RUNC_TYPE, container_annotations=annotations)
    settings.pop("options", None)
    options["BinaryName"] = wanted.runtime_path
    for key, value in _settings(settings).items():
        assignments.append(((*keys, key), value))
    for key, value in options.items():
        assignments.append(((*keys, "options", key), value))
    return assignments


def _model(document: Table, cri: Keys) -> Table:
    """Return the entry to take settings from: runc's, or the default one's if that is runc, too.

    Without runc's SystemdCgroup a container would get its cgroup from the wrong driver.
    """
    containerd = (*cri, "containerd")
    default = toml_edit.lookup(document, (*containerd, "default_runtime_name"))
    for name in ("runc", default):
        entry = toml_edit.table(document, (*containerd, "runtimes", str(name)))
        if entry.get("runtime_type") == RUNC_TYPE:
            return entry
    return {}


def _settings(entry: object) -> Table:
    """Return the settings of an entry but for those at the zero value, which say nothing."""
    return {key: value for key, value in entry.items() if value} if isinstance(entry, dict) else {}


def _cdi(document: Table, cri: Keys, wanted: bool) -> list[Assignment]:
    if not wanted:
        return []
    assignments: list[Assignment] = []
    enabled = toml_edit.lookup(document, (*cri, "enable_cdi"))
    # On by default since 2.0, and without a switch since 2.2.
    if cri[1] != _V3 or enabled is False:
        assignments.append(((*cri, "enable_cdi"), True))
    directories = toml_edit.lookup(document, (*cri, "cdi_spec_dirs"))
    if isinstance(directories, list):
        there = {str(item).rstrip("/").replace("/var/run/", "/run/") for item in directories}
        more = [item for item in CDI_DIRECTORIES if item.replace("/var/run/", "/run/") not in there]
        assignments.append(((*cri, "cdi_spec_dirs"), [*directories, *more]))
    return assignments


def _had_cdi(earlier: Table, document: Table, cri: Keys) -> bool:
    """Say whether nvhook's own lines have switched CDI on before."""
    return any(
        toml_edit.lookup(earlier, (*cri, key)) != toml_edit.lookup(document, (*cri, key))
        for key in ("enable_cdi", "cdi_spec_dirs")
    )
