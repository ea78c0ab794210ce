"""nvhook inject and eject killed, hammered, and in a container that fights back."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nvhook import config
from nvhook.core.edits import DeviceNode, Mount, Symlink
from nvhook.create import pipeline
from tests.runtime.hung_fuse import HungFuse
from tests.runtime.live import Live

CYCLES = Path(__file__).with_name("live_cycles.py")


def _cycles(container, what: str, count: int = 0) -> int:
    done = container.engine.view.run(
        sys.executable,
        "-I",
        CYCLES,
        what,
        container.bundle.settings,
        str(container.pid),
        str(count),
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("command", ["inject", "eject"])
@pytest.mark.parametrize("kind", ["rw", "ro-userns"])
def test_killed_at_every_boundary(live, command, kind):
    """The next inject or eject leaves the container in one of the two clean states."""
    container = live(kind != "rw", "own-image" if kind != "rw" else "")
    before = container.snapshot()

    boundaries = _cycles(container, f"kill-{command}")

    assert boundaries > 40
    assert container.snapshot() == before
    assert container.journals() == []


def test_killed_by_the_command_line_too(live):
    container = live()
    before = container.snapshot()
    killed = container.nvhook("inject", "--gpus", "1", env=("NVHOOK_FAULT=60",))
    assert killed.returncode in {-9, 137}
    assert container.snapshot() != before

    done = container.eject()

    assert done["recovered"] == "an inject that was killed is undone"
    assert container.snapshot() == before


def test_nothing_wrong_in_200_cycles(live, compiled, driver):
    nodes = [f"/nodes/nvidia{driver.gpus[gpu].minor}" for gpu in (1, 3)]

    def hammer(bundle) -> None:
        bundle.put("/hammer", (compiled / "hammer").read_bytes(), 0o755)
        words = ["/probe", "wait", "/go"]
        script = f"{' '.join(words)}; exec /hammer {' '.join(nodes)}"
        bundle.args("/bin/sh", "-c", script)

    container = live(change=hammer)
    container.inject("1")
    container.bundle.put("/go")

    _cycles(container, "cycle", 200)

    output = container.bundle.directory / "output"
    container.bundle.put("/stop")
    for _ in range(500):
        lines = output.read_text().splitlines()
        if len(lines) > 1:
            break
        time.sleep(0.01)
    tries, denied, permitted = map(int, output.read_text().splitlines()[-1].split())
    assert tries > 10_000
    assert (denied, permitted) == (0, 0)


def test_two_at_once_wait_for_each_other(live):
    container = live()
    before = container.snapshot()

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(container.inject, ["0", "1", "0", "2"]))

    assert sum(each["changed"] for each in done) == 3
    assert container.opens(0, 1, 2, 3, at="nodes") == ["ENXIO", "ENXIO", "ENXIO", "EPERM"]
    container.eject()
    assert container.snapshot() == before


@pytest.mark.parametrize("user", ["", "own-image"])
def test_a_container_that_fights_back(live, compiled, driver, user):
    """Nothing outside changes (see host_unchanged); a call succeeds or is refused in one line."""
    settings = config.load(str(driver.config))
    layout = pipeline.container_layout(pipeline.machine(), debian=False, has_lib32=False)
    outcome = pipeline.plan_for(
        pipeline.Request(("1",), ("compute", "utility"), "test"), settings, layout
    )
    paths = [
        edit.container_path
        for edit in outcome.plan.edits
        if isinstance(edit, (Mount, DeviceNode, Symlink))
    ]
    paths = [path for path in paths if not path.startswith("/proc")] + ["/etc/ld.so.cache"]
    directories = sorted({path.rpartition("/")[0] for path in paths} - {"/dev"})

    def attack(bundle) -> None:
        bundle.put("/hostile", (compiled / "hostile").read_bytes(), 0o755)
        for directory in directories:
            bundle.put(f"{directory}/present")
        words = ["/hostile", *directories, "/usr", "--", *paths]
        bundle.args("/bin/sh", "-c", f"{' '.join(words)}; exec /bin/sleep 1000")

    container = live(user=user, change=attack)
    outside = container.bundle.directory / "outside"
    outside.mkdir()
    (outside / "file").touch()
    # Some get through all targets, so all of them were tried under attack; some do not.
    assert 0 < _cycles(container, "contested", 300) < 300
    seen = []
    began = time.monotonic()
    while time.monotonic() - began < 3:
        for command in (("inject", "--gpus", "1"), ("eject",)):
            result = container.nvhook(*command)
            seen.append(result.returncode)
            assert result.returncode in {0, 1}, result.stderr
            if result.returncode:
                assert command[0] == "inject", result.stderr
                assert len(result.stderr.splitlines()) == 1
                assert "internal error" not in result.stderr
                assert "hint: ;" not in result.stderr

    container.bundle.put("/stop")
    time.sleep(0.2)
    assert os.listdir(outside) == ["file"]
    assert len(seen) >= 4
    container.nvhook("eject")
    assert container.opens(1, at="nodes") == ["EPERM"]


@pytest.mark.parametrize("greets", [False, True], ids=["never-reads", "never-answers"])
def test_a_file_system_that_does_not_answer(runc, bundles, greets, require):
    """It holds nobody up for longer than it is allowed to, and nothing is given then."""
    require(Path("/dev/fuse").exists(), "needs FUSE")
    bundle = bundles(runc)
    del bundle.config["hooks"]
    bundle.put("/usr/bin/present")
    container = Live(runc, bundle)
    try:
        before = container.snapshot()
        hung = HungFuse(container.pid, "/usr/bin", greets)
        try:
            began = time.monotonic()
            for _ in range(2):
                result = container.nvhook("inject", "--gpus", "1", "--timeout", "1")
                assert result.returncode == 1
                assert "has not ended within 1 s" in result.stderr
                assert len(result.stderr.splitlines()) == 1
                assert container.opens(1, at="nodes") == ["EPERM"]
            assert time.monotonic() - began < 30
        finally:
            hung.end()

        container.reconcile()

        assert container.snapshot() == before
        assert container.journals() == []
        container.inject("1")
        assert container.opens(1) == ["ENXIO"]
    finally:
        container.delete()
