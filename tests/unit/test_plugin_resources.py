"""What the kubelet counts on a host: names, devices, replicas."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.core.inventory import Inventory
from nvhook.errors import RequestError
from nvhook.kubelet.names import full_name, mig_name
from nvhook.kubelet.resources import Resource, build, findings, gpu_uuid
from nvhook.kubelet.selectors import index_of, matches
from nvhook.kubelet.settings import NameRule, Settings, SharedResource, Sharing
from tests.unit.plugin_hosts import A100, T4, gpu, host, mig

UNKNOWN = "GPU-????????-????-????-????-????????????"
G0, G1, G2, G3 = gpu(0), gpu(1), gpu(2, T4), gpu(3, T4)
WHOLE = host(G0, G1, G2, G3)
PARTS = (mig(G0, 0), mig(G0, 1), mig(G1, 0), mig(G1, 1))
SINGLE = host(G0, G1, mig_devices=PARTS)
MIXED = host(G0, G1, G2, mig_devices=(mig(G0, 0, "3g.20gb"), mig(G0, 1), mig(G0, 2, "1g.5gb+me")))


def shared(replicas: int, devices: object = "all", rename: str = "", name: str = "nvidia.com/gpu"):
    """Return what is shared, briefly."""
    return SharedResource(name, replicas, rename, devices)  # type: ignore[arg-type]


def sharing(*resources: SharedResource, renames: bool = False, **more: object) -> Sharing:
    return Sharing("time-slicing", resources, renames, **more)  # type: ignore[arg-type]


def seen(settings: Settings, inventory: Inventory) -> dict[str, list[str]]:
    """Return by resource the indices, each with its count of replicas: ``0``, ``0:1x4``."""
    return {
        each.name: [
            index_of(device)
            + (f"x{each.replicas[device.uuid]}" if device.uuid in each.replicas else "")
            for device in each.devices
        ]
        for each in build(settings, inventory, {})
    }


def names(*rules: tuple[str, str]) -> tuple[NameRule, ...]:
    return tuple(NameRule(pattern, full_name(name)) for pattern, name in rules)


CASES: list[tuple[str, Settings, Inventory, dict[str, list[str]]]] = [
    ("every GPU is a gpu", Settings(), WHOLE, {"nvidia.com/gpu": ["0", "1", "2", "3"]}),
    ("none: partitioned ones, too", Settings(), SINGLE, {"nvidia.com/gpu": ["0", "1"]}),
    ("no GPU, no resource", Settings(), host(), {}),
    ("single without MIG", Settings("single"), WHOLE, {"nvidia.com/gpu": ["0", "1", "2", "3"]}),
    (
        "single: MIG devices are called gpu",
        Settings("single"),
        SINGLE,
        {"nvidia.com/gpu": ["0:0", "0:1", "1:0", "1:1"]},
    ),
    (
        "mixed: by profile, whole GPUs are gpu",
        Settings("mixed"),
        MIXED,
        {
            "nvidia.com/mig-3g.20gb": ["0:0"],
            "nvidia.com/mig-1g.5gb": ["0:1"],
            "nvidia.com/mig-1g.5gb.me": ["0:2"],
            "nvidia.com/gpu": ["1", "2"],
        },
    ),
    (
        "names by model, the first rule that fits",
        Settings(gpu_names=names(("A100-SXM4-40GB", "a100"), ("*", "other"))),
        WHOLE,
        {"nvidia.com/a100": ["0", "1"], "nvidia.com/other": ["2", "3"]},
    ),
    (
        "models of no rule stay gpu",
        Settings(gpu_names=names(("NVIDIA A100*", "a100"))),
        WHOLE,
        {"nvidia.com/a100": ["0", "1"], "nvidia.com/gpu": ["2", "3"]},
    ),
    (
        "a pattern is for the whole model",
        Settings(gpu_names=names(("A100", "a100"))),
        WHOLE,
        {"nvidia.com/gpu": ["0", "1", "2", "3"]},
    ),
    (
        "names by profile, which does not mean its +me",
        Settings("mixed", mig_names=names(("1g.5gb", "small"), ("3g*", "big"))),
        MIXED,
        {
            "nvidia.com/big": ["0:0"],
            "nvidia.com/small": ["0:1"],
            "nvidia.com/mig-1g.5gb.me": ["0:2"],
            "nvidia.com/gpu": ["1", "2"],
        },
    ),
    (
        "single takes the GPU's name",
        Settings("single", gpu_names=names(("*A100*", "a100"))),
        SINGLE,
        {"nvidia.com/a100": ["0:0", "0:1", "1:0", "1:1"]},
    ),
    ("include by index", Settings(include=("1", "3")), WHOLE, {"nvidia.com/gpu": ["1", "3"]}),
    ("include by UUID", Settings(include=(G2.uuid.upper(),)), WHOLE, {"nvidia.com/gpu": ["2"]}),
    ("include by model", Settings(include=("Tesla*",)), WHOLE, {"nvidia.com/gpu": ["2", "3"]}),
    ("exclude by bus id", Settings(exclude=("08:00.0",)), SINGLE, {"nvidia.com/gpu": ["0"]}),
    (
        "exclude wins",
        Settings(include=("A100*",), exclude=("00000000:07:00.0",)),
        WHOLE,
        {"nvidia.com/gpu": ["1"]},
    ),
    (
        "an excluded GPU's parts go with it, a part goes alone",
        Settings("single", exclude=("0", "1:1")),
        SINGLE,
        {"nvidia.com/gpu": ["1:0"]},
    ),
    (
        "single goes by what is left",
        Settings("single", exclude=("T4", "Tesla T4")),
        host(G0, G2, mig_devices=(mig(G0, 0),)),
        {"nvidia.com/gpu": ["0:0"]},
    ),
    (
        "shared, the same name",
        Settings(sharing=sharing(shared(4))),
        host(G0, G1),
        {"nvidia.com/gpu": ["0x4", "1x4"]},
    ),
    (
        "renamed by default",
        Settings(sharing=sharing(shared(4), renames=True)),
        host(G0, G1),
        {"nvidia.com/gpu.shared": ["0x4", "1x4"]},
    ),
    (
        "a name of its own wins over the default one; others stay",
        Settings(sharing=sharing(shared(8, ("0",), "nvidia.com/gpu-0"), renames=True)),
        host(G0, G1),
        {"nvidia.com/gpu-0": ["0x8"], "nvidia.com/gpu": ["1"]},
    ),
    (
        "some of a resource, the same name",
        Settings(sharing=sharing(shared(2, 1))),
        WHOLE,
        {"nvidia.com/gpu": ["0x2", "1", "2", "3"]},
    ),
    (
        "counts by model",
        Settings(sharing=sharing(shared(4, ("A100*",)), shared(2, ("Tesla T4",)))),
        WHOLE,
        {"nvidia.com/gpu": ["0x4", "1x4", "2x2", "3x2"]},
    ),
    (
        "the first that names a device has it",
        Settings(sharing=sharing(shared(4, (G3.uuid, "0000:08:00.0")), shared(2))),
        WHOLE,
        {"nvidia.com/gpu": ["0x2", "1x4", "2x2", "3x4"]},
    ),
    (
        "more wanted than there are",
        Settings(sharing=sharing(shared(2, 9))),
        host(G0),
        {"nvidia.com/gpu": ["0x2"]},
    ),
    (
        "MIG devices are shared by their resource, single ones by their index",
        Settings(
            "mixed",
            sharing=sharing(
                shared(2, name="nvidia.com/mig-1g.5gb"), shared(3, ("1",)), renames=True
            ),
        ),
        MIXED,
        {
            "nvidia.com/mig-3g.20gb": ["0:0"],
            "nvidia.com/mig-1g.5gb.shared": ["0:1x2"],
            "nvidia.com/mig-1g.5gb.me": ["0:2"],
            "nvidia.com/gpu.shared": ["1x3"],
            "nvidia.com/gpu": ["2"],
        },
    ),
    (
        "MIG devices by their own index",
        Settings("single", sharing=sharing(shared(2, ("0:1", "1")))),
        SINGLE,
        {"nvidia.com/gpu": ["0:0", "0:1x2", "1:0x2", "1:1x2"]},
    ),
    (
        "two names that meet are one resource",
        Settings(
            gpu_names=names(("A100*", "a"), ("*", "b")),
            sharing=sharing(shared(2, "all", "nvidia.com/b", "nvidia.com/a")),
        ),
        WHOLE,
        {"nvidia.com/b": ["0x2", "1x2", "2", "3"]},
    ),
    (
        "a GPU without a UUID is in no resource",
        Settings(),
        host(G0, gpu(1, uuid=UNKNOWN)),
        {"nvidia.com/gpu": ["0"]},
    ),
]


@pytest.mark.parametrize(
    ("settings", "inventory", "expected"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_resources(
    settings: Settings, inventory: Inventory, expected: dict[str, list[str]]
) -> None:
    assert seen(settings, inventory) == expected
    assert [*seen(settings, inventory)] == [*expected]


@pytest.mark.parametrize(
    ("settings", "inventory", "words"),
    [
        (Settings("single"), MIXED, "GPU 0 is partitioned, GPU 1 is not"),
        (
            Settings("single"),
            host(G0, mig_devices=(mig(G0, 0), mig(G0, 1, "2g.10gb"))),
            "profiles differ: 1g.5gb, 2g.10gb",
        ),
        (
            Settings("single", sharing=Sharing("mps", (shared(2),))),
            SINGLE,
            "MPS can't share MIG device 0:0",
        ),
        (Settings(sharing=sharing(shared(16384))), WHOLE, "would be 65536 devices, more than"),
    ],
)
def test_what_does_not_fit_is_refused(settings: Settings, inventory: Inventory, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        build(settings, inventory, {})


def test_a_list_of_the_most_replicas_is_still_taken() -> None:
    (resource,) = build(Settings(sharing=sharing(shared(16384))), host(G0, G1), {})
    assert len(resource.ids) == 32768


def test_a_partitioned_gpu_without_parts_is_left_out_and_told() -> None:
    settings = Settings("mixed")
    partitioned = frozenset({G1.uuid})
    (resource, *rest) = build(settings, host(G0, G1), {}, partitioned)
    assert ([index_of(device) for device in resource.devices], rest) == (["0"], [])
    assert findings(settings, host(G0, G1), partitioned) == (
        "GPU 1 is left out: in MIG mode, but without MIG devices",
    )
    assert len(build(Settings(), host(G0, G1), {}, partitioned)[0].devices) == 2


def test_what_is_said_in_vain_is_told() -> None:
    settings = Settings(
        "mixed",
        include=("0", "1", "L40*"),
        exclude=("9",),
        sharing=sharing(shared(2, ("GPU-x", "0")), shared(2, name="nvidia.com/mig-1g.5gb")),
    )
    assert findings(settings, host(G0, gpu(1, uuid=UNKNOWN))) == (
        "GPU 1 is left out: the driver does not tell its UUID yet",
        "sharing of nvidia.com/gpu: no device is GPU-x",
        "sharing of nvidia.com/mig-1g.5gb has no effect: this host has none",
        "include: no device is L40*",
        "exclude: no device is 9",
    )
    assert findings(Settings(sharing=sharing(shared(2, ("A100*",)))), WHOLE) == ()


def test_sharing_is_told_with_the_resource() -> None:
    settings = Settings(
        sharing=Sharing("mps", (shared(2, 1),), fail_requests_greater_than_one=True)
    )
    (resource,) = build(settings, WHOLE, {})
    assert (resource.sharing, resource.one_only) == ("mps", True)
    (plain,) = build(Settings(), WHOLE, {})
    assert (plain.sharing, plain.one_only, plain.replicas) == ("none", False, {})


def test_numa_nodes_are_by_uuid_and_unknown_ones_are_left_out() -> None:
    numa = {G0.pci_bus_id: 0, G1.pci_bus_id: -1, G2.pci_bus_id: 1}
    (resource,) = build(Settings(), WHOLE, numa)
    assert resource.numa == {G0.uuid: 0, G2.uuid: 1}
    (parts,) = build(Settings("single"), SINGLE, numa)
    assert parts.numa == {each.uuid: 0 for each in PARTS[:2]}


def test_ids_are_uuids_and_numbered_where_shared() -> None:
    (resource,) = build(Settings(sharing=sharing(shared(2, 1))), host(G0, G1), {})
    assert resource.ids == (f"{G0.uuid}::0", f"{G0.uuid}::1", G1.uuid)
    assert resource.devices_of((G1.uuid, f"{G0.uuid}::1", f"{G0.uuid}::0")) == (G0, G1)
    assert resource.devices_of(()) == ()


@pytest.mark.parametrize(
    "unknown",
    [
        G0.uuid,
        f"{G0.uuid}::2",
        f"{G0.uuid}::01",
        f"{G0.uuid}::-1",
        f"{G0.uuid}::",
        f"{G0.uuid}::0::0",
        f"{G1.uuid}::0",
        f"{G1.uuid}::",
        "",
        "GPU-x",
    ],
)
def test_an_id_that_was_never_told_is_refused(unknown: str) -> None:
    (resource,) = build(Settings(sharing=sharing(shared(2, 1))), host(G0, G1), {})
    assert unknown not in resource.ids
    with pytest.raises(RequestError, match=r"nvidia\.com/gpu has no device"):
        resource.devices_of((f"{G0.uuid}::0", unknown))


@given(st.text(alphabet=f"{G0.uuid}{G1.uuid}:01234", max_size=50))
def test_devices_of_knows_exactly_the_ids(name: str) -> None:
    resource = Resource("nvidia.com/gpu", (G0, G1), {G0.uuid: 3})
    for each in (name, f"{G0.uuid}::{name}", f"{G1.uuid}{name}"):
        expected = contextlib.nullcontext() if each in resource.ids else pytest.raises(RequestError)
        with expected:
            resource.devices_of((each,))


def test_a_part_belongs_to_its_gpu() -> None:
    assert (gpu_uuid(PARTS[2]), gpu_uuid(G2)) == (G1.uuid, G2.uuid)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("0", [True, True]),
        ("00", [True, True]),
        ("0:1", [False, True]),
        ("0:0", [False, False]),
        ("1", [False, False]),
        (G0.uuid, [True, True]),
        (PARTS[1].uuid, [False, True]),
        ("0000:07:00.0", [True, True]),
        ("07:00.0", [True, True]),
        ("0000:08:00.0", [False, False]),
        (A100, [True, True]),
        ("A100-*", [True, True]),
        ("a100-*", [False, False]),
        ("1g.*", [False, True]),
        ("*", [True, True]),
        ("", [False, False]),
        (":", [False, False]),
        ("9" * 400, [False, False]),
    ],
)
def test_selectors(selector: str, expected: list[bool]) -> None:
    assert [matches(each, selector) for each in (G0, PARTS[1])] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("nvidia.com/gpu", "nvidia.com/gpu"),
        ("mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("a" * 52, "nvidia.com/" + "a" * 52),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert full_name(name) == expected


@pytest.mark.parametrize(
    "name",
    ["", "GPU", "a_b", "-a", "a.", "a..b", "a b", "example.com/gpu", "a" * 53, "nvidia.com/"],
)
def test_names_that_kubernetes_would_refuse(name: str) -> None:
    with pytest.raises(RequestError):
        full_name(name)


def test_names_of_profiles() -> None:
    assert mig_name("1g.10gb+me.all") == "nvidia.com/mig-1g.10gb.me.all"
    assert mig_name("1c.3g.20gb") == "nvidia.com/mig-1c.3g.20gb"
    assert mig_name("") == "nvidia.com/mig-unknown"
