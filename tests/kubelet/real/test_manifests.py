"""oci/kubernetes: what an API server says to it, and its pod on a real kubelet."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from nvhook.kubelet import config_file
from tests.engines.inside import assert_gets_nothing
from tests.kubelet.real.looks import assert_sees_what_it_was_given, failing, looking, seen
from tests.kubelet.real.plugin_image import IMAGE, make_plugin_archive

KUBERNETES = Path(__file__).parents[3] / "oci/kubernetes"
GPU = "nvidia.com/gpu"
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
EXAMPLES = sorted(path.name for path in (KUBERNETES / "examples").iterdir())
SHARED = "nvidia.com/gpu.shared"
GPUS = "/var/run/nvidia-container-devices"
NOTHING = {"drop": ["ALL"]}
FOR_MPS = NOTHING | {"add": ["SYS_ADMIN", "SETUID", "SETGID", "KILL"]}


@pytest.fixture
def kustomize(tmp_path, render):
    """Render a kustomization over the base."""

    def rendered(text: str):
        # kustomize takes no absolute paths.
        (tmp_path / "kubernetes").symlink_to(KUBERNETES)
        (tmp_path / "kustomization.yaml").write_text(f"resources: [kubernetes/base]\n{text}")
        return render(tmp_path)

    return rendered


def pod_of(objects):
    """Return the specification of the DaemonSet's pods."""
    (found,) = (each for each in objects if each["kind"] == "DaemonSet")
    return found["spec"]["template"]["spec"]


def test_the_base_has_all_that_a_cluster_needs(render):
    objects = {each["kind"]: each for each in render(KUBERNETES / "base")}

    assert set(objects) == {"Namespace", "ServiceAccount", "RuntimeClass", "ConfigMap", "DaemonSet"}
    assert objects["RuntimeClass"]["handler"] == "nvidia"
    pod = pod_of(objects.values())
    assert pod["runtimeClassName"] == objects["RuntimeClass"]["metadata"]["name"]
    assert pod["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert capabilities(pod) == {"device-plugin": NOTHING}


def capabilities(pod):
    """Return the capabilities of a pod's containers, by name; "all" of a privileged one."""
    found = {}
    for container in pod["containers"]:
        context = container["securityContext"]
        found[container["name"]] = "all" if context.get("privileged") else context["capabilities"]
    return found


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cdi"], {"device-plugin": NOTHING}),
        (["mps"], {"device-plugin": FOR_MPS}),
        (["node-labels"], {"device-plugin": NOTHING, "node-labels": NOTHING}),
        (["privileged"], {"device-plugin": "all"}),
        (COMPONENTS, {"device-plugin": "all", "node-labels": NOTHING}),
    ],
    ids=",".join,
)
def test_components_fit_and_add_the_capabilities_that_they_need(kustomize, names, expected):
    paths = ", ".join(f"kubernetes/components/{name}" for name in names)
    assert capabilities(pod_of(kustomize(f"components: [{paths}]"))) == expected


@pytest.mark.parametrize("names", [[], *([name] for name in COMPONENTS), COMPONENTS], ids=",".join)
def test_every_image_is_the_one_that_the_overlay_names_with_its_tag(kustomize, names):
    paths = ", ".join(f"kubernetes/components/{name}" for name in names)
    image = "{name: nvhook-device-plugin, newName: registry.example/plugin}"
    pod = pod_of(kustomize(f"components: [{paths}]\nimages: [{image}]"))
    images = {each["image"] for each in pod["containers"]}
    assert images == {f"registry.example/plugin:{version('nvhook')}"}


def test_mps_has_time_to_end_and_may_mount(kustomize):
    pod = pod_of(kustomize("components: [kubernetes/components/mps]"))
    # 11 s for the daemon and 60 s for compute modes (nvhook/kubelet/mps.py), one after the other.
    assert pod["terminationGracePeriodSeconds"] > 71
    (container,) = pod["containers"]
    assert container["securityContext"]["appArmorProfile"] == {"type": "Unconfined"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_one_that_the_plugin_takes(render, tmp_path, name):
    objects = render(KUBERNETES / "examples" / name)
    (found,) = (each for each in objects if each["kind"] == "ConfigMap")
    file = tmp_path / "config.yaml"
    file.write_text(found["data"]["config.yaml"])
    config_file.load(str(file), "")


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("runtimeClass", "nvidia", 'unknown field "spec.template.spec.runtimeClass"'),
        ("enableServiceLinks", "no", "cannot unmarshal string"),
        ("priorityClassName", "Node_Critical", "priorityClassName: Invalid value"),
        ("restartPolicy", "Never", "restartPolicy: Unsupported value"),
    ],
)
def test_what_an_api_server_would_refuse_is_seen(kustomize, path, value, error):
    patch = [{"op": "add", "path": f"/spec/template/spec/{path}", "value": value}]
    text = f"patches: [{{target: {{kind: DaemonSet}}, patch: '{json.dumps(patch)}'}}]"
    with pytest.raises(AssertionError) as caught:
        kustomize(text)
    assert error in str(caught.value)


