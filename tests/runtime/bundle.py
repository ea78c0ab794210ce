"""OCI bundles written by hand: a root directory, a config.json, and our hook in it."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.runtime.cgroup_view import CGROUP_PREFIX, View
from tests.runtime.simulated import Driver

APPLETS = (
    "sh",
    "cat",
    "ls",
    "mknod",
    "sleep",
    "mount",
    "umount",
    "echo",
    "stat",
    "wc",
    "id",
    "grep",
)
SEARCH_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
CAPABILITIES = ("CAP_MKNOD", "CAP_SYS_CHROOT", "CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER")
MOUNTS = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {
        "destination": "/dev",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
)
# What runtimes make in /dev, before any hook, where it is not a tmpfs.
RUNTIME_NODES = frozenset(
    [
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "console",
        "ptmx",
        "pts",
        "shm",
        "mqueue",
        "fd",
        "core",
        "stdin",
        "stdout",
        "stderr",
    ]
)
NAMESPACES = ("pid", "mount", "ipc", "uts")
MAPPED = 100_000


class Bundle:
    """One container to be. ``config`` is config.json and may be changed before the run."""

    def __init__(self, directory: Path, view: View, driver: Driver, probe: Path) -> None:
        self.directory = directory
        self.view = view
        self.driver = driver
        self.name = f"{CGROUP_PREFIX}-{directory.parent.name}-{directory.name}"
        self.root = directory / "rootfs"
        self.log = directory / "nvhook.log"
        self.settings = driver.configuration(directory / "nvhook.toml", self.log)
        self.config = self._config()
        self._probe = probe
        self._overlay: Path | None = None

    # ---- the root directory ----

    def use_busybox(self) -> None:
        """Make a root with a static busybox, the probe, and nodes of every simulated device."""
        make_busybox(self.root)
        self._furnish(self.root)

    def use_overlay(self, lower: Path) -> None:
        """Make a root from a read-only image."""
        for name in ("upper", "work", "rootfs"):
            (self.directory / name).mkdir()
        self._overlay = lower
        self.mount_overlay()
        self._furnish(self.view.path(self.root))

    def mount_overlay(self) -> None:
        """Mount the root that is made from an image."""
        layers = f"lowerdir={self._overlay}"
        layers += f",upperdir={self.directory}/upper,workdir={self.directory}/work"
        self.view.run("mount", "-t", "overlay", "overlay", "-o", layers, self.root)

    def unmount_overlay(self) -> None:
        """Unmount it, if it is mounted."""
        if any(f" {self.root} " in line for line in self.view.mounts()):
            self.view.run("umount", self.root)

    def furnish_plainly(self, owner: int) -> None:
        """Make a root of nothing but busybox and the like where there is none."""
        self.use_busybox()
        if owner:
            self._give(self.root, owner)

    def _furnish(self, root: Path) -> None:
        shutil.copy(self._probe, root / "probe")
        (root / "nodes").mkdir()
        for name, (major, minor) in self.driver.numbers().items():
            node = root / "nodes" / flat(name)
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            node.chmod(0o666)

    @property
    def seen_root(self) -> Path:
        """The root directory as the tests can read and change it."""
        return self.view.path(self.root) if self._overlay else self.root

    def put(self, path: str, content: bytes = b"", mode: int = 0o644) -> Path:
        """Write a file of the image."""
        target = self.seen_root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
        return target

    def link(self, path: str, target: str) -> Path:
        """Make a symbolic link of the image."""
        link = self.seen_root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
        return link

    def tree(self) -> dict[str, tuple[int, int, str]]:
        """Return everything in the root: mode, size and link target by path."""
        found = {}
        for directory, names, files in os.walk(self.seen_root):
            for name in names + files:
                path = os.path.join(directory, name)
                if directory == str(self.seen_root / "dev") and name in RUNTIME_NODES:
                    continue
                status = os.lstat(path)
                target = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""
                size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
                found[os.path.relpath(path, self.seen_root)] = (status.st_mode, size, target)
        return found

    def remove(self) -> None:
        """Take the root away."""
        if self._overlay:
            self.unmount_overlay()
        for name in ("rootfs", "upper", "work"):
            if (self.directory / name).exists():
                shutil.rmtree(self.directory / name)  # noqa: TID251 - made by this class, on the host

    def show_proc_driver(self) -> Path:
        """Let the container see a copy of the simulated /proc/driver; return where that is.

        A hook before ours binds it where a driver's own would be.
        """
        source = self.directory / "proc-driver"
        shutil.copytree(self.driver.directory / "proc/driver", source)
        target = self.root / "proc/driver"
        mount = f"exec nsenter --mount=/proc/$pid/ns/mnt mount --bind {source} {target}"
        hooks = self.config.setdefault("hooks", {}).setdefault("prestart", [])
        hooks.insert(0, self.shell_hook(mount))
        return source

    # ---- config.json ----

    def _config(self) -> dict[str, Any]:
        sets = {name: list(CAPABILITIES) for name in ("bounding", "effective", "permitted")}
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": ["/probe"],
                "env": [SEARCH_PATH],
                "cwd": "/",
                "capabilities": sets,
            },
            "root": {"path": "rootfs", "readonly": False},
            "mounts": [dict(mount) for mount in MOUNTS],
            "hooks": {"prestart": [self.hook()]},
            "linux": {
                "cgroupsPath": f"/{self.name}",
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
                "namespaces": [{"type": kind} for kind in NAMESPACES],
            },
        }

    def hook(self, stage: str = "prestart", *settings: str) -> dict[str, Any]:
        """Return our hook's entry."""
        arguments = ["nvhook", "hook", stage, "--config", str(self.settings), *settings]
        return {"path": str(self.driver.launcher), "args": arguments, "env": [SEARCH_PATH]}

    def shell_hook(self, script: str) -> dict[str, Any]:
        """Return a hook that runs a shell script, with the container's pid in $pid."""
        read = "pid=$(sed -n 's/.*\"pid\" *: *\\([0-9]*\\).*/\\1/p'); "
        return {"path": "/bin/sh", "args": ["sh", "-c", read + script], "env": [SEARCH_PATH]}

    def ask(self, *variables: str) -> None:
        """Add entries to the container's environment."""
        self.config["process"]["env"] += variables

    def args(self, *words: str) -> None:
        """Set what the container runs."""
        self.config["process"]["args"] = list(words)

    def use_user_namespace(self, owned: bool) -> None:
        """Map the container's root to an ordinary user; ``owned``: the image is that user's."""
        self.config["linux"]["namespaces"].append({"type": "user"})
        mapping = [{"containerID": 0, "hostID": MAPPED, "size": 65536}]
        self.config["linux"] |= {"uidMappings": mapping, "gidMappings": mapping}
        if owned:
            self._give(self.seen_root, MAPPED)

    @staticmethod
    def _give(root: Path, owner: int) -> None:
        for directory, names, files in os.walk(root):
            for name in (".", *names, *files):
                os.chown(os.path.join(directory, name), owner, owner, follow_symlinks=False)

    def write(self) -> None:
        """Write config.json."""
        (self.directory / "config.json").write_text(json.dumps(self.config))

    def call_hook(self, pid: int) -> subprocess.CompletedProcess[str]:
        """Call the hook by itself, with a state that names this bundle and some process."""
        state = {"ociVersion": "1.0.2", "id": self.name, "status": "creating", "pid": pid}
        return self.call_hook_with(json.dumps(state | {"bundle": str(self.directory)}))

    def call_hook_with(self, text: str, limit: float = 5) -> subprocess.CompletedProcess[str]:
        """Call the hook by itself with some text for a state; limit: seconds until it hangs."""
        command = [str(self.driver.launcher), *self.hook()["args"][1:]]
        environment = dict(entry.split("=", 1) for entry in self.hook()["env"])
        command = ["env", "-i", *(f"{key}={value}" for key, value in environment.items()), *command]
        return self.view.run(*command, check=False, stdin=text, timeout=limit)

    def logged(self) -> str:
        """Return what nvhook logged for this container."""
        return self.log.read_text() if self.log.exists() else ""


def make_busybox(root: Path) -> None:
    """Make a root with a static busybox."""
    for name in ("bin", "proc", "dev", "etc", "tmp", "sys"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    for name in APPLETS:
        (root / "bin" / name).symlink_to("busybox")


def flat(name: str) -> str:
    """Return a node's name without a directory."""
    return name.replace("/", "-")


def asks(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return the probe's arguments for several commands."""
    return [word for command in commands for word in command]
