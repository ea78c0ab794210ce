"""Requested ids and the GPUs of a host, beyond the rows of test_request_table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.core.given import having
from nvhook.core.inventory import Gpu, Inventory, MigDevice
from nvhook.core.selection import may_mean_mig, select
from nvhook.errors import HostError, NvhookError, RequestError
from nvhook.record import replace

# Minors are not indices: PCI order and probe order differ on real hosts.
GPUS = (
    Gpu(0, "GPU-aaaaaaaa-0000-0000-0000-000000000000", 2, "0000:07:00.0", "A"),
    Gpu(1, "GPU-bbbbbbbb-0000-0000-0000-000000000000", 0, "0000:0a:00.0", "A"),
    Gpu(2, "GPU-cccccccc-0000-0000-0000-000000000000", 1, "0000:47:00.0", "A"),
    Gpu(3, "GPU-????????-????-????-????-????????????", 3, "10de:4e:00.0", "A"),
)


def mig(gpu: int, index: int, uuid: str, gi: int, ci: int, minor: int) -> MigDevice:
    return MigDevice(GPUS[gpu], index, uuid, "1g.10gb", gi, ci, minor, minor + 1)


# NVML's order is not that of the ids.
MIG = (
    mig(0, 0, "MIG-e8c4bf14-4d33-3495-5d46-af783b52901a", 7, 0, 70),
    mig(0, 1, "MIG-aaaaaaaa-4d33-3495-5d46-af783b52901a", 1, 0, 20),
    mig(2, 0, "MIG-GPU-cccccccc-0000-0000-0000-000000000000/9/1", 9, 1, 90),  # driver 460
)
MUTE = tuple([replace(each, index=-1, uuid="", profile="") for each in MIG])


def host(*gpus: Gpu, mig_devices: tuple[MigDevice, ...] = ()) -> Inventory:
    majors = {"nvidia": 195, "nvidia-caps": 235}
    empty = ((), (), (), {})
    return Inventory("550.54.14", "12.4", "/", "/proc", majors, gpus, *empty, mig_devices)


def indices(*devices: str, gpus: tuple[Gpu, ...] = GPUS) -> list[int]:
    return [gpu.index for gpu in select(devices, host(*gpus))]


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("all", True),
        ("0:1", True),
        ("MIG-x", True),
        ("mig-x", True),
        ("0", False),
        ("GPU-x", False),
    ],
)
def test_what_may_mean_a_mig_device(name: str, may: bool) -> None:
    """Only for those a container pays for MIG."""
    assert may_mean_mig((name,)) is may


@pytest.mark.parametrize(
    "name", ["0:0", "MIG-x", "MIG-GPU-aaaaaaaa-0000-0000-0000-000000000000/1/0"]
)
def test_a_mig_device_of_a_host_without_any(name: str) -> None:
    with pytest.raises(RequestError, match=f"unknown device id {name} .*has no MIG device"):
        indices(name)


def test_where_nvml_does_not_answer_only_ids_and_all_name_a_mig_device() -> None:
    mute = host(*GPUS, mig_devices=MUTE)
    for name in ("0:0", MIG[0].uuid):
        with pytest.raises(HostError, match="NVML does not tell which MIG device is"):
            select((name,), mute)
    # ctk203: the old form, though newer drivers call them differently.
    old = "MIG-GPU-aaaaaaaa-0000-0000-0000-000000000000/1/0"
    assert select((old,), mute) == (MUTE[1],)
    assert select(("all",), mute) == (GPUS[0], *MUTE[:2], GPUS[1], GPUS[2], MUTE[2], GPUS[3])


def test_a_container_has_the_devices_whose_nodes_are_all_there() -> None:
    inventory = host(*GPUS, mig_devices=MIG)
    gpu = (195, GPUS[0].minor)
    assert having(frozenset({gpu, (235, 20), (235, 21)}), inventory) == (GPUS[0], MIG[1])
    assert having(frozenset({gpu, (235, 20), (235, 71)}), inventory) == (GPUS[0],)
    assert having(frozenset({(235, 20), (235, 21), (1, 3)}), inventory) == ()


def test_enroot207_host_indices_are_refused_as_a_whole() -> None:
    with pytest.raises(RequestError) as caught:
        indices("0", "1", "4", "5")
    assert str(caught.value) == (
        "unknown device id 4 (hint: this host has 0-3; nvhook list shows them)"
    )


def test_host_without_gpu() -> None:
    assert indices(gpus=()) == []
    with pytest.raises(HostError, match="this host has no NVIDIA GPU"):
        indices("all", gpus=())
    with pytest.raises(RequestError, match="this host has no GPU"):
        indices("0", gpus=())


def test_hint_names_what_exists() -> None:
    with pytest.raises(RequestError, match="this host has only 0;"):
        indices("1", gpus=GPUS[:1])


@given(st.lists(st.text(), max_size=4))
def test_arbitrary_ids_raise_only_nvhook_errors(names: list[str]) -> None:
    line = ""
    found: list[int] = []
    try:
        found = indices(*names)
    except NvhookError as error:
        line = f"nvhook: {error}"
    assert found == sorted(set(found))
    assert len(line) < 300
