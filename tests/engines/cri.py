"""A client of the Container Runtime Interface, as the kubelet is one."""

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engines.grpc_client import Client
from tests.engines.images import PLAIN

PROTO = Path(__file__).with_name("cri.proto")
NODE = 2  # NamespaceMode: a pod in the host's network needs no CNI
COUNTER = itertools.count()


class Cri(Client):
    """The service of cri.proto at a socket."""

    def __init__(self, socket: Path, cgroup: str, directory: Path) -> None:
        super().__init__(PROTO, "runtime.v1.RuntimeService", socket, directory)
        self._cgroup = cgroup

    @contextmanager
    def pod(self, handler: str) -> Iterator["Pod"]:
        """Yield a pod sandbox of a runtime handler (RuntimeClass), in the host's network."""
        options = {"network": NODE}
        config = {
            "metadata": {"name": f"pod{next(COUNTER)}", "uid": str(uuid.uuid4()), "namespace": "t"},
            "linux": {
                "cgroup_parent": self._cgroup,
                "security_context": {"namespace_options": options},
            },
        }
        made = self.call("RunPodSandbox", config=config, runtime_handler=handler)
        try:
            yield Pod(self, made.pod_sandbox_id, config)
        finally:
            self.call("StopPodSandbox", pod_sandbox_id=made.pod_sandbox_id)
            self.call("RemovePodSandbox", pod_sandbox_id=made.pod_sandbox_id)


class Pod:
    """A pod sandbox."""

    def __init__(self, cri: Cri, name: str, config: Mapping[str, Any]) -> None:
        self._cri = cri
        self._name = name
        self._config = config

    def run(
        self,
        command: Sequence[str],
        image: str = PLAIN,
        envs: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> str:
        """Start a container of this pod, run a command in it, and remove it; return its output.

        ``fields`` are further ones of ContainerConfig.
        Raises: grpc.RpcError.
        """
        config = fields | {
            "metadata": {"name": f"container{next(COUNTER)}"},
            "image": {"image": image},
            "command": ["sleep", "1000"],
            "envs": [{"key": key, "value": value} for key, value in (envs or {}).items()],
            "linux": {"security_context": {"namespace_options": {"network": NODE}}},
        }
        made = self._cri.call(
            "CreateContainer", pod_sandbox_id=self._name, config=config, sandbox_config=self._config
        )
        container = {"container_id": made.container_id}
        try:
            self._cri.call("StartContainer", **container)
            done = self._cri.call("ExecSync", cmd=command, timeout=30, **container)
        finally:
            self._cri.call("StopContainer", timeout=0, **container)
            self._cri.call("RemoveContainer", **container)
        assert done.exit_code == 0, done.stderr
        return str(done.stdout.decode())
