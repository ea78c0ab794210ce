"""systemd as PID 1 of namespaces of its own, on cgroup v2: what it does to its units' cgroups."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.runtime.cgroup_view import View

# A target that starts nothing.
TARGET = "[Unit]\nDescription=nothing\nDefaultDependencies=no\n"
START = """
mount --make-rprivate / && umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system /run/lock
mount -t tmpfs tmpfs /etc/systemd/system && printf '%s' "$1" >/etc/systemd/system/bare.target
container=other exec /lib/systemd/systemd --system --unit=bare.target --show-status=no
"""
JOIN = 'echo 0 >"$0"/cgroup.procs && exec "$@"'
CGROUP2 = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")


class SystemdView(View):
    """The namespaces; commands run inside of them, in a cgroup that is no unit."""

    def __init__(self, pid: int, cgroup: Path) -> None:
        super().__init__("systemd", pid)
        cgroup.mkdir()
        names = {"mount": "mnt", "pid": "pid", "cgroup": "cgroup"}
        namespaces = [f"--{name}=/proc/{pid}/ns/{file}" for name, file in names.items()]
        self.prefix = ["sh", "-c", JOIN, str(cgroup), "nsenter", *namespaces, "--wd=."]


def open_systemd() -> Iterator[SystemdView]:
    """Yield the view and end it afterwards."""
    mounted = next(path for path in CGROUP2 if Path(path, "cgroup.subtree_control").exists())
    top = Path(mounted, f"nvhook-systemd-{os.getpid()}")
    top.mkdir()
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts"]
    inner = [*unshare, "--ipc", "--cgroup", "sh", "-ec", START, "sh", TARGET]
    with subprocess.Popen(
        ["sh", "-c", JOIN, top, *inner], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as keeper:
        systemd = _started(keeper.pid)
        try:
            yield SystemdView(systemd, top / "tests")
        finally:
            os.kill(systemd, signal.SIGKILL)  # re-executed, it would outlive its parent
            keeper.wait(timeout=30)
            _remove(top)


def _started(parent: int) -> int:
    """Wait until systemd answers; return its pid."""
    for _ in range(200):
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/root/run/systemd/private").exists():
            return int(children[0])
        time.sleep(0.05)
    raise AssertionError("systemd did not start")


def _remove(top: Path) -> None:
    """Remove the cgroups; its processes may still be ending."""
    for _ in range(100):
        for directory, _, _ in os.walk(top, topdown=False):
            if not Path(directory, "cgroup.procs").read_text():
                Path(directory).rmdir()
        if not top.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{top} can't be removed")
