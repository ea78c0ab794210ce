"""oci/kubernetes: what an API server says to it, and its pod on a real kubelet."""

import json
from pathlib import Path

import pytest

from nvhook.kubelet import config_file
from tests.kubelet.real.looks import assert_sees_what_it_was_given, failing, looking
from tests.kubelet.real.plugin_image import IMAGE, make_plugin_archive

KUBERNETES = Path(__file__).parents[3] / "oci/kubernetes"
GPU = "nvidia.com/gpu"
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
EXAMPLES = sorted(path.name for path in (KUBERNETES / "examples").iterdir())


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
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_fits_the_base(kustomize, name):
    kustomize(f"components: [kubernetes/components/{name}]")


def test_all_components_fit_together(kustomize):
    names = ", ".join(f"kubernetes/components/{name}" for name in COMPONENTS)
    kustomize(f"components: [{names}]")


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


def on_the_node(node, pod, driver, launcher):
    """Return the pod for a node without an API server and with a simulated driver."""
    directory = node.host.directory / "plugin-config"
    directory.mkdir(exist_ok=True)
    (directory / "config.yaml").write_text((KUBERNETES / "base/config.yaml").read_text())
    pod = json.loads(json.dumps(pod))
    # A kubelet without an API server ends at a runtimeClassName (1.34); the handler is the default.
    del pod["serviceAccountName"], pod["priorityClassName"], pod["runtimeClassName"]
    (container,) = pod["containers"]
    container |= {"image": IMAGE, "command": [str(launcher)]}
    for volume in pod["volumes"]:
        if volume["name"] == "config":
            del volume["configMap"]
            volume["hostPath"] = {"path": str(directory)}
    for path in (driver.directory, Path("/etc/nvhook")):
        name = f"simulated-{path.name}"
        pod["volumes"].append({"name": name, "hostPath": {"path": str(path)}})
        container["volumeMounts"].append({"name": name, "mountPath": str(path), "readOnly": True})
    return pod


def test_the_pod_serves_an_unprivileged_plugin(node, render, driver, workspace):
    archive = workspace / "plugin-image.tar"
    make_plugin_archive(archive)
    node.containerd.ctr("images", "import", archive)
    pod = on_the_node(node, pod_of(render(KUBERNETES / "base")), driver, driver.launcher)

    plugin = node.add_pod(pod)

    node.host.wait(lambda: node.is_ready(plugin), lambda: node.describe(plugin), seconds=40)
    everything = {gpu.uuid for gpu in driver.gpus}
    assert node.allocatable(GPU) == everything
    user = node.add(looking(driver), {GPU: 1})
    assert len(assert_sees_what_it_was_given(node, driver, user, GPU)) == 1
    with failing(driver, 1):
        left = lambda: node.allocatable(GPU) == everything - {driver.gpus[1].uuid}  # noqa: E731
        node.host.wait(left, lambda: node.describe(plugin), seconds=5)
    node.remove()
