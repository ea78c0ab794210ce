"""containerd, the distribution's and the newest: ctr and pods, by nvhook-runtime and by CDI."""

from collections.abc import Iterator

import grpc
import pytest

from tests.engines.containerd import Containerd
from tests.engines.images import CUDA, PLAIN
from tests.engines.inside import assert_gets, assert_gets_nothing, look
from tests.runtime import packages
from tests.runtime.expectations import COMPUTE

ALL = (0, 1, 2, 3)
VOLUMES = "/var/run/nvidia-container-devices"


@pytest.fixture(scope="module", params=[("own", "hybrid"), ("newest", "hybrid")], ids="-".join)
def edition(request) -> tuple[str, str]:
    """Whose containerd, and on which kind of cgroups."""
    return request.param


@pytest.fixture(scope="module")
def containerd(edition, hosts, archive, installed) -> Iterator[Containerd]:
    """The daemon, with NVIDIA's names on its PATH."""
    release, cgroups = edition
    host = hosts("containerd", cgroups, accept_volume_mounts="true")
    if release == "newest":
        programs = ("containerd", "containerd-shim-runc-v2", "ctr")
        host.programs.append(packages.newest_programs(programs, "containerd"))
    host.programs.append(installed / "bin")
    host.call("nvhook", "cdi", "generate", "--output", "/etc/cdi/nvidia.yaml")
    engine = Containerd(host, archive, installed / "bin/nvhook")
    yield engine
    engine.cri.close()


@pytest.fixture(scope="module")
def pod(containerd):
    """A pod of the handler "nvidia", as RuntimeClass gives one."""
    with containerd.cri.pod("nvidia") as pod:
        containerd.host.remember()
        yield pod


@pytest.fixture(autouse=True)
def nothing_left(containerd: Containerd) -> Iterator[None]:
    """No container may leave anything."""
    before = containerd.ctr("containers", "list", "--quiet").stdout
    yield
    containerd.host.settle()
    assert containerd.ctr("containers", "list", "--quiet").stdout == before


@pytest.mark.parametrize(
    ("options", "image", "given"),
    [
        pytest.param(("--env", "NVIDIA_VISIBLE_DEVICES=1"), PLAIN, (1,), id="variable"),
        pytest.param(("--env", "NVIDIA_VISIBLE_DEVICES=0,2"), CUDA, (0, 2), id="over-image"),
        pytest.param((), CUDA, ALL, id="image"),
        pytest.param((), PLAIN, (), id="nothing"),
    ],
)
def test_ctr(containerd, installed, driver, options, image, given):
    runtime = ("--runc-binary", installed / "bin/nvhook-runtime", *options)
    seen = containerd.run(*runtime, image=image, command=look(driver))
    if given:
        assert_gets(driver, seen, given)
    else:
        assert_gets_nothing(driver, seen)


@pytest.mark.parametrize(
    ("fields", "image", "given"),
    [
        pytest.param({"envs": {"NVIDIA_VISIBLE_DEVICES": "1"}}, PLAIN, (1,), id="variable"),
        pytest.param({"envs": {"NVIDIA_VISIBLE_DEVICES": "{uuid}"}}, CUDA, (1,), id="over-image"),
        pytest.param({"volume": "{uuid}"}, CUDA, (1,), id="volume-over-image"),
        pytest.param({}, CUDA, ALL, id="image"),
        pytest.param({}, PLAIN, (), id="nothing"),
    ],
)
def test_a_pods_container(pod, driver, fields, image, given):
    uuid = driver.gpus[1].uuid
    fields = dict(fields)
    if "envs" in fields:
        fields["envs"] = {key: text.format(uuid=uuid) for key, text in fields["envs"].items()}
    if fields.pop("volume", None):
        fields["mounts"] = [{"container_path": f"{VOLUMES}/{uuid}", "host_path": "/dev/null"}]
    seen = pod.run(look(driver), image=image, **fields)
    if given:
        assert_gets(driver, seen, given)
    else:
        assert_gets_nothing(driver, seen)


def test_ctr_gpus(containerd, driver):
    """By nvidia-container-cli, which has all capabilities asked of it."""
    seen = containerd.run("--gpus", "1", command=look(driver))
    assert_gets(driver, seen, (1,), (*COMPUTE, "nvidia-modeset"))


@pytest.mark.parametrize(
    "fields",
    [
        {"CDI_devices": [{"name": "nvidia.com/gpu=1"}]},
        {"CDI_devices": [{"name": "nvidia.com/gpu={uuid}"}]},
        {"annotations": {"cdi.k8s.io/test_0": "nvidia.com/gpu=1"}},
    ],
    ids=["field", "field-uuid", "annotation"],
)
@pytest.mark.parametrize("edition", [("newest", "hybrid")], ids="-".join, indirect=True)
def test_cdi_without_the_runtime(containerd, driver, fields):
    """containerd 1.6 knows no CDI."""
    for device in fields.get("CDI_devices", []):
        device["name"] = device["name"].format(uuid=driver.gpus[1].uuid)
    with containerd.cri.pod("runc") as pod:
        seen = pod.run(look(driver), **fields)
    assert_gets(driver, seen, (1,), (*COMPUTE, "nvidia-modeset"))


@pytest.mark.parametrize("edition", [("own", "hybrid")], ids="-".join, indirect=True)
def test_an_annotation_that_containerd_does_not_know(pod, driver):
    """containerd 1.6 hands it on, so nvhook-runtime is asked; a newer one takes it itself."""
    seen = pod.run(look(driver), annotations={"cdi.k8s.io/test_0": "nvidia.com/gpu=1"})
    assert_gets(driver, seen, (1,))


def test_two_containers_of_a_pod_have_a_gpu_each(pod, driver):
    for index in (0, 3):
        seen = pod.run(look(driver), envs={"NVIDIA_VISIBLE_DEVICES": str(index)})
        assert_gets(driver, seen, (index,))


def test_a_pod_without_the_handler_gets_nothing(containerd, driver):
    with containerd.cri.pod("runc") as pod:
        assert_gets_nothing(driver, pod.run(look(driver), image=CUDA))


def test_an_error_is_one_line_in_the_pods_status(pod):
    with pytest.raises(grpc.RpcError) as caught:
        pod.run(["true"], envs={"NVIDIA_VISIBLE_DEVICES": "7"})
    assert caught.value.details().count("nvhook: unknown device id 7 (hint: ") == 1
