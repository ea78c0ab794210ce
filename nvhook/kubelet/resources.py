"""What the kubelet counts: resources, and the devices in each. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from nvhook.core.inventory import Device, Gpu, Inventory, MigDevice
from nvhook.errors import RequestError
from nvhook.formats.proc_driver import is_known_uuid
from nvhook.kubelet.names import GPU, SHARED_SUFFIX, mig_name
from nvhook.kubelet.selectors import fits, index_of, matches
from nvhook.kubelet.settings import NameRule, Settings, SharedResource, Sharing

SharingKind = Literal["none", "time-slicing", "mps"]
REPLICA = "::"
# The kubelet takes messages of up to 4 MiB. A device costs its id, and at most this beside it:
# lengths, health, NUMA node.
MAX_MESSAGE = 4 << 20
BESIDE_ID = 22


@dataclass(frozen=True, slots=True)
class Resource:
    """What the kubelet counts under one name.

    ``devices`` are in the order of their index; ``replicas`` says how often each is handed out, by
    UUID, and has no entry for a device that is not shared; ``numa`` has the NUMA nodes that are
    known, by UUID. ``one_only``: a container may not ask for two replicas.
    """

    name: str
    devices: tuple[Device, ...]
    replicas: Mapping[str, int]
    sharing: SharingKind = "none"
    one_only: bool = False
    numa: Mapping[str, int] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids that the kubelet knows: a UUID, of a shared device ``uuid::0``, ``uuid::1``..."""
        return tuple(name for device in self.devices for name in self.ids_of(device))

    @property
    def shared(self) -> tuple[Device, ...]:
        """The devices that are handed out more than once; the others are as without sharing."""
        return tuple(device for device in self.devices if device.uuid in self.replicas)

    def ids_of(self, device: Device) -> list[str]:
        """Return the ids of one of the devices."""
        if device.uuid not in self.replicas:
            return [device.uuid]
        return [f"{device.uuid}{REPLICA}{n}" for n in range(self.replicas[device.uuid])]

    def devices_of(self, ids: tuple[str, ...]) -> tuple[Device, ...]:
        """Return the devices behind ids, each once, in the order of their index.

        Raises: RequestError for an id this resource does not have.
        """
        wanted = {self._uuid_of(each) for each in ids}
        return tuple(device for device in self.devices if device.uuid in wanted)

    def _uuid_of(self, name: str) -> str:
        uuid, mark, number = name.partition(REPLICA)
        if any(device.uuid == uuid for device in self.devices):
            replicas = self.replicas.get(uuid)
            if replicas is None and not mark:
                return uuid
            canonical = number.isascii() and number.isdigit() and str(int(number)) == number
            if replicas is not None and canonical and int(number) < replicas:
                return uuid
        raise RequestError(f"{self.name} has no device {name}")


def gpu_uuid(device: Device) -> str:
    """Return the UUID of the GPU that a device is, or is part of."""
    return device.gpu.uuid if isinstance(device, MigDevice) else device.uuid


def build(
    settings: Settings,
    inventory: Inventory,
    numa: Mapping[str, int],
    partitioned: frozenset[str] = frozenset(),
) -> tuple[Resource, ...]:
    """Return the resources of a host, in the order of their first devices.

    ``numa`` has NUMA nodes by PCI bus id. ``partitioned`` are the UUIDs of GPUs in MIG mode, as far
    as known: such a GPU without MIG devices is no use. A device without a UUID is in no resource
    (``findings`` tells).

    Raises: RequestError where the MIG strategy or the sharing does not fit this host.
    """
    resources: dict[str, Resource] = {}
    for device, name in _named(settings, inventory, partitioned):
        _add(resources, Resource(name, (device,), {}))
    if settings.sharing is not None:
        resources = _shared(resources, settings.sharing)
    for resource in resources.values():
        _check_size(resource)
    return tuple(replace(each, numa=_numa(each.devices, numa)) for each in resources.values())