def on_the_node(node, objects, driver):
    """Return the DaemonSet's pod for a node without an API server, with a simulated driver."""
    directory = node.host.directory / "plugin-config"
    directory.mkdir(exist_ok=True)
    (settings,) = (each["data"] for each in objects if each["kind"] == "ConfigMap")
    (directory / "config.yaml").write_text(settings["config.yaml"])
    pod = pod_of(objects)
    # A kubelet without an API server ends at a runtimeClassName (1.34); the handler is the default.
    del pod["serviceAccountName"], pod["priorityClassName"], pod["runtimeClassName"]
    for volume in pod["volumes"]:
        if volume["name"] == "config":
            del volume["configMap"]
            volume["hostPath"] = {"path": str(directory)}
    for container in pod["containers"]:
        container |= {"image": IMAGE, "command": [str(driver.launcher)]}
    for path in (driver.directory, Path("/etc/nvhook")):
        name = f"simulated-{path.name}"
        pod["volumes"].append({"name": name, "hostPath": {"path": str(path)}})
        # Not read-only: the simulated driver keeps GPUs' compute modes.
        mount = {"name": name, "mountPath": str(path)}
        for container in pod["containers"]:
            container["volumeMounts"].append(mount)
    return pod


@pytest.fixture(scope="module")
def with_image(isolated_node, workspace):
    """A node with the guide's settings and the plugin's image."""
    archive = workspace / "plugin-image.tar"
    make_plugin_archive(archive)
    isolated_node.containerd.ctr("images", "import", archive)
    return isolated_node


@pytest.fixture
def start_plugin(with_image, driver):
    """Start the DaemonSet's pod of rendered objects and wait until it is ready."""
    node = with_image

    def started(objects):
        name = node.add_pod(on_the_node(node, objects, driver))
        node.host.wait(lambda: node.is_ready(name), lambda: node.describe(name), seconds=40)
        return name

    yield started
    node.remove()


def test_the_pod_serves_an_unprivileged_plugin(with_image, start_plugin, render, driver):
    node, plugin = with_image, start_plugin(render(KUBERNETES / "base"))
    everything = {gpu.uuid for gpu in driver.gpus}
    assert node.allocatable(GPU) == everything
    user = node.add(looking(driver), {GPU: 1})
    assert len(assert_sees_what_it_was_given(node, driver, user, GPU)) == 1
    with failing(driver, 1):
        left = lambda: node.allocatable(GPU) == everything - {driver.gpus[1].uuid}  # noqa: E731
        node.host.wait(left, lambda: node.describe(plugin), seconds=5)


def test_the_pod_labels_the_node(with_image, start_plugin, kustomize):
    node = with_image
    plugin = start_plugin(kustomize("components: [kubernetes/components/node-labels]"))
    features = node.host.path(Path("/etc/kubernetes/node-feature-discovery/features.d/gfd"))
    node.host.wait(features.exists, lambda: node.describe(plugin))
    assert "nvidia.com/gpu.count=4" in features.read_text().splitlines()


def test_the_pod_runs_mps_daemons_that_pods_reach(with_image, start_plugin, render, driver):
    node = with_image
    start_plugin(render(KUBERNETES / "examples/mps"))
    shared = lambda: len(node.allocatable(SHARED)) == 40  # noqa: E731
    health = ("busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:9400/healthz")
    node.host.wait(shared, lambda: node.host.call(*health).stdout, seconds=30)
    shell, option, script, *rest = looking(driver)
    reach = '[ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ] && >/dev/shm/client && echo "daemon = there"'

    user = node.add([shell, option, f"{reach}\n{script}", *rest], {SHARED: 1})

    assert seen(node, user).startswith("daemon = there\n")
    pid = Path("/run/nvidia/mps", SHARED, "pipe/nvidia-cuda-mps-control.pid")
    daemon = node.host.path(pid).read_text().strip()
    node.host.call("test", "-e", f"/proc/{daemon}/root/dev/shm/client")
    modes = lambda: {each.read_text() for each in driver.directory.glob("run/compute-mode.*")}  # noqa: E731
    assert modes() == {"3\n"}
    node.remove()
    assert modes() == {"0\n"}


@pytest.mark.parametrize(
    "env",
    [
        {"NVIDIA_VISIBLE_DEVICES": "all"},
        # As images older than that variable ask.
        {"CUDA_VERSION": "10.2", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"},
    ],
    ids=lambda env: next(iter(env)),
)
def test_a_pod_gets_what_it_limits_whatever_it_asks_for(
    with_image, start_plugin, render, driver, env
):
    node = with_image
    start_plugin(render(KUBERNETES / "base"))
    limited = node.add(looking(driver), {GPU: 1}, env)
    unlimited = node.add(looking(driver), {}, env)

    assert len(assert_sees_what_it_was_given(node, driver, limited, GPU)) == 1
    assert_gets_nothing(driver, seen(node, unlimited))


def test_a_privileged_plugin_asks_for_no_gpus_by_mounts(kustomize):
    pod = pod_of(kustomize("components: [kubernetes/components/privileged]"))
    (container,) = pod["containers"]
    assert not [each for each in container["volumeMounts"] if GPUS in each["mountPath"]]
