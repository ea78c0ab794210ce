"""Where the plugin's sockets are in the kubelet's directory.

A starting kubelet unlinks every socket it finds there, but goes into no directory. So the sockets
are bound in a directory of this process, and linked to where the kubelet looks: a server outlives
kubelets, and is found again by one link(2). The names are this process's own, because during a
rolling update two plugins serve the same resource.
"""

import hashlib
import os
import re
import secrets
import socket
import stat
from pathlib import Path

from nvhook.errors import HostError

# Of sun_path, with its final NUL. Source: unix(7).
MAX_PATH = 107
_OWN = re.compile(r"nvhook-(?:.*-)?[0-9a-f]{8}(?:\.sock)?")


class SocketDirectory:
    """The kubelet's directory, and this process's own in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._token = secrets.token_hex(4)
        self._private = Path(path, f"nvhook-{self._token}")
        self._bound = 0

    def create(self) -> None:
        """Make this process's directory, and remove what dead processes of nvhook have left.

        Raises: HostError.
        """
        try:
            Path(self.path).mkdir(mode=0o750, parents=True, exist_ok=True)  # as the kubelet does
            self._remove_stale()
            self._private.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise HostError(
                f"can't use the kubelet's directory {self.path}: {error.strerror}",
                "is the kubelet installed, and its directory mounted where the plugin runs?",
            ) from None

    def new_socket(self) -> str:
        """Return a path to bind a socket at.

        Raises: HostError where it is longer than the kernel takes.
        """
        self._bound += 1
        path = str(self._private / f"{self._bound}.sock")
        if len(os.fsencode(path)) > MAX_PATH:
            raise HostError(f"the kubelet's directory {self.path} has too long a name for sockets")
        return path

    def link_name(self, resource: str) -> str:
        """Return the file name under which the kubelet finds a resource's socket."""
        room = MAX_PATH - len(os.fsencode(self.path)) - len(f"/nvhook--{self._token}.sock")
        # Two long names may be cut to the same: the number of the socket is not known here.
        return f"nvhook-{_short(resource.partition('/')[2], room)}-{self._token}.sock"

    def publish(self, bound: str, name: str) -> bool:
        """Link a bound socket to its name; return whether it was not there.

        Raises: OSError, FileNotFoundError where the bound socket itself is gone.
        """
        public = Path(self.path, name)
        try:
            os.link(bound, public)
        except FileExistsError:
            if os.path.samefile(bound, public):
                return False
            public.unlink()
            os.link(bound, public)
        return True

    def withdraw(self, name: str) -> None:
        """Remove a name."""
        Path(self.path, name).unlink(missing_ok=True)

    def is_there(self) -> bool:
        """Tell whether this process's directory still is."""
        return self._private.is_dir()

    def remove(self) -> None:
        """Remove everything of this process."""
        _remove(self._private)

    def _remove_stale(self) -> None:
        for entry in [*Path(self.path).iterdir()]:
            if not _OWN.fullmatch(entry.name):
                continue
            if entry.is_socket() and not _answers(entry):
                entry.unlink(missing_ok=True)
            elif entry.is_dir() and not any(_answers(each) for each in entry.iterdir()):
                _remove(entry)


def identity(path: str) -> tuple[int, int, int] | None:
    """Return what tells one socket at a path from the next one; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _short(name: str, room: int) -> str:
    if len(name) <= room:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: max(room - 9, 0)]}-{digest}"


def _answers(path: Path) -> bool:
    """Tell whether a process still listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
        except TimeoutError:
            return True  # its queue is full: it is alive
        except OSError:
            return False
    return True


def _remove(directory: Path) -> None:
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        entry.unlink(missing_ok=True)
    directory.rmdir()
