"""Running containers of docker and podman, on cgroup v1 alone and v2 alone, on runc and crun."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.engines.docker import Docker
from tests.engines.host import Completed
from tests.engines.images import PLAIN
from tests.engines.inside import SMI, assert_gets, assert_gets_nothing, look
from tests.engines.podman import Podman
from tests.runtime import packages
from tests.runtime.expectations import ALLOWED, COMPUTE

LANES = [
    (engine, release, cgroups)
    for engine in ("docker", "podman")
    for release in ("own", "newest")
    for cgroups in ("v1", "v2")
]


class Lane:
    """An engine of one release on one kind of cgroups."""

    def __init__(self, engine: Docker | Podman, cgroups: str, launcher: Path) -> None:
        self.engine = engine
        self.host = engine.host
        self.cgroups = cgroups
        self.launcher = launcher

    def start(self, runtime: str, mapped: bool, options: Sequence[str]) -> str:
        """Start a container and leave it running; return its id."""
        if isinstance(self.engine, Docker):  # this daemon maps, unless it is told not to
            more = [] if mapped else ["--userns=host"]
            more.append(f"--runtime={runtime}")
            return self.engine.run_detached(*more, *options, PLAIN, "sleep", "1000")
        more = ["--uidmap=0:100000:65536", "--gidmap=0:100000:65536"] if mapped else []
        if self.cgroups == "v2":  # this machine's cgroup2 has no pids, on which podman sets a limit
            more.append("--pids-limit=0")
        more += ["--detach", *options, PLAIN, "sleep", "1000"]
        return self.engine.run(*more, before={"runtime": runtime}).stdout.strip()

    def execute(self, container: str, *words: str) -> str:
        """Run something in a container; return what it prints."""
        return self.engine.call("exec", container, *words).stdout

    def remove(self, container: str) -> None:
        """End a container."""
        now = [] if isinstance(self.engine, Docker) else ["--time=0"]
        self.engine.call("rm", "--force", *now, container)

    def nvhook(self, command: str, container: str, *words: str) -> Completed:
        """Run nvhook inject or eject."""
        which = ["--docker", container]
        if isinstance(self.engine, Podman):
            which = ["--podman", container]
            if self.engine.program.parent != Path("/usr/bin"):  # not on the PATH
                asked = self.engine.call("inspect", "--format", "{{.State.Pid}}", container)
                which = ["--pid", asked.stdout.strip()]
        return self.host.call(self.launcher, command, *which, *words, check=False)

    def hold(self, container: str, node: str) -> None:
        """Start a process in a container that holds a node open."""
        self.engine.call("exec", "--detach", container, "/probe", "hold", node, "wait", "/stop")
        self.host.wait(lambda: _is_held(container, node))

    def containers(self) -> str:
        """Return the ids of all containers."""
        return self.engine.call("ps", "--all", "--quiet").stdout


def _is_held(container: str, node: str) -> bool:
    """Tell whether a process in a container's cgroup has a node open."""
    return any(node in _open_files(place, container) for place in Path("/proc").glob("[0-9]*"))


def _open_files(process: Path, container: str) -> list[str]:
    """Return what a process has open; nothing if it is not of the container, or has ended."""
    try:
        if container not in (process / "cgroup").read_text():
            return []
        return [os.readlink(each) for each in (process / "fd").iterdir()]
    except OSError:
        return []


@pytest.fixture(scope="module", params=LANES, ids="-".join)
def lane(request, hosts, archive, installed) -> Lane:
    """Each engine, the distribution's and the newest, each on both cgroup versions."""
    engine, release, cgroups = request.param
    crun = packages.newest_crun()
    if (release, cgroups) == ("own", "v1"):  # elsewhere it fails: see packages.newest_crun
        crun = Path(shutil.which("crun") or "")
    host = hosts(engine, cgroups)
    if engine == "docker" and cgroups == "v2":
        crun = _without_limits(host, crun)
    make = _docker if engine == "docker" else _podman
    return Lane(make(host, archive, release, crun), cgroups, installed / "bin/nvhook")


