"""The kubelet's protocol: numbers and names, and what becomes of values."""

import pytest

from nvhook.errors import FormatError
from nvhook.kubelet import wire
from nvhook.kubelet.answers import Answer, DeviceSpec, Mount

# Source: kubernetes reference, section 1.1.
FIELDS = {
    "RegisterRequest": ["version", "endpoint", "resource_name", "options"],
    "DevicePluginOptions": ["pre_start_required", "get_preferred_allocation_available"],
    "Empty": [],
    "ListAndWatchResponse": ["devices"],
    "Device": ["ID", "health", "topology"],
    "TopologyInfo": ["nodes"],
    "NUMANode": ["ID"],
    "PreferredAllocationRequest": ["container_requests"],
    "ContainerPreferredAllocationRequest": [
        "available_deviceIDs",
        "must_include_deviceIDs",
        "allocation_size",
    ],
    "PreferredAllocationResponse": ["container_responses"],
    "ContainerPreferredAllocationResponse": ["deviceIDs"],
    "AllocateRequest": ["container_requests"],
    "ContainerAllocateRequest": ["devices_ids"],
    "AllocateResponse": ["container_responses"],
    "ContainerAllocateResponse": ["envs", "mounts", "devices", "annotations", "cdi_devices"],
    "Mount": ["container_path", "host_path", "read_only"],
    "DeviceSpec": ["container_path", "host_path", "permissions"],
    "CDIDevice": ["name"],
    "PreStartContainerRequest": ["devices_ids"],
    "PreStartContainerResponse": [],
}


def test_messages_and_field_numbers_are_those_of_the_protocol() -> None:
    found = {
        name: {field.number: field.name for field in message.DESCRIPTOR.fields}
        for name, message in wire.MESSAGES.items()
    }
    assert found == {name: dict(enumerate(fields, 1)) for name, fields in FIELDS.items()}
    assert {message.DESCRIPTOR.full_name for message in wire.MESSAGES.values()} == {
        f"v1beta1.{name}" for name in FIELDS
    }


def test_a_registration_is_what_a_kubelet_expects_byte_for_byte() -> None:
    assert wire.register_request("a.sock", "nvidia.com/gpu") == (
        b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x0envidia.com/gpu\x22\x02\x10\x01"
    )


def test_a_list_has_health_and_the_numa_nodes_that_are_known() -> None:
    devices = [wire.Listed("a", True, 0), wire.Listed("b", False)]
    message = wire.MESSAGES["ListAndWatchResponse"].FromString(wire.device_list(devices))
    first, second = message.devices
    assert (first.ID, first.health, [node.ID for node in first.topology.nodes]) == (
        "a",
        "Healthy",
        [0],
    )
    assert (second.ID, second.health) == ("b", "Unhealthy")
    assert not second.HasField("topology")


def test_an_answer_has_everything() -> None:
    answer = Answer(
        {"A": "1"},
        (Mount("/in", "/out", False),),
        (DeviceSpec("/dev/nvidia0", "/host/dev/nvidia0"),),
        {"key": "value"},
        ("vendor/class=name",),
    )
    message = wire.MESSAGES["AllocateResponse"].FromString(wire.allocations([answer, Answer()]))
    first, second = message.container_responses
    assert dict(first.envs) == {"A": "1"}
    (mount,) = first.mounts
    assert (mount.container_path, mount.host_path, mount.read_only) == ("/in", "/out", False)
    (device,) = first.devices
    assert (device.host_path, device.permissions) == ("/host/dev/nvidia0", "rw")
    assert dict(first.annotations) == {"key": "value"}
    assert [each.name for each in first.cdi_devices] == ["vendor/class=name"]
    assert not second.envs


def test_the_order_of_variables_does_not_change_the_bytes() -> None:
    names = [f"NVIDIA_{n}" for n in range(50)]
    forward = Answer(dict.fromkeys(names, "1"))
    backward = Answer(dict.fromkeys(reversed(names), "1"))
    assert wire.allocations([forward]) == wire.allocations([backward])


@pytest.mark.parametrize("parse", [wire.parse_allocate, wire.parse_preference])
def test_what_is_no_message_is_a_format_error(parse) -> None:
    assert parse(b"") == []
    with pytest.raises(FormatError, match="these bytes are no"):
        parse(b"\xff\xff")


def test_requests_are_read() -> None:
    request = wire.MESSAGES["PreferredAllocationRequest"]()
    request.container_requests.add(
        available_deviceIDs=["a", "b"], must_include_deviceIDs=["b"], allocation_size=2
    )
    assert wire.parse_preference(request.SerializeToString()) == [
        wire.Preference(("a", "b"), ("b",), 2)
    ]
