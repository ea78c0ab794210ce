"""The engines' own configuration: is a GPU runtime or hook registered, and is it there?"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from glob import glob

from nvhook.doctor.check import Check, failed, listed, not_applicable, not_checked, ok, warning
from nvhook.engines import containerd, crio, docker, json_edit, podman, toml_edit
from nvhook.errors import ConfigError
from nvhook.host.driver_texts import read_text

Reader = Callable[["Files"], "tuple[Program, ...]"]

LIMIT = 4 << 20  # bytes of a configuration file
PROGRAM_DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)
# Names of GPU runtimes and hooks, nvhook's and those it may be installed as (--compat).
RUNTIMES = frozenset({"nvhook-runtime", "nvidia-container-runtime"})
HOOKS = frozenset({"nvhook", "nvidia-container-runtime-hook", "nvidia-container-toolkit"})
GPUS_HOOK = "nvidia-container-runtime-hook"  # what dockerd looks up for --gpus
K3S_FILE = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
CONTAINERS_CONF = "/etc/containers/containers.conf"


@dataclass(frozen=True, slots=True)
class Program:
    """A program that an engine's file names: what it is there, its path, the file."""

    what: str
    path: str
    file: str


class Files:
    """The files below a machine's root (/ but in tests); ``notes`` collects what engines warn of.

    Reading raises ConfigError for a file that is there and can't be read.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")
        self.notes: list[str] = []

    def text(self, path: str) -> str | None:
        """Return the text of a file, None if it does not exist."""
        text = read_text(self.root + path, LIMIT)
        if text is None and os.path.lexists(self.root + path):
            raise ConfigError(f"{path} can't be read", "run it as root")
        return text

    def matching(self, pattern: str) -> list[str]:
        """Return the paths of files, sorted."""
        return [path.removeprefix(self.root) for path in sorted(glob(self.root + pattern))]

    def program(self, path: str) -> str | None:
        """Return where a program is (a bare name: on the path), None if it can't be executed."""
        places = [path] if "/" in path else [f"{each}/{path}" for each in PROGRAM_DIRECTORIES]
        for place in places:
            full = self.root + place
            if os.path.isfile(full) and os.access(full, os.X_OK):
                return place
        return None


def checks(root: str = "/") -> tuple[Check, ...]:
    """Check every engine that is installed below root."""
    results = []
    for name, daemon, file, reader in (
        ("docker", "dockerd", docker.DEFAULT_FILE, read_docker),
        ("containerd", "containerd", containerd.DEFAULT_FILE, read_containerd),
        ("crio", "crio", crio.MAIN_FILE, read_crio),
        ("podman", "podman", CONTAINERS_CONF, read_podman),
    ):
        files = Files(root)
        there = files.program(daemon) or os.path.lexists(files.root + file)
        results.append(engine(name, files, reader) if there else not_applicable(name, "not here"))
    return tuple(results)


def engine(name: str, files: Files, read: Reader) -> Check:
    """Check one engine's registration."""
    restart = "" if name == "podman" else f" && systemctl restart {name}"
    fix = f"nvhook configure {name}{restart}"
    expected = "a registered GPU runtime or hook that can be executed"
    try:
        programs = read(files)
    except ConfigError as error:
        if os.geteuid() != 0 and error.hint:
            return not_checked(name, error.message)
        return failed(name, error.message, "a configuration that the engine can read", error.hint)
    gone = [each for each in programs if files.program(each.path) is None]
    if gone:
        saw = listed(f"{each.file}: {each.what} is {each.path}, no program" for each in gone)
        return failed(name, saw, expected, f"{fix}; or install what is named there")
    ours = listed(f"{each.what} = {each.path}" for each in programs)
    if files.notes:
        saw = listed([ours, *files.notes] if ours else files.notes)
        return warning(name, saw, expected, f"edit the file; {fix}")
    if not programs:
        return warning(name, "installed, but knows no GPU runtime or hook", expected, fix)
    return ok(name, ours)


def read_docker(files: Files) -> tuple[Program, ...]:
    """Return the GPU runtimes of daemon.json, and the hook of --gpus.

    Raises: ConfigError.
    """
    file = docker.DEFAULT_FILE
    text = files.text(file)
    if files.program("/snap/bin/docker"):
        files.notes.append("docker of a snap does not see the driver's files")
    files.notes += docker.warnings(text, file)
    found = []
    document = _object(json_edit.parse((text or "").removeprefix(docker.BOM), file)) if text else {}
    for name, entry in _object(document.get("runtimes")).items():
        path = _object(entry).get("path")
        if isinstance(path, str) and _is_gpu(name, path):
            found.append(Program(f"runtime {name}", path, file))
    if hook := files.program(GPUS_HOOK):
        found.append(Program("hook of --gpus", hook, hook))
    return tuple(found)


