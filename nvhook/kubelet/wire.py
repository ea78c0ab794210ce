"""The protocol between kubelet and plugin: messages <-> values. Nothing else knows messages.

The build compiles deviceplugin.proto to a descriptor set; the message classes are made of that
here, by the protobuf that is installed, in a pool of their own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Protocol

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from nvhook.errors import FormatError

VERSION = "v1beta1"
REGISTER = f"/{VERSION}.Registration/Register"
SERVICE = f"{VERSION}.DevicePlugin"


class Mount(Protocol):
    """A mount of an answer."""

    @property
    def container_path(self) -> str: ...
    @property
    def host_path(self) -> str: ...
    @property
    def read_only(self) -> bool: ...


class DeviceSpec(Protocol):
    """A device node of an answer; permissions are some of r, w and m."""

    @property
    def container_path(self) -> str: ...
    @property
    def host_path(self) -> str: ...
    @property
    def permissions(self) -> str: ...


class Answer(Protocol):
    """What the kubelet shall give a container."""

    @property
    def envs(self) -> Mapping[str, str]: ...
    @property
    def mounts(self) -> Iterable[Mount]: ...
    @property
    def devices(self) -> Iterable[DeviceSpec]: ...
    @property
    def annotations(self) -> Mapping[str, str]: ...
    @property
    def cdi_devices(self) -> Iterable[str]: ...


@dataclass(frozen=True, slots=True)
class Listed:
    """A device as the kubelet sees it; ``numa`` is its node, None where it is unknown."""

    id: str
    healthy: bool
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class Preference:
    """Which ``size`` of the ``available`` ids, ``must_include`` among them, are the best?"""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


def _messages() -> dict[str, type[Message]]:
    pool = descriptor_pool.DescriptorPool()
    data = files(__package__).joinpath("deviceplugin.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    names = pool.FindFileByName("deviceplugin.proto").message_types_by_name
    return {name: message_factory.GetMessageClass(names[name]) for name in names}


MESSAGES = _messages()


def _parse(name: str, data: bytes) -> Message:
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError:
        raise FormatError(f"these bytes are no {name}") from None


# ---- what the plugin sends ----


def register_request(endpoint: str, resource: str) -> bytes:
    """Return the bytes of a registration; endpoint is a file name in the kubelet's directory."""
    return MESSAGES["RegisterRequest"](
        version=VERSION, endpoint=endpoint, resource_name=resource, options=_options()
    ).SerializeToString()


def options() -> bytes:
    """Return the bytes of what this plugin can: it is asked which devices it prefers."""
    return _options().SerializeToString()


def _options() -> Message:
    return MESSAGES["DevicePluginOptions"](get_preferred_allocation_available=True)


def device_list(devices: Iterable[Listed]) -> bytes:
    """Return the bytes of a list, which is always the whole list."""
    response = MESSAGES["ListAndWatchResponse"]()
    for each in devices:
        health = "Healthy" if each.healthy else "Unhealthy"
        device = response.devices.add(ID=each.id, health=health)  # type: ignore[attr-defined]
        if each.numa is not None:
            device.topology.nodes.add(ID=each.numa)
    return response.SerializeToString()


def allocations(answers: Iterable[Answer]) -> bytes:
    """Return the bytes of the answers to allocation requests, in their order.

    The same answer has the same bytes, always: the kubelet remembers them.
    """
    responses = [
        MESSAGES["ContainerAllocateResponse"](
            envs=dict(answer.envs),
            mounts=[
                MESSAGES["Mount"](
                    container_path=each.container_path,
                    host_path=each.host_path,
                    read_only=each.read_only,
                )
                for each in answer.mounts
            ],
            devices=[
                MESSAGES["DeviceSpec"](
                    container_path=each.container_path,
                    host_path=each.host_path,
                    permissions=each.permissions,
                )
                for each in answer.devices
            ],
            annotations=dict(answer.annotations),
            cdi_devices=[MESSAGES["CDIDevice"](name=name) for name in answer.cdi_devices],
        )
        for answer in answers
    ]
    message = MESSAGES["AllocateResponse"](container_responses=responses)
    return message.SerializeToString(deterministic=True)


def preferences(chosen: Iterable[Iterable[str]]) -> bytes:
    """Return the bytes of the ids chosen for each request, in their order."""
    responses = [
        MESSAGES["ContainerPreferredAllocationResponse"](deviceIDs=list(ids)) for ids in chosen
    ]
    return MESSAGES["PreferredAllocationResponse"](
        container_responses=responses
    ).SerializeToString()


# ---- what the kubelet sends ----


def parse_allocate(data: bytes) -> list[tuple[str, ...]]:
    """Return the ids that each request wants.

    Raises: FormatError.
    """
    request = _parse("AllocateRequest", data)
    return [tuple(each.devices_ids) for each in request.container_requests]  # type: ignore[attr-defined]


def parse_preference(data: bytes) -> list[Preference]:
    """Return each request for a preference.

    Raises: FormatError.
    """
    request = _parse("PreferredAllocationRequest", data)
    return [
        Preference(
            tuple(each.available_deviceIDs),
            tuple(each.must_include_deviceIDs),
            each.allocation_size,
        )
        for each in request.container_requests  # type: ignore[attr-defined]
    ]
