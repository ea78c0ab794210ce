"""A dockerd of its own and the client that talks to it."""

from pathlib import Path

from tests.engines.host import Completed, Host

SOCKET = "/run/docker.sock"


class Docker:
    """The daemon, without a network."""

    def __init__(self, host: Host, archive: Path, *options: str) -> None:
        self.host = host
        store = self.host.directory / "docker"
        network = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
        self.host.start(
            "dockerd",
            *("--host", f"unix://{SOCKET}", "--data-root", store, *network),
            *("--cgroup-parent", self.host.cgroup, *options),
            socket=SOCKET,
        )
        self.call("load", "--quiet", "--input", archive)
        host.remember()

    def call(self, *words: str | Path, check: bool = True) -> Completed:
        """Call the client."""
        return self.host.call("docker", "--host", f"unix://{SOCKET}", *words, check=check)

    def run(self, *words: str | Path, check: bool = True) -> Completed:
        """Run a container to its end."""
        return self.call("run", "--rm", "--network=none", *words, check=check)

    def run_detached(self, *words: str | Path) -> str:
        """Start a container and leave it running; return its id."""
        return self.call("run", "--detach", "--network=none", *words).stdout.strip()
