"""Requested ids and the GPUs of a host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.core.inventory import Gpu, Inventory
from nvhook.core.selection import select
from nvhook.errors import HostError, NvhookError, RequestError, UnsupportedError

# Minors are not indices: PCI order and probe order differ on real hosts.
GPUS = (
    Gpu(0, "GPU-aaaaaaaa-0000-0000-0000-000000000000", 2, "0000:07:00.0", "A"),
    Gpu(1, "GPU-bbbbbbbb-0000-0000-0000-000000000000", 0, "0000:0a:00.0", "A"),
    Gpu(2, "GPU-cccccccc-0000-0000-0000-000000000000", 1, "0000:47:00.0", "A"),
    Gpu(3, "GPU-????????-????-????-????-????????????", 3, "10de:4e:00.0", "A"),
)


def host(*gpus: Gpu) -> Inventory:
    majors = {"nvidia": 195}
    return Inventory("550.54.14", "12.4", "/", "/proc", majors, gpus, (), (), (), {})


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
    "name", ["MIG-e8c4bf14-4d33-3495-5d46-af783b52901a", "0:0", "12:34", "mig-x"]
)
def test_mig_is_refused_until_it_works(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"MIG device {name} is not supported yet"):
        indices(name)


def test_ctk203_old_mig_name_is_named_in_the_error() -> None:
    name = "MIG-GPU-aaaaaaaa-0000-0000-0000-000000000000/1/0"
    with pytest.raises(UnsupportedError, match=name):
        indices(name)


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
