"""The tests' host: a simulated driver, mount namespaces of its own, and the real runtimes."""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.runtime import packages, repeated
from tests.runtime.bundle import Bundle, make_busybox
from tests.runtime.cgroup_view import View, keep, open_view
from tests.runtime.engine import Engine, Handler
from tests.runtime.live import Live
from tests.runtime.simulated import Driver

HERE = Path(__file__).parent
# (runtime, cgroup view); crun does not run on a hybrid host.
LANES = [("runc", "hybrid"), ("crun", "v1"), ("runc", "v2"), ("crun", "v2")]
COUNTER = itertools.count()
Make = Callable[..., Bundle]


if repeated.REPEATED:
    Engine.rehearse = repeated.rehearse


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that counts starts, or whose containers take long: none before its own."""
    monkeypatch.setattr(Engine, "rehearse", None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many containers were started again, and how."""
    for what, count in sorted((+repeated.COUNTS).items()):
        terminalreporter.write_line(f"{count:5} containers {what}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here: it needs root."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.root)


@pytest.fixture
def place(workspace: Path) -> Path:
    """A directory for one test."""
    directory = workspace / f"test{next(COUNTER)}"
    directory.mkdir(0o711)
    return directory


@pytest.fixture(scope="session")
def hybrid(real_host: None) -> Iterator[View]:
    """The machine's own cgroup mounts."""
    yield from open_view("hybrid")


@pytest.fixture(scope="session")
def pure_v1(real_host: None) -> Iterator[View]:
    """cgroup v1 alone."""
    yield from open_view("v1")


@pytest.fixture(scope="session")
def pure_v2(real_host: None) -> Iterator[View]:
    """cgroup v2 alone."""
    yield from open_view("v2")


def _engine(runtime: str, view: View, state: Path) -> Engine:
    # The distribution's own crun may be too old for v2: see packages.newest_crun.
    if (runtime, view.name) == ("crun", "v2"):
        return Engine(runtime, packages.newest_crun(), view, state)
    program = shutil.which(runtime)
    assert program is not None
    return Engine(runtime, Path(program), view, state)


@pytest.fixture(params=LANES, ids=["-".join(lane) for lane in LANES])
def each_engine(request: pytest.FixtureRequest, place: Path) -> Engine:
    """Every runtime on every kind of cgroup."""
    runtime, view = request.param
    fixture = "hybrid" if view == "hybrid" else f"pure_{view}"
    return _engine(runtime, request.getfixturevalue(fixture), place / "state")


def _handlers() -> list[tuple[str, str, str]]:
    mounts = [(*lane, "hook") for lane in LANES]
    return [*mounts, ("runc", "hybrid", "spec"), ("crun", "v2", "spec")]


@pytest.fixture(params=_handlers(), ids=["-".join(lane) for lane in _handlers()])
def each_handler(request: pytest.FixtureRequest, place: Path, driver: Driver) -> Handler:
    """nvhook-runtime in front of every runtime, with the mounts made by the hook or by the spec."""
    runtime, view, mounts = request.param
    fixture = "hybrid" if view == "hybrid" else f"pure_{view}"
    engine = _engine(runtime, request.getfixturevalue(fixture), place / "state")
    return Handler(engine, driver.launcher, mounts)


@pytest.fixture(params=["hook", "handler"])
def each_door(request: pytest.FixtureRequest, runc: Engine, driver: Driver) -> Engine:
    """runc with the hook, and nvhook-runtime in front of it: one safety for both."""
    return runc if request.param == "hook" else Handler(runc, driver.launcher, "hook")


@pytest.fixture(params=["hook", "hook-v2", "runtime"])
def started_by(request: pytest.FixtureRequest, place: Path, driver: Driver) -> Engine:
    """The hook in runc's config.json, on both versions of cgroups, and nvhook-runtime."""
    if request.param == "hook-v2":
        return _engine("runc", request.getfixturevalue("pure_v2"), place / "state")
    runc: Engine = request.getfixturevalue("runc")
    return runc if request.param == "hook" else Handler(runc, driver.launcher, "hook")


@pytest.fixture
def handler(runc: Engine, driver: Driver) -> Handler:
    """nvhook-runtime in front of runc, for what does not depend on the runtime."""
    return Handler(runc, driver.launcher, "hook")


