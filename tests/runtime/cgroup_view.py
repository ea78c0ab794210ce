"""Mount namespaces that play the host: their mount table is ours alone, so every leak shows.

Each is a keeper process in a private copy of the machine's mounts, made shared inside as systemd
leaves a real host. It ends when its standard input does, even if the tests are killed.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

# What each view shows at /sys/fs/cgroup. crun refuses v1 beside a cgroup2 that has controllers, and
# without one still makes directories where it was: on a tmpfs of ours, not on the machine's.
WITHOUT_V2 = "umount $each && mount -t tmpfs tmpfs $each || exit 1"
PREPARE = {
    "hybrid": "true",
    "v1": f"for each in $(findmnt -nl -t cgroup2 -o TARGET); do {WITHOUT_V2}; done",
    "v2": "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup",
}
# What nvhook remembers: nothing that others on this machine have left, and nothing for them.
OWN_STATE = "mkdir -p -m 755 /run/nvhook && mount -t tmpfs -o mode=755 tmpfs /run/nvhook"
CGROUP_PREFIX = f"nvhook-runtime-{os.getpid()}"


class View:
    """One such namespace; commands run inside of it."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.prefix = ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--wd=."]

    def run(
        self, *command: str | Path, check: bool = True, stdin: str = "", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with pipes for all three standard streams.

        Never /dev/null: crun 1.8.1 gives its stdio to the container's root (fchown).
        """
        return subprocess.run(
            [*self.prefix, *map(str, command)],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            check=check,
            timeout=timeout,
        )

    def mounts(self) -> list[str]:
        """Return the namespace's mount table."""
        return Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()

    def path(self, path: Path) -> Path:
        """Return a path that shows the tests what is mounted in this namespace."""
        return Path(f"/proc/{self.pid}/root{path}")

    def cgroups(self) -> list[str]:
        """Return the cgroup directories of these tests that exist."""
        found = Path(f"/proc/{self.pid}/root/sys/fs/cgroup")
        names = (f"{depth}{CGROUP_PREFIX}*/cgroup.c*" for depth in ("", "*/"))
        return sorted({str(path.parent) for name in names for path in found.glob(name)})


Kept = TypeVar("Kept", bound=View)


def open_view(name: str) -> Iterator[View]:
    """Yield a view and end it afterwards."""
    yield from keep(View, name, [], f"{OWN_STATE} && {{ {PREPARE[name]}; }}")


def keep(
    kind: Callable[[str, int], Kept], name: str, namespaces: Sequence[str], prepare: str
) -> Iterator[Kept]:
    """Yield a view with more namespaces (options of unshare) and a script that furnishes it."""
    # Not "exec cat": a shell that is the first process of a PID namespace has orphans to wait for.
    script = f"mount --make-rshared / && {prepare} && echo ready && cat; exit"
    command = ["unshare", "--mount", "--propagation", "private", *namespaces, "sh", "-c", script]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            assert keeper.stdout.readline() == "ready\n", f"no {name}"
            yield kind(name, keeper.pid)
        finally:
            keeper.stdin.close()
            keeper.wait(timeout=30)
