"""podman with a store and a configuration of its own."""

from collections.abc import Mapping
from pathlib import Path

from tests.engines.host import Completed, Host

# cgroup_manager: no systemd here. Without nodev an image's own nodes could not be told from denied.
CONFIG = {
    "containers.conf": """\
[containers]
cgroups = "enabled"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
{engine}
""",
    "storage.conf": """\
[storage]
driver = "overlay"
graphroot = "{directory}/storage"
runroot = "/run/containers/storage"
""",
    "policy.json": '{{"default": [{{"type": "insecureAcceptAnything"}}]}}\n',
}


class Podman:
    """One podman; ``engine`` are lines for the table of that name in containers.conf."""

    def __init__(
        self, host: Host, archive: Path, program: Path = Path("podman"), engine: str = ""
    ) -> None:
        self.host = host
        self.program = program
        directory = host.path(Path("/etc/containers"))
        directory.mkdir(exist_ok=True)
        for name, text in CONFIG.items():
            (directory / name).write_text(text.format(directory=host.directory, engine=engine))
        self.call("load", "--quiet", "--input", archive)
        host.remember()

    def call(self, *words: str | Path, check: bool = True) -> Completed:
        """Call podman."""
        return self.host.call(self.program, *words, check=check)

    def run(
        self,
        *options: str | Path,
        before: Mapping[str, str | Path] | None = None,
        check: bool = True,
    ) -> Completed:
        """Run a container to its end; ``before``: podman's global options."""
        general = [f"--{name}={value}" for name, value in (before or {}).items()]
        # podman gives no MKNOD, with which a container could help itself.
        more = ("--rm", "--cap-add=MKNOD", "--cgroup-parent", self.host.cgroup)
        return self.call(*general, "run", *more, *options, check=check)