@pytest.fixture(params=["runc", "crun"])
def each_runtime(request: pytest.FixtureRequest, place: Path) -> Engine:
    """runc and the distribution's own crun, each on cgroup v1."""
    v1 = any(
        " - cgroup cgroup " in line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    )
    view = request.getfixturevalue("pure_v1" if v1 and request.param == "crun" else "hybrid")
    return _engine(request.param, view, place / "state")


@pytest.fixture
def runc(hybrid: View, place: Path) -> Engine:
    """For what does not depend on the runtime."""
    return _engine("runc", hybrid, place / "state")


@pytest.fixture
def recorded(real_host: None, place: Path) -> Iterator[Engine]:
    """runc on a host of its own, where nothing is recorded yet."""
    own = "mkdir -p /run/nvhook && mount -t tmpfs -o mode=755 tmpfs /run/nvhook"
    for view in keep(View, "recorded", [], own):
        yield _engine("runc", view, place / "state")


@pytest.fixture
def runc_v2(pure_v2: View, place: Path) -> Engine:
    """The same on cgroup v2."""
    return _engine("runc", pure_v2, place / "state")


@pytest.fixture
def bundles(place: Path, driver: Driver, compiled: Path) -> Iterator[Make]:
    """Make bundles; their roots are removed afterwards."""
    made: list[Bundle] = []

    def make(engine: Engine, image: Path | None = None, host: Driver = driver) -> Bundle:
        directory = place / f"bundle{next(COUNTER)}"
        directory.mkdir(0o711)
        bundle = Bundle(directory, engine.view, host, compiled / "probe")
        made.append(bundle)
        if image is None:
            bundle.use_busybox()
        else:
            bundle.use_overlay(image)
        return bundle

    yield make
    for bundle in made:
        bundle.remove()


@pytest.fixture(scope="session")
def busybox(workspace: Path) -> Path:
    """An image for overlays: of a directory of the host nothing says that it is a container's."""
    make_busybox(workspace / "busybox")
    return workspace / "busybox"


@pytest.fixture
def live(
    each_engine: Engine, bundles: Make, driver: Driver, busybox: Path
) -> Iterator[Callable[..., Live]]:
    """Start containers that go on and have no hook; they are ended afterwards."""
    started: list[Live] = []

    def start(
        readonly: bool = False,
        user: str = "",
        change: Callable[[Bundle], None] | None = None,
        host: Driver = driver,
    ) -> Live:
        bundle = bundles(each_engine, image=busybox if user else None, host=host)
        del bundle.config["hooks"]
        bundle.config["root"]["readonly"] = readonly
        if change is not None:
            change(bundle)
        if user:
            bundle.use_user_namespace(user == "own-image")
        started.append(Live(each_engine, bundle))
        return started[-1]

    yield start
    for each in started:
        each.delete()


@pytest.fixture(autouse=True)
def host_unchanged(driver: Driver, hybrid: View, pure_v1: View, pure_v2: View) -> Iterator[None]:
    """No test may leave a mount, a cgroup, a process or a changed file on its host.

    Set up first, so that it looks again after every other fixture of the test has gone.
    """
    views = (hybrid, pure_v1, pure_v2)
    before = _traces(views, driver)
    yield
    after = _traces(views, driver)
    # Mounts that others make on this machine may go at any time; our own go before this.
    places = f" {tempfile.gettempdir()}/", " /dev/shm/"
    lost = [line for line in before - after if not any(place in line for place in places)]
    assert (sorted(after - before), sorted(lost)) == ([], []), "(left behind, lost)"


def _traces(views: Iterable[View], driver: Driver) -> set[str]:
    """Return a line for all that must stay: mounts, cgroups, the driver's files, /dev/null."""
    found = {f"{view.name}: {line}" for view in views for line in view.mounts() + view.cgroups()}
    paths = [
        *driver.directory.glob("root/**/*"),
        *driver.directory.glob("dev/*"),
        Path("/dev/null"),
    ]
    for path in paths:
        status = path.lstat()
        times = 0 if str(path) == "/dev/null" else status.st_mtime_ns
        found.add(
            f"{path} {status.st_mode:o} {status.st_uid} {status.st_gid} {status.st_size} {times}"
        )
    return found