def _without_limits(host, crun: Path) -> Path:
    """Return a crun that is given no limits but those of devices.

    docker names limits of io even where it has none to set, and crun needs that controller then. A
    machine whose cgroup v1 has the controllers has none of them in cgroup2.
    """
    program = host.directory / "crun"
    program.write_text(WITHOUT_LIMITS.format(python=sys.executable, crun=crun))
    program.chmod(0o755)
    return program


WITHOUT_LIMITS = """\
#!{python} -I
import json, os, sys

if "--bundle" in sys.argv:
    path = sys.argv[sys.argv.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        config = json.load(file)
    resources = config["linux"]["resources"]
    config["linux"]["resources"] = {{"devices": resources["devices"]}}
    with open(path, "w") as file:
        json.dump(config, file)
os.execv("{crun}", ["crun", *sys.argv[1:]])
"""


def _docker(host, archive, release: str, crun: Path) -> Docker:
    if release == "newest":
        programs = ("dockerd", "docker", "containerd", "containerd-shim-runc-v2")
        host.programs.append(packages.newest_programs(programs, "docker.io", "docker-cli"))
    for name in ("subuid", "subgid"):
        host.path(Path(f"/etc/{name}")).write_text("daemon:100000:65536\n")
    return Docker(host, archive, "--userns-remap=daemon", f"--add-runtime=crun={crun}")


def _podman(host, archive, release: str, crun: Path) -> Podman:
    directory = Path("/usr/bin")
    lines = []
    if release == "newest":
        directory = packages.newest_programs(("podman", "conmon", "crun"), "podman")
        lines.append(f'conmon_path = ["{directory}/conmon"]')
        lines.append(f'helper_binaries_dir = ["{directory}/tree/usr/lib/podman"]')
    lines += ["[engine.runtimes]", f'crun = ["{crun}"]', f'runc = ["{shutil.which("runc")}"]']
    return Podman(host, archive, directory / "podman", "\n".join(lines))


@pytest.fixture(autouse=True)
def nothing_left(lane: Lane) -> Iterator[None]:
    """No container may leave anything."""
    yield
    lane.host.settle(lane.containers)
    assert lane.containers() == ""


@pytest.mark.parametrize("readonly", [False, True], ids=["rw", "ro"])
@pytest.mark.parametrize("mapped", [False, True], ids=["root", "userns"])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_gpu_is_given_used_and_taken_away(lane, driver, runtime, mapped, readonly):
    """The engine knows nothing of it."""
    # podman gives a container in a user namespace no list of devices, and crun makes none.
    unrestricted = isinstance(lane.engine, Podman) and runtime == "crun" and mapped
    started = lane.start(runtime, mapped, ["--read-only"] if readonly else [])
    try:
        mounts = lane.execute(started, "cat", "/proc/self/mountinfo")
        before = lane.execute(started, *look(driver, False))
        if not unrestricted:
            assert_gets_nothing(driver, before)

        given = lane.nvhook("inject", started, "--gpus", "1")

        assert given.returncode == 0, given.stderr
        seen = lane.execute(started, *look(driver, False))
        if unrestricted:
            _assert_gets_the_node(driver, seen)
        else:
            assert_gets(driver, seen, (1,))
        lane.hold(started, f"/dev/nvidia{driver.gpus[1].minor}")

        taken = lane.nvhook("eject", started, "--json")

        assert taken.returncode == (1 if unrestricted else 0), taken.stderr
        done = json.loads(taken.stdout)
        bus = driver.gpus[1].pci_bus_id
        assert (done["gpus"], done["revoked"]) == ([bus], not unrestricted)
        assert [each["gpus"] for each in done["holders"]] == [[bus]]
        assert lane.execute(started, *look(driver, False)) == before
        assert lane.execute(started, "cat", "/proc/self/mountinfo") == mounts
    finally:
        lane.remove(started)


def _assert_gets_the_node(driver, seen: str) -> None:
    """Check which nodes are in place; those of the image can be opened before and after."""
    names = {f"nvidia{driver.gpus[1].minor}", *COMPUTE}
    answers = dict(line.split(" = ") for line in seen.partition(SMI)[0].splitlines())
    placed = {
        key.rpartition("/dev/")[2]: answer for key, answer in answers.items() if "/dev/" in key
    }
    assert {name for name, answer in placed.items() if answer == ALLOWED} == names
    assert driver.gpus[1].uuid in seen