def read_containerd(files: Files) -> tuple[Program, ...]:
    """Return the GPU runtimes of config.toml and of what it imports.

    Raises: ConfigError.
    """
    found: list[Program] = []
    for main in (containerd.DEFAULT_FILE, K3S_FILE):
        text = files.text(main)
        if text is None:
            continue
        if main == containerd.DEFAULT_FILE:
            files.notes += [
                note for note in containerd.warnings(text, main) if "disables the CRI" in note
            ]
        directory = os.path.dirname(main)
        patterns = [os.path.join(directory, each) for each in containerd.imports(text, main)]
        imported = [file for pattern in patterns for file in files.matching(pattern)]
        for file in (main, *imported):
            found += _containerd_runtimes(files.text(file) or "", file)
    return tuple(found)


def _containerd_runtimes(text: str, file: str) -> Iterable[Program]:
    document = toml_edit.parse(text, file)
    for section in toml_edit.table(document, ("plugins",)).values():
        runtimes = toml_edit.table(_object(section), ("containerd", "runtimes"))
        for name, entry in runtimes.items():
            options = toml_edit.table(_object(entry), ("options",))
            path = options.get("BinaryName") or options.get("Runtime")
            if isinstance(path, str) and _is_gpu(name, path):
                yield Program(f"runtime {name}", path, file)


def read_crio(files: Files) -> tuple[Program, ...]:
    """Return the GPU runtimes of CRI-O's files, and the hooks it reads.

    Raises: ConfigError.
    """
    found = []
    directories: list[str] | None = None
    drop_ins = files.matching(os.path.dirname(crio.DEFAULT_FILE) + "/*")
    for file in (crio.MAIN_FILE, *drop_ins):
        document = toml_edit.parse(files.text(file) or "", file)
        runtime = toml_edit.table(document, ("crio", "runtime"))
        for name, entry in toml_edit.table(runtime, ("runtimes",)).items():
            path = _object(entry).get("runtime_path")
            if isinstance(path, str) and path and _is_gpu(name, path):
                found.append(Program(f"runtime {name}", path, file))
        listed_directories = runtime.get("hooks_dir")
        if isinstance(listed_directories, list):
            directories = [str(each).rstrip("/") for each in listed_directories]
    hooks = _hooks(files)
    unread = [
        hook.file
        for hook in hooks
        if directories is not None and os.path.dirname(hook.file) not in directories
    ]
    if unread and not found:
        files.notes.append(f"hooks_dir does not name the directory of {listed(unread)}")
    return (*found, *[hook for hook in hooks if hook.file not in unread])


def read_podman(files: Files) -> tuple[Program, ...]:
    """Return the GPU runtimes of containers.conf, and the hooks.

    Raises: ConfigError.
    """
    found = []
    drop_ins = files.matching(os.path.dirname(podman.RUNTIME_FILE) + "/*.conf")
    for file in ("/usr/share/containers/containers.conf", CONTAINERS_CONF, *drop_ins):
        document = toml_edit.parse(files.text(file) or "", file)
        for name, paths in toml_edit.table(document, ("engine", "runtimes")).items():
            candidates = [str(path) for path in paths] if isinstance(paths, list) else []
            if not any(_is_gpu(name, path) for path in candidates):
                continue
            # podman takes the first that exists.
            there = [path for path in candidates if files.program(path)]
            found.append(Program(f"runtime {name}", (there or candidates)[0], file))
    hooks = _hooks(files)
    if len(hooks) > 1:
        files.notes.append(f"{listed(hook.file for hook in hooks)} would inject GPUs twice")
    return (*found, *hooks)


def _hooks(files: Files) -> list[Program]:
    """Return the GPU hooks of the hooks.d directories, as podman and CRI-O read them."""
    found = []
    for directory in podman.HOOK_DIRECTORIES:
        for file in files.matching(f"{directory}/*.json"):
            document = _object(json_edit.parse(files.text(file) or "", file))
            hook = document.get("hook")
            path = _object(hook).get("path", hook)
            if isinstance(path, str) and path.rpartition("/")[2] in HOOKS:
                found.append(Program("hook", path, file))
    return found


def _is_gpu(name: str, path: str) -> bool:
    return path.rpartition("/")[2] in RUNTIMES or name.startswith(("nvidia", "nvhook"))


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
