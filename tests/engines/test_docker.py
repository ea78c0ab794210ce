"""Docker: --gpus by the hook, --runtime=nvidia by nvhook-runtime."""

from collections.abc import Iterator

import pytest

from tests.engines.docker import Docker
from tests.engines.images import CUDA, PLAIN
from tests.engines.inside import assert_gets, assert_gets_nothing, look
from tests.runtime import packages
from tests.runtime.expectations import COMPUTE

ALL = (0, 1, 2, 3)
RUNTIME = "--runtime=nvidia"


@pytest.fixture(scope="module", params=["own", "newest"])
def docker(request, hosts, installed, archive) -> Docker:
    """A daemon that finds the hook on its PATH and knows the runtime."""
    host = hosts("docker", "hybrid")
    if request.param == "newest":
        programs = ("dockerd", "docker", "containerd", "containerd-shim-runc-v2")
        host.programs.append(packages.newest_programs(programs, "docker.io", "docker-cli"))
    host.programs.append(installed / "bin")
    host.call("nvhook", "cdi", "generate", "--output", "/etc/cdi/nvidia.yaml")
    return Docker(host, archive, f"--add-runtime=nvidia={installed}/bin/nvhook-runtime")


@pytest.fixture(scope="module")
def docker_by_default(hosts, installed, archive) -> Docker:
    """A daemon that nvhook was made the default of, and that has no hook."""
    host = hosts("docker", "hybrid")
    host.call(installed / "bin/nvhook", "configure", "docker", "--set-as-default")
    return Docker(host, archive)


@pytest.fixture(autouse=True)
def nothing_left(request) -> Iterator[None]:
    """No container may leave anything."""
    yield
    for name in {"docker", "docker_by_default"} & set(request.fixturenames):
        engine = request.getfixturevalue(name)
        engine.host.settle()
        assert engine.call("ps", "--all", "--quiet").stdout == ""


@pytest.mark.parametrize(
    ("gpus", "given"),
    [
        pytest.param("1", (0,), id="one"),
        pytest.param("2", (0, 1), id="two"),
        pytest.param('"device=1"', (1,), id="index"),
        pytest.param('"device=0,3"', (0, 3), id="indices"),
        pytest.param("device={uuid}", (1,), id="uuid"),
        pytest.param("all", ALL, id="all"),
    ],
)
def test_gpus(docker, driver, gpus, given):
    option = gpus.format(uuid=driver.gpus[1].uuid)
    assert_gets(driver, docker.run("--gpus", option, PLAIN, *look(driver)).stdout, given)


@pytest.mark.parametrize(
    ("capabilities", "control", "names"),
    [
        ("utility", ("nvidiactl",), ("utility",)),
        ("compute", COMPUTE, ("compute",)),
        ("compute,utility,display", (*COMPUTE, "nvidia-modeset"), ("compute", "utility")),
    ],
)
def test_capabilities(docker, driver, capabilities, control, names):
    option = f'"device=2","capabilities={capabilities}"'
    seen = docker.run("--gpus", option, PLAIN, *look(driver)).stdout
    assert_gets(driver, seen, (2,), control, names)


def test_the_option_wins_over_the_image(docker, driver):
    seen = docker.run("--gpus", '"device=1"', CUDA, *look(driver)).stdout
    assert_gets(driver, seen, (1,))


@pytest.mark.parametrize("image", [PLAIN, CUDA])
def test_without_the_option_there_is_nothing(docker, driver, image):
    assert_gets_nothing(driver, docker.run(image, *look(driver)).stdout)


@pytest.mark.parametrize(
    "options", [("--gpus", '"device=7"'), (RUNTIME, "-eNVIDIA_VISIBLE_DEVICES=7")]
)
def test_an_error_is_one_line_that_docker_shows(docker, options):
    done = docker.run(*options, PLAIN, "true", check=False)
    assert done.returncode != 0
    assert done.stderr.count("nvhook: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("docker", ["newest"], indirect=True)
@pytest.mark.parametrize("name", ["1", "{uuid}"], ids=["index", "uuid"])
def test_cdi(docker, driver, name):
    """docker 20.10 knows no CDI."""
    device = f"--device=nvidia.com/gpu={name.format(uuid=driver.gpus[1].uuid)}"
    seen = docker.run(device, PLAIN, *look(driver)).stdout
    assert_gets(driver, seen, (1,), (*COMPUTE, "nvidia-modeset"))


@pytest.mark.parametrize(
    ("options", "image", "given"),
    [
        pytest.param(("-eNVIDIA_VISIBLE_DEVICES=1",), PLAIN, (1,), id="variable"),
        pytest.param(("-eNVIDIA_VISIBLE_DEVICES=1",), CUDA, (1,), id="variable-over-image"),
        pytest.param((), CUDA, ALL, id="image"),
        pytest.param(("--gpus", '"device=2"'), PLAIN, (2,), id="gpus"),
        pytest.param(("--gpus", '"device=2"'), CUDA, (2,), id="gpus-over-image"),
        pytest.param(("--gpus", "all", "--read-only", "--tmpfs=/tmp"), PLAIN, ALL, id="read-only"),
    ],
)
def test_the_runtime(docker, driver, options, image, given):
    command = look(driver, "--read-only" not in options)
    assert_gets(driver, docker.run(RUNTIME, *options, image, *command).stdout, given)


def test_the_runtime_gives_nothing_that_was_not_asked_for(docker, driver):
    assert_gets_nothing(driver, docker.run(RUNTIME, PLAIN, *look(driver)).stdout)


@pytest.mark.parametrize(("image", "given"), [(PLAIN, (3,)), (CUDA, (3,))])
def test_the_default_runtime(docker_by_default, driver, image, given):
    seen = docker_by_default.run("-eNVIDIA_VISIBLE_DEVICES=3", image, *look(driver)).stdout
    assert_gets(driver, seen, given)


def test_a_container_of_the_default_runtime_that_does_not_ask(docker_by_default, driver):
    assert_gets_nothing(driver, docker_by_default.run(PLAIN, *look(driver)).stdout)


def test_the_gpu_stays_through_a_restart_an_update_and_in_exec(docker, driver):
    """What the runtime has from config.json is not lost when it writes the rules again."""
    limits = ("--memory=200m", "--memory-swap=200m")
    started = docker.run_detached(RUNTIME, "-eNVIDIA_VISIBLE_DEVICES=1", PLAIN, "sleep", "1000")
    try:
        for words in (["version"], ["update", *limits, started], ["restart", "--time=0", started]):
            docker.call(*words)
            assert_gets(driver, docker.call("exec", started, *look(driver, False)).stdout, (1,))
    finally:
        docker.call("rm", "--force", started)
