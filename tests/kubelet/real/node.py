"""A node: a real kubelet without an API server, containerd, nvhook-runtime, and static pods.

What the kubelet writes, /var/lib/kubelet, /var/log and the kernel's settings, is the host's own
(tests/engines/host.py); its pods' cgroups are below the host's.
"""

import glob
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.engines.containerd import SOCKET, Containerd
from tests.engines.grpc_client import Client
from tests.engines.host import Host
from tests.engines.images import PLAIN

PROTO = Path(__file__).with_name("podresources.proto")
PLUGINS = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
PORT = 10255
NODE = "node"
ADDRESS = "192.0.2.1"
LABEL = "nvidia.com/gpu.present=true"  # what the DaemonSet's affinity is for
COUNTER = itertools.count()

# The kubelet sets these for the whole machine, unless they are so already: here they seem to be.
# Source: Kubernetes 1.34, pkg/util/sysctl/sysctl.go.
SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
FURNISH = """\
mount -t tmpfs -o mode=755 tmpfs /var/lib &&
mount -t tmpfs -o mode=755 tmpfs /var/log &&
ip link set lo up &&
ip address add {address}/32 dev lo"""


def configuration(host: Host) -> dict[str, Any]:
    """Return the kubelet's configuration.

    Source: KubeletConfiguration v1beta1 of Kubernetes 1.34.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "enableServer": False,
        "address": "127.0.0.1",
        "readOnlyPort": PORT,
        "staticPodPath": str(host.directory / "manifests"),
        "podLogsDir": str(host.directory / "pods"),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": host.cgroup,
        "failCgroupV1": False,  # fails by default from 1.35 on
        "failSwapOn": False,
        "oomScoreAdj": 0,  # a negative one needs CAP_SYS_RESOURCE
        "localStorageCapacityIsolation": False,
        "resolvConf": "",
        # However full the machine's disk is.
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
    }


class Node:
    """The node. Its pods come from the image of the engines' tests."""

    def __init__(self, host: Host, kubelet: Path) -> None:
        self.host = host
        self._program = kubelet
        self._kubelet: subprocess.Popen[bytes] | None = None
        self._manifests = host.directory / "manifests"
        self._manifests.mkdir()
        self._sysctls = machine_sysctls()
        self._resources = Client(
            PROTO, "v1.PodResourcesLister", host.path(Path(POD_RESOURCES)), host.directory
        )

    def start(self, archive: Path, nvhook: Path) -> None:
        """Start containerd with an archive of images, and the kubelet."""
        self.host.call("sh", "-c", FURNISH.format(address=ADDRESS))
        self._pretend_sysctls()
        for parent in Path("/sys/fs/cgroup").iterdir():
            (parent / self.host.cgroup.lstrip("/")).mkdir(exist_ok=True)
        self.containerd = Containerd(self.host, archive, nvhook, "--set-as-default")
        self.containerd.cri.close()
        self.start_kubelet()

    def _pretend_sysctls(self) -> None:
        for name, value in SYSCTLS.items():
            file = self.host.directory / "sysctl" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
            self.host.call("mount", "--bind", file, f"/proc/sys/{name}")

    # ---- the kubelet ----

    def start_kubelet(self) -> None:
        """Start it and wait until device plugins can register."""
        file = self.host.directory / "kubelet.json"
        file.write_text(json.dumps(configuration(self.host)))
        options = ["--config", file, "--v=2", "--hostname-override", NODE, "--node-ip", ADDRESS]
        options += ["--node-labels", LABEL]
        self._kubelet = self.host.start(self._program, *options, socket=POD_RESOURCES)
        self.host.wait(lambda: self.pods() is not None, self.host.logs, seconds=30)

    def stop_kubelet(self) -> None:
        """Stop it; its pods go on."""
        assert self._kubelet is not None
        assert self._kubelet.poll() is None, self.host.logs()
        self.host.signal(self._kubelet, signal.SIGTERM)
        self._kubelet.wait(timeout=15)
        self.host.daemons.remove(self._kubelet)
        self._kubelet = None
        self.host.path(Path(POD_RESOURCES)).unlink(missing_ok=True)

    # ---- what it says ----

    def pods(self) -> dict[str, Any] | None:
        """Return its pods by name, or None while it does not answer."""
        url = f"http://127.0.0.1:{PORT}/pods"
        done = self.host.call("busybox", "wget", "-q", "-O", "-", url, check=False)
        if done.returncode != 0:
            return None
        items = json.loads(done.stdout)["items"] or []
        return {pod["metadata"]["name"].removesuffix(f"-{NODE}"): pod for pod in items}

    def allocatable(self, resource: str) -> set[str]:
        """Return the ids of a resource's healthy devices."""
        answer = self._resources.call("GetAllocatableResources")
        return _ids(answer.devices, resource)

    def any_allocatable(self) -> bool:
        """Tell whether there is any healthy device."""
        answer = self._resources.call("GetAllocatableResources")
        return any(each.device_ids for each in answer.devices)

    def allocated(self, resource: str) -> dict[str, set[str]]:
        """Return the ids that pods have of a resource, by the pod's name."""
        found = {}
        for pod in self._resources.call("List").pod_resources:
            devices = [each for container in pod.containers for each in container.devices]
            found[pod.name.removesuffix(f"-{NODE}")] = _ids(devices, resource)
        return found

    # ---- pods ----

    def add(
        self,
        command: Sequence[str],
        limits: Mapping[str, int],
        env: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> str:
        """Make the kubelet start a pod of one container; return its name.

        ``spec`` are further fields of the pod's specification.
        """
        container = {
            "name": "main",
            "image": PLAIN,
            "command": list(command),
            "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
            "resources": {"limits": {key: str(value) for key, value in limits.items()}},
        }
        general = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
        return self.add_pod(general | spec | {"containers": [container]})

    def add_pod(self, spec: Mapping[str, Any]) -> str:
        """Make the kubelet start a pod of images that it has; return its name."""
        name = f"pod{next(COUNTER)}"
        containers = [each | {"imagePullPolicy": "Never"} for each in spec["containers"]]
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            # The host's network: a network of its own would need CNI plugins.
            "spec": {**spec, "containers": containers, "hostNetwork": True},
        }
        partial = self.host.directory / f"{name}.json"
        partial.write_text(json.dumps(manifest))
        partial.rename(self._manifests / f"{name}.json")
        return name

    def wait_for_pod(self, name: str, phase: str) -> None:
        """Wait until a pod is Running, Succeeded or Failed."""
        is_there = lambda: self.status(name).get("phase") == phase  # noqa: E731
        self.host.wait(is_there, lambda: self.describe(name), seconds=30)

    def status(self, name: str) -> dict[str, Any]:
        """Return a pod's status, empty while the kubelet does not know it."""
        return dict((self.pods() or {}).get(name, {}).get("status", {}))

    def is_ready(self, name: str) -> bool:
        """Tell whether a pod's readiness probe has succeeded."""
        conditions = self.status(name).get("conditions", [])
        return {"Ready": "True"}.items() <= {
            each["type"]: each["status"] for each in conditions
        }.items()

    def output(self, name: str, attempt: int = 0) -> str:
        """Return what a pod's container has printed, the first one or one after a restart."""
        (log,) = self.host.directory.glob(f"pods/default_{name}-{NODE}_*/main/{attempt}.log")
        # Each line: time, stream, F (full) or P (partial), text.
        lines = (line.split(" ", 3) for line in log.read_text().splitlines())
        return "".join(f"{text}\n" for _, stream, _, text in lines if stream == "stdout")

    def describe(self, name: str) -> str:
        """Return a pod's status and the end of everything that it has logged, for messages."""
        logs = sorted(self.host.directory.glob(f"pods/default_{name}-{NODE}_*/*/*.log"))
        return "\n".join([str(self.status(name)), *(log.read_text()[-3000:] for log in logs)])

    def remove(self, *names: str) -> None:
        """Remove pods, all if none is named, and wait until their containers are gone."""
        names = names or tuple(path.stem for path in self._manifests.iterdir())
        known = self.pods() or {}
        cgroups = {f"pod{known[name]['metadata']['uid']}" for name in names if name in known}
        for name in names:
            (self._manifests / f"{name}.json").unlink()

        def left() -> list[Path]:
            return [path for each in cgroups for path in self._cgroups(f"kubepods/**/{each}/*/")]

        self.host.wait(lambda: not left(), lambda: str(left()), seconds=30)

    def _cgroups(self, pattern: str) -> list[Path]:
        # Unlike pathlib's, this glob takes what vanishes meanwhile.
        found = glob.glob(f"/sys/fs/cgroup/*{self.host.cgroup}/{pattern}", recursive=True)
        return [Path(path) for path in found]

    def close(self) -> None:
        """Stop it, and check that its pods and the kubelet have left nothing but cgroups."""
        self.remove()
        self.host.settle()
        self._resources.close()
        self.stop_kubelet()
        assert machine_sysctls() == self._sysctls

    def end(self) -> None:
        """End whatever still runs in its cgroups, and remove them: a kubelet leaves them."""
        if self._kubelet is not None and self._kubelet.poll() is None:
            self.host.signal(self._kubelet, signal.SIGKILL)
        for cgroup in self._cgroups(""):
            self.host.wait(lambda cgroup=cgroup: _removed(cgroup))


