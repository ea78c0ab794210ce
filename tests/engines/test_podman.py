"""podman, the distribution's and the newest, on runc and crun: hooks.d, nvhook-runtime, CDI."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.images import CUDA, PLAIN
from tests.engines.inside import assert_gets, assert_gets_nothing, look
from tests.engines.podman import Podman
from tests.runtime import packages
from tests.runtime.expectations import ALLOWED, COMPUTE

ASKED = "--env=NVIDIA_VISIBLE_DEVICES=1"


@pytest.fixture(
    scope="module",
    params=[
        ("own", "runc", "hybrid"),
        ("own", "crun", "v1"),
        ("newest", "runc", "hybrid"),
        ("newest", "crun", "v1"),
    ],
    ids="-".join,
)
def edition(request) -> tuple[str, str, str]:
    """Whose podman, on which runtime, on the cgroups that both know."""
    return request.param


@pytest.fixture(scope="module")
def podman(edition, hosts, archive, installed) -> Podman:
    """podman on that runtime, which is also the one behind nvhook-runtime."""
    release, runtime, cgroups = edition
    program = shutil.which(runtime)
    directory = Path("/usr/bin")
    more = ""
    if release == "newest":
        directory = packages.newest_programs(("podman", "conmon", "crun"), "podman")
        more = f'conmon_path = ["{directory}/conmon"]\n'
        more += f'helper_binaries_dir = ["{directory}/tree/usr/lib/podman"]\n'
        program = str(directory / "crun") if runtime == "crun" else program
    host = hosts("podman", cgroups, **{"handler.runtimes": f'["{program}"]'})
    host.call(installed / "bin/nvhook", "cdi", "generate", "--output", "/etc/cdi/nvidia.yaml")
    more += f'runtime = "{runtime}"\n[engine.runtimes]\n{runtime} = ["{program}"]'
    return Podman(host, archive, directory / "podman", more)


@pytest.fixture(scope="module")
def hooks(installed) -> dict[str, Path]:
    """The option that names the installed hooks."""
    return {"hooks-dir": installed / "hooks.d"}


@pytest.fixture(params=["hooks.d", "nvhook-runtime"])
def way(request, installed, hooks) -> dict[str, Path]:
    """podman's option for one of nvhook's doors."""
    handler = {"runtime": installed / "bin/nvhook-runtime"}
    return hooks if request.param == "hooks.d" else handler


@pytest.fixture(autouse=True)
def nothing_left(podman: Podman) -> Iterator[None]:
    """No container may leave anything."""
    yield
    # After a failure, and while it cleans up, podman leaves a mount until it is called again.
    podman.host.settle(lambda: podman.call("ps", "--all", "--quiet"))
    assert podman.call("ps", "--all", "--quiet").stdout == ""


def test_a_container_gets_its_gpu(podman, way, driver):
    assert_gets(driver, podman.run(ASKED, PLAIN, *look(driver), before=way).stdout, (1,))


def test_the_image_asks(podman, way, driver):
    assert_gets(driver, podman.run(CUDA, *look(driver), before=way).stdout, (0, 1, 2, 3))


def test_a_read_only_root(podman, way, driver):
    seen = podman.run("--read-only", ASKED, PLAIN, *look(driver, False), before=way).stdout
    assert_gets(driver, seen, (1,))


def test_a_user_namespace(podman, way, driver):
    """Its root may make no node, so it is asked for those it finds."""
    mapped = ("--uidmap=0:100000:65536", "--gidmap=0:100000:65536")
    nodes = [f"/dev/nvidia{driver.gpus[index].minor}" for index in (1, 0)]
    command = ("/probe", "open", nodes[0], "open", nodes[1], "open", "/dev/nvidiactl")
    seen = podman.run(*mapped, ASKED, PLAIN, *command, before=way).stdout
    verdicts = [line.rpartition(" = ")[2] for line in seen.splitlines()]
    assert verdicts == [ALLOWED, "ENOENT", ALLOWED]


def test_a_container_that_does_not_ask_gets_nothing(podman, way, driver):
    assert_gets_nothing(driver, podman.run(PLAIN, *look(driver), before=way).stdout)


def test_what_is_unknown_stops_the_container(podman, edition, way):
    asked = "--env=NVIDIA_VISIBLE_DEVICES=7"
    done = podman.run(asked, PLAIN, "true", before=way, check=False)
    assert done.returncode != 0
    error = "unknown device id 7 (hint: "
    assert error in (podman.host.directory / "nvhook.log").read_text()
    if "hooks-dir" not in way or edition[1] == "runc":  # crun throws a hook's words away
        assert done.stderr.count(error) == 1


@pytest.mark.parametrize("name", ["1", "{uuid}"], ids=["index", "uuid"])
def test_cdi(podman, driver, name):
    device = f"--device=nvidia.com/gpu={name.format(uuid=driver.gpus[1].uuid)}"
    seen = podman.run(device, PLAIN, *look(driver)).stdout
    assert_gets(driver, seen, (1,), (*COMPUTE, "nvidia-modeset"))


def test_all_by_cdi(podman, driver):
    seen = podman.run("--device=nvidia.com/gpu=all", PLAIN, *look(driver)).stdout
    assert_gets(driver, seen, (0, 1, 2, 3), (*COMPUTE, "nvidia-modeset"))


def test_an_unknown_cdi_device_stops_the_container(podman):
    done = podman.run("--device=nvidia.com/gpu=7", PLAIN, "true", check=False)
    assert done.returncode != 0
    assert "nvidia.com/gpu=7" in done.stderr
