"""Calls of a gRPC service at a Unix socket, by the .proto file that describes it."""

from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc


class Client:
    """A client of one service. Names and fields are the file's; ``directory`` is for compiling."""

    def __init__(self, proto: Path, service: str, socket: Path, directory: Path) -> None:
        compiled = directory / f"{proto.stem}.binpb"
        options = [f"--proto_path={proto.parent}", f"--descriptor_set_out={compiled}"]
        assert protoc.main(["protoc", *options, proto.name]) == 0
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        methods = pool.FindServiceByName(service).methods
        self._methods = {method.name: method for method in methods}
        self._channel = grpc.insecure_channel(f"unix:{socket}")

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
