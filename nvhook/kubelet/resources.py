"""What the kubelet counts: resources, and the devices in each. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nvhook.core.inventory import Device, MigDevice
from nvhook.errors import RequestError

SharingKind = Literal["none", "time-slicing", "mps"]
REPLICA = "::"


@dataclass(frozen=True, slots=True)
class Resource:
    """What the kubelet counts under one name.

    ``devices`` are in the order of their index; ``replicas`` says how often each is handed out, by
    UUID, 1 where it has no entry. ``one_only``: a container may not ask for two.
    """

    name: str
    devices: tuple[Device, ...]
    replicas: Mapping[str, int]
    sharing: SharingKind = "none"
    one_only: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids that the kubelet knows: a UUID, of a shared device ``uuid::0``, ``uuid::1``..."""
        return tuple(name for device in self.devices for name in self._ids_of(device))

    def _ids_of(self, device: Device) -> list[str]:
        if device.uuid not in self.replicas:
            return [device.uuid]
        return [f"{device.uuid}{REPLICA}{n}" for n in range(self.replicas[device.uuid])]

    def devices_of(self, ids: tuple[str, ...]) -> tuple[Device, ...]:
        """Return the devices behind ids, each once, in the order of their index.

        Raises: RequestError for an id this resource does not have.
        """
        known = set(self.ids)
        for each in ids:
            if each not in known:
                raise RequestError(f"{self.name} has no device {each}")
        wanted = {each.partition(REPLICA)[0] for each in ids}
        return tuple(device for device in self.devices if device.uuid in wanted)


def gpu_uuid(device: Device) -> str:
    """Return the UUID of the GPU that a device is, or is part of."""
    return device.gpu.uuid if isinstance(device, MigDevice) else device.uuid
