"""Requested ids and the GPUs of a host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.core.given import having
from nvhook.core.inventory import Gpu, Inventory, MigDevice
from nvhook.core.selection import may_mean_mig, select
from nvhook.errors import HostError, NvhookError, RequestError

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
MUTE = tuple([each.replace(index=-1, uuid="", profile="") for each in MIG])


def host(*gpus: Gpu, mig_devices: tuple[MigDevice, ...] = ()) -> Inventory:
    majors = {"nvidia": 195, "nvidia-caps": 235}
    empty = ((), (), (), {})
    return Inventory("550.54.14", "12.4", "/", "/proc", majors, gpus, *empty, mig_devices)


def indices(*devices: str, gpus: tuple[Gpu, ...] = GPUS) -> list[int]:
    return [gpu.index for gpu in select(devices, host(*gpus))]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ((), []),
        (("all",), [0, 1, 2, 3]),
        (("1",), [1]),
        (("2", "0"), [0, 2]),
        (("GPU-BBBBBBBB-0000-0000-0000-000000000000",), [1]),
        (("gpu-cccccccc-0000-0000-0000-000000000000", "2"), [2]),
        (("0000:0a:00.0",), [1]),
        (("00000000:0A:00.0",), [1]),
        (("0a:00.0",), [1]),
        (("000010DE:4E:00.0",), [3]),
        (("10de:4e:00.0", "0", "07:00.0"), [0, 3]),
    ],
)
def test_found_in_host_order_and_once(devices: tuple[str, ...], expected: list[int]) -> None:
    assert indices(*devices) == expected


@pytest.mark.parametrize(
    "name",
    [
        "4",
        "99999999999999999999",
        "-1",
        "+1",
        "1.0",
        "\u0661",  # a digit, but not an ASCII one
        "GPU-aaaaaaaa",  # a prefix is not a name
        "GPU-aaaaaaaa-0000-0000-0000-0000000000001",
        "GPU-????????-????-????-????-????????????",  # the same for every GPU that has none
        "4e:00.0",  # domain 0 is not 10de
        "0000:0a:00.1",
        "0000:0a:00",
        "000000000:0a:00.0",
        "/dev/nvidia0",
        "../nvidia0",
        "nvidia0",
        "no-gpu-has-10MiB-to-run",
        "ALL",
        "all ",
        "x" * 5000,
        "a\x1b[31m\nb",
    ],
)
def test_unknown_id_refuses_the_whole_request(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        indices("0", name)
    line = f"nvhook: {caught.value}"
    assert line.startswith("nvhook: unknown device id ")
    assert line.endswith("(hint: this host has 0-3; nvhook list shows them)")
    assert line.isprintable()
    assert len(line) < 300


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (("0:0",), [MIG[0]]),
        (("0:1",), [MIG[1]]),
        (("2:0",), [MIG[2]]),
        (("00:01",), [MIG[1]]),
        (("MIG-e8c4bf14-4d33-3495-5d46-af783b52901a",), [MIG[0]]),
        (("mig-AAAAAAAA-4d33-3495-5d46-af783b52901a",), [MIG[1]]),
        (("MIG-GPU-cccccccc-0000-0000-0000-000000000000/9/1",), [MIG[2]]),
        (("MIG-GPU-AAAAAAAA-0000-0000-0000-000000000000/1/0",), [MIG[1]]),
        (("2:0", "1", "0:1", "0:1", MIG[1].uuid), [MIG[1], GPUS[1], MIG[2]]),
        (("0:0", "0"), [GPUS[0], MIG[0]]),
        (("0",), [GPUS[0]]),  # a GPU with MIG devices may be asked for as a whole
        (("all",), [GPUS[0], *MIG[:2], GPUS[1], GPUS[2], MIG[2], GPUS[3]]),
    ],
)
def test_mig_devices_in_host_order_after_their_gpu(
    devices: tuple[str, ...], expected: list[object]
) -> None:
    assert [*select(devices, host(*GPUS, mig_devices=MIG))] == expected
    assert may_mean_mig(devices) is (devices != ("0",))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("0:2", "GPU 0 has MIG devices 0:0, 0:1; nvhook list shows them"),
        ("1:0", "GPU 1 has no MIG device: make one with nvidia-smi mig, or ask for a whole GPU"),
        ("9:0", "this host has 0-3; nvhook list shows them"),
        ("99999999999999:0", "this host has 0-3; nvhook list shows them"),
        ("MIG-x", "this host has MIG devices 0:0, 0:1, 2:0; nvhook list shows them"),
        ("MIG-0:0", "this host has MIG devices 0:0, 0:1, 2:0; nvhook list shows them"),
        (
            "MIG-GPU-aaaaaaaa-0000-0000-0000-000000000000/1/1",
            "this host has MIG devices 0:0, 0:1, 2:0; nvhook list shows them",
        ),
        ("MIG-" + "x" * 5000, "this host has MIG devices 0:0, 0:1, 2:0; nvhook list shows them"),
    ],
)
def test_an_unknown_mig_device_refuses_the_whole_request(name: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        select(("0", name), host(*GPUS, mig_devices=MIG))
    line = f"nvhook: {caught.value}"
    assert line.startswith("nvhook: unknown device id " + name[:90])
    assert line.endswith(f"(hint: {hint})")
    assert len(line) < 300


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
