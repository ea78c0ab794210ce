"""A containerd of its own: the daemon, ctr, and its CRI socket."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from tests.engines.cri import Cri
from tests.engines.host import Completed, Host
from tests.engines.images import PAUSE, PLAIN

COUNTER = itertools.count()
SOCKET = "/run/containerd/containerd.sock"
# Version 2 is what containerd 1.6 reads; 2.x converts it.
CONFIG = """\
version = 2
root = "{directory}/containerd"
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true  # a host without CAP_SYS_RESOURCE
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
"""


class Containerd:
    """The daemon; its CRI has the handler runc, and nvidia by ``nvhook configure``.

    ``options`` are further ones of that command.
    """

    def __init__(self, host: Host, archive: Path, nvhook: Path, *options: str) -> None:
        self.host = host
        config = host.directory / "containerd.toml"
        config.write_text(CONFIG.format(directory=host.directory, socket=SOCKET, pause=PAUSE))
        host.call(nvhook, "configure", "containerd", "--file", config, *options)
        host.start("containerd", "--config", config, socket=SOCKET)
        # The socket is there before all services are.
        host.wait(lambda: self.ctr("version", check=False).returncode == 0)
        self.ctr("images", "import", "--no-unpack", archive)
        self.cri = Cri(host.path(Path(SOCKET)), host.cgroup, host.directory)
        host.remember()

    def ctr(self, *words: str | Path, check: bool = True) -> Completed:
        """Call ctr, in the namespace that the CRI uses too."""
        return self.host.call("ctr", "--namespace", "k8s.io", *words, check=check)

    def run(self, *options: str | Path, command: Sequence[str], image: str = PLAIN) -> str:
        """Run a container by ctr to its end; return its output."""
        name = f"c{next(COUNTER)}"
        cgroup = f"{self.host.cgroup}/{name}"
        words = ("run", "--rm", "--cgroup", cgroup, *options, image, name, *command)
        return self.ctr(*words).stdout
