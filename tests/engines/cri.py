"""A client of the Container Runtime Interface, as the kubelet is one."""

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from tests.engines.images import PLAIN

PROTO = Path(__file__).with_name("cri.proto")
NODE = 2  # NamespaceMode: a pod in the host's network needs no CNI
COUNTER = itertools.count()


class Cri:
    """The service of cri.proto at a socket. Names and fields are the file's."""

    def __init__(self, socket: Path, cgroup: str, directory: Path) -> None:
        compiled = directory / "cri.binpb"
        options = [f"--proto_path={PROTO.parent}", f"--descriptor_set_out={compiled}"]
        assert protoc.main(["protoc", *options, PROTO.name]) == 0
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        service = pool.FindServiceByName("runtime.v1.RuntimeService")
        self._methods = {method.name: method for method in service.methods}
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self._cgroup = cgroup

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def call(self, name: str, **fields: Any) -> Any:
        """Call a method with a request of these fields; nested messages are dictionaries.

        Raises: grpc.RpcError.
        """
        method = self._methods[name]
        request, answer = map(
            message_factory.GetMessageClass, (method.input_type, method.output_type)
        )
        stub = self._channel.unary_unary(
            f"/{method.containing_service.full_name}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return stub(request(**fields), timeout=60)

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