@contextmanager
def open_node(host: Host, kubelet: Path, archive: Path, nvhook: Path) -> Iterator[Node]:
    """Yield a node whose kubelet runs."""
    node = Node(host, kubelet)
    try:
        node.start(archive, nvhook)
        yield node
        node.close()
    finally:
        node.end()


class Plugin:
    """``nvhook device-plugin`` on a node."""

    def __init__(self, node: Node, nvhook: Path, *options: str, file: str = "") -> None:
        self.node = node
        self._command = [nvhook, "device-plugin", *options]
        if file:
            path = node.host.directory / "plugin.yaml"
            path.write_text(file)
            self._command += ["--config-file", path]
        self.start()

    def start(self) -> None:
        """Start it."""
        self._process = self.node.host.start(*self._command)

    def stop(self) -> None:
        """Stop it as a pod is stopped, and check that it leaves nothing."""
        if self._process not in self.node.host.daemons:
            return
        self.node.host.signal(self._process, signal.SIGTERM)
        assert self._process.wait(timeout=15) == 0, self.node.host.logs()
        self.node.host.daemons.remove(self._process)
        self.node.host.wait(lambda: not self.node.any_allocatable(), self.node.host.logs)
        left = {path.name for path in self.node.host.path(PLUGINS).iterdir()}
        assert left <= {"kubelet.sock", "kubelet_internal_checkpoint"}

    def wait(self, resource: str, ids: int, seconds: float = 15) -> set[str]:
        """Wait until this many devices of a resource are healthy; return their ids."""
        found = lambda: self.node.allocatable(resource)  # noqa: E731
        self.node.host.wait(lambda: len(found()) == ids, lambda: str(found()), seconds=seconds)
        return found()


def machine_sysctls() -> list[str]:
    """Return the machine's own values of what a kubelet sets."""
    return [Path("/proc/sys", name).read_text() for name in SYSCTLS]


def _ids(devices: Any, resource: str) -> set[str]:
    found = (each.device_ids for each in devices if each.resource_name == resource)
    return {name for names in found for name in names}


def _removed(cgroup: Path) -> bool:
    """Take one more step to remove a cgroup with all below; tell whether it is done."""
    for directory, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):  # it may go by itself meanwhile, or still be busy
            for pid in Path(directory, "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            Path(directory).rmdir()
    return not cgroup.exists()