def findings(
    settings: Settings, inventory: Inventory, partitioned: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Return a line for everything that is left out, or set and without effect on this host.

    Raises: as build.
    """
    lines = [
        f"{_describe(device)} is left out: the driver does not tell its UUID yet"
        for device in _offered(settings, inventory, partitioned)
        if not is_known_uuid(device.uuid)
    ]
    lines += [
        f"{_describe(gpu)} is left out: in MIG mode, but without MIG devices"
        for gpu in inventory.gpus
        if settings.mig_strategy != "none"
        and gpu.uuid in partitioned
        and not _parts(gpu, inventory)
    ]
    named = _named(settings, inventory, partitioned)
    for shared in settings.sharing.resources if settings.sharing is not None else ():
        devices = [device for device, name in named if name == shared.name]
        what = f"sharing of {shared.name}"
        lines += [] if devices else [f"{what} has no effect: this host has none"]
        if devices and isinstance(shared.devices, tuple):
            lines += _unmatched(what, shared.devices, devices)
    everything: tuple[Device, ...] = (*inventory.gpus, *inventory.mig_devices)
    lines += _unmatched("include", settings.include, everything)
    lines += _unmatched("exclude", settings.exclude, everything)
    return tuple(lines)


def _unmatched(what: str, selectors: tuple[str, ...], devices: Iterable[Device]) -> list[str]:
    have = [*devices]
    return [
        f"{what}: no device is {selector}"
        for selector in selectors
        if not any(matches(device, selector) for device in have)
    ]


def _named(
    settings: Settings, inventory: Inventory, partitioned: frozenset[str]
) -> list[tuple[Device, str]]:
    """Return the devices to offer, and the resource each is in before sharing."""
    found: list[tuple[Device, str]] = []
    for device in _offered(settings, inventory, partitioned):
        if not is_known_uuid(device.uuid):
            continue
        if isinstance(device, MigDevice) and settings.mig_strategy == "mixed":
            ruled = _rule(settings.mig_names, device.profile, fnmatchcase)
            found.append((device, ruled or mig_name(device.profile)))
        else:
            gpu = device.gpu if isinstance(device, MigDevice) else device
            found.append((device, _rule(settings.gpu_names, gpu.model, fits) or GPU))
    return found


def _rule(rules: tuple[NameRule, ...], text: str, suits: Callable[[str, str], bool]) -> str | None:
    return next((rule.name for rule in rules if suits(text, rule.pattern)), None)


def _offered(
    settings: Settings, inventory: Inventory, partitioned: frozenset[str]
) -> tuple[Device, ...]:
    """Return what the MIG strategy makes of the GPUs, without what is filtered out, by index."""
    devices: list[Device] = []
    for gpu in inventory.gpus:
        parts = _parts(gpu, inventory) if settings.mig_strategy != "none" else ()
        if parts:
            devices += parts
        elif settings.mig_strategy == "none" or gpu.uuid not in partitioned:
            devices.append(gpu)
    kept = tuple(device for device in devices if _is_kept(device, settings))
    if settings.mig_strategy == "single":
        _check_single(kept)
    return kept


def _parts(gpu: Gpu, inventory: Inventory) -> tuple[MigDevice, ...]:
    return tuple(device for device in inventory.mig_devices if device.gpu_index == gpu.index)


def _is_kept(device: Device, settings: Settings) -> bool:
    included = not settings.include or any(matches(device, each) for each in settings.include)
    return included and not any(matches(device, each) for each in settings.exclude)


def _check_single(devices: tuple[Device, ...]) -> None:
    """Raise RequestError unless devices are all whole GPUs, or all MIG devices of one profile."""
    parts = [device for device in devices if isinstance(device, MigDevice)]
    whole = next((device for device in devices if isinstance(device, Gpu)), None)
    remedy = "partition all GPUs alike, exclude some, or use MIG strategy mixed"
    if parts and whole is not None:
        raise RequestError(
            f"MIG strategy single: GPU {parts[0].gpu_index} is partitioned,"
            f" GPU {whole.index} is not",
            remedy,
        )
    profiles = list(dict.fromkeys(part.profile for part in parts))
    if len(profiles) > 1:
        raise RequestError(f"MIG strategy single: profiles differ: {', '.join(profiles)}", remedy)


def _shared(resources: dict[str, Resource], sharing: Sharing) -> dict[str, Resource]:
    """Return resources with each device where sharing has it, shared or not."""
    left = {name: [*resource.devices] for name, resource in resources.items()}
    result: dict[str, Resource] = {}
    for shared in sharing.resources:
        devices = _chosen(shared, left.get(shared.name, []))
        if not devices:
            continue
        _check_mps(devices, sharing)
        left[shared.name] = [device for device in left[shared.name] if device not in devices]
        name = shared.rename or shared.name
        if sharing.rename_by_default and not shared.rename:
            name += SHARED_SUFFIX
        replicas = {device.uuid: shared.replicas for device in devices}
        fails = sharing.fail_requests_greater_than_one
        _add(result, Resource(name, tuple(devices), replicas, sharing.method, fails))
    for name, rest in left.items():
        if rest:
            _add(result, Resource(name, tuple(rest), {}))
    first = {name: min(map(_place, resource.devices)) for name, resource in result.items()}
    return {name: result[name] for name in sorted(result, key=lambda name: (first[name], name))}


def _chosen(shared: SharedResource, devices: list[Device]) -> list[Device]:
    if isinstance(shared.devices, int):
        return devices[: shared.devices]
    if shared.devices == "all":
        return devices
    selectors = shared.devices
    return [device for device in devices if any(matches(device, each) for each in selectors)]


def _add(resources: dict[str, Resource], more: Resource) -> None:
    """Put devices into the resource of their name."""
    old = resources.get(more.name)
    if old is None:
        resources[more.name] = more
        return
    shared = old if old.sharing != "none" else more
    resources[more.name] = Resource(
        more.name,
        tuple(sorted((*old.devices, *more.devices), key=_place)),
        {**old.replicas, **more.replicas},
        shared.sharing,
        shared.one_only,
    )


def _place(device: Device) -> tuple[int, int]:
    return (device.gpu_index, device.index) if isinstance(device, MigDevice) else (device.index, -1)


def _check_mps(devices: list[Device], sharing: Sharing) -> None:
    part = next((device for device in devices if isinstance(device, MigDevice)), None)
    if sharing.method == "mps" and part is not None:
        raise RequestError(
            f"MPS can't share MIG device {part.name}", "share it by time-slicing, or the whole GPU"
        )


def _check_size(resource: Resource) -> None:
    counts = [(device, resource.replicas.get(device.uuid, 1)) for device in resource.devices]
    size = sum(n * (len(f"{device.uuid}{REPLICA}{n}") + BESIDE_ID) for device, n in counts)
    if size > MAX_MESSAGE:
        count = sum(n for _, n in counts)
        most = count * MAX_MESSAGE // size // 1000 * 1000
        raise RequestError(
            f"{resource.name} would be {count} devices, more than a kubelet takes",
            f"configure fewer replicas: {most} in all is the most",
        )


def _numa(devices: tuple[Device, ...], numa: Mapping[str, int]) -> dict[str, int]:
    buses = {
        device.uuid: (device.gpu if isinstance(device, MigDevice) else device).pci_bus_id
        for device in devices
    }
    return {uuid: numa[bus_id] for uuid, bus_id in buses.items() if numa.get(bus_id, -1) >= 0}


def _describe(device: Device) -> str:
    kind = "MIG device" if isinstance(device, MigDevice) else "GPU"
    return f"{kind} {index_of(device)}"
