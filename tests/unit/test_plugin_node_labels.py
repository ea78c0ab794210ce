"""What a node's labels say of its GPUs."""

import pytest

from nvhook.core.inventory import Inventory
from nvhook.errors import RequestError
from nvhook.host.nvml_facts import Facts, GpuFacts, MigFacts, parse
from nvhook.kubelet.node_labels import feature_file, label_value, labels
from nvhook.kubelet.settings import Settings, SharedResource, Sharing
from nvhook.record import replace
from tests.unit.plugin_hosts import A100, T4, gpu, host, mig

G0, G1, G2 = gpu(0), gpu(1), gpu(2, T4)
PARTS = (mig(G1, 0), mig(G1, 1), mig(G1, 2, "1g.5gb+me"))
FACTS = Facts(
    "12.6",
    {
        G0.uuid: GpuFacts(40960, 8, 0, True),
        G1.uuid: GpuFacts(40960, 8, 0, True),
        G2.uuid: GpuFacts(15360, 7, 5, False),
    },
    {part.uuid: MigFacts(4864, 14, 1, 1, 1, 0, 0, 0, 0) for part in PARTS[:2]},
)
NOTHING = parse(())
COMPUTE = dict.fromkeys((each.pci_bus_id for each in (G0, G1, G2)), "0x030200")
TWO = "NVIDIA-A100-SXM4-40GB"


def shared(
    replicas: int, method: str = "time-slicing", name: str = "nvidia.com/gpu", **more: object
):
    """Return the settings of one shared resource."""
    resource = SharedResource(name, replicas, **more)  # type: ignore[arg-type]
    return Sharing(method, (resource,))  # type: ignore[arg-type]


def found(
    settings: Settings, inventory: Inventory, facts: Facts = FACTS, machine: str = "DGX"
) -> dict[str, str]:
    """Return the labels without the prefix that all have."""
    given = labels(settings, inventory, facts, machine, COMPUTE)
    assert all(name.startswith("nvidia.com/") for name in given)
    return {name.removeprefix("nvidia.com/"): text for name, text in given.items()}


def test_everything_that_is_said_of_two_gpus() -> None:
    given = labels(Settings(), host(G0, G1), FACTS, "DGX A100", COMPUTE, 1700000000)
    assert (
        feature_file(given)
        == """\
nvidia.com/cuda.driver-version.full=550.54.14
nvidia.com/cuda.driver-version.major=550
nvidia.com/cuda.driver-version.minor=54
nvidia.com/cuda.driver-version.revision=14
nvidia.com/cuda.driver.major=550
nvidia.com/cuda.driver.minor=54
nvidia.com/cuda.driver.rev=14
nvidia.com/cuda.runtime-version.full=12.6
nvidia.com/cuda.runtime-version.major=12
nvidia.com/cuda.runtime-version.minor=6
nvidia.com/cuda.runtime.major=12
nvidia.com/cuda.runtime.minor=6
nvidia.com/gfd.timestamp=1700000000
nvidia.com/gpu.compute.major=8
nvidia.com/gpu.compute.minor=0
nvidia.com/gpu.count=2
nvidia.com/gpu.family=ampere
nvidia.com/gpu.machine=DGX-A100
nvidia.com/gpu.memory=40960
nvidia.com/gpu.mode=compute
nvidia.com/gpu.present=true
nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB
nvidia.com/gpu.replicas=1
nvidia.com/gpu.sharing-strategy=none
nvidia.com/mig.capable=true
nvidia.com/mps.capable=false
"""
    )


def test_a_node_without_a_gpu_has_no_labels() -> None:
    assert labels(Settings(), host(), NOTHING, "DGX", {}) == {}


def test_without_nvml_what_the_names_tell() -> None:
    given = found(Settings(), host(G0), NOTHING)
    assert "gpu.memory" not in given
    assert (given["gpu.compute.major"], given["gpu.family"]) == ("8", "ampere")
    assert given["cuda.runtime-version.full"] == "12.4"  # the driver branch's
    assert given["mig.capable"] == "false"


@pytest.mark.parametrize(
    ("settings", "inventory", "expected"),
    [
        (
            Settings(sharing=shared(4)),
            host(G0, G1),
            {"product": f"{TWO}-SHARED", "count": "2", "replicas": "4"},
        ),
        (
            Settings(sharing=shared(4, rename="nvidia.com/gpu-quarter")),
            host(G0, G1),
            {"product": TWO, "count": "2", "replicas": "4"},
        ),
        (
            Settings(sharing=shared(4, devices=("T4", "Tesla*"))),
            host(G0, G1, G2),
            {"product": TWO, "count": "2", "replicas": "1", "memory": "40960"},
        ),
        (
            Settings(exclude=("A100*",)),
            host(G0, G1, G2),
            {"product": "Tesla-T4", "count": "1", "family": "turing", "memory": "15360"},
        ),
        (Settings(exclude=("*",)), host(G0), {"count": "0"}),
        (
            Settings("mixed"),
            host(G0, G1, mig_devices=PARTS),
            {"product": TWO, "count": "2", "replicas": "1"},
        ),
        (
            Settings("mixed", sharing=shared(4)),
            host(G0, G1, mig_devices=(mig(G0, 0),)),
            {"product": f"{TWO}-SHARED", "count": "2", "replicas": "4"},
        ),
        (
            Settings("mixed"),
            host(G1, mig_devices=PARTS),
            {"product": TWO, "count": "1", "replicas": "0"},
        ),
        (
            Settings("single"),
            host(G1, mig_devices=PARTS[:2]),
            {
                "product": f"{TWO}-MIG-1g.5gb",
                "count": "2",
                "replicas": "1",
                "memory": "4864",
                "multiprocessors": "14",
                "slices.gi": "1",
                "slices.ci": "1",
                "engines.copy": "1",
                "engines.decoder": "0",
            },
        ),
        (
            Settings("single", sharing=shared(2)),
            host(G1, mig_devices=PARTS[:2]),
            {"product": f"{TWO}-MIG-1g.5gb-SHARED", "count": "2", "replicas": "2"},
        ),
        (
            Settings("single"),
            host(G0, G1, mig_devices=PARTS[:2]),
            {"product": f"{TWO}-MIG-INVALID", "count": "0", "replicas": "0", "memory": "0"},
        ),
    ],
)
def test_what_is_said_of_gpu(
    settings: Settings, inventory: Inventory, expected: dict[str, str]
) -> None:
    given = found(settings, inventory)
    assert {name: given.get(f"gpu.{name}") for name in expected} == expected


def test_mixed_mig_devices_are_said_by_profile() -> None:
    settings = Settings("mixed", sharing=shared(3, name="nvidia.com/mig-1g.5gb"))
    given = found(settings, host(G1, mig_devices=PARTS))
    assert {name: text for name, text in given.items() if name.startswith("mig")} == {
        "mig-1g.5gb.count": "2",
        "mig-1g.5gb.engines.copy": "1",
        "mig-1g.5gb.engines.decoder": "0",
        "mig-1g.5gb.engines.encoder": "0",
        "mig-1g.5gb.engines.jpeg": "0",
        "mig-1g.5gb.engines.ofa": "0",
        "mig-1g.5gb.memory": "4864",
        "mig-1g.5gb.me.count": "1",
        "mig-1g.5gb.me.product": f"{TWO}-MIG-1g.5gb.me",
        "mig-1g.5gb.me.replicas": "1",
        "mig-1g.5gb.multiprocessors": "14",
        "mig-1g.5gb.product": f"{TWO}-MIG-1g.5gb-SHARED",
        "mig-1g.5gb.replicas": "3",
        "mig-1g.5gb.slices.ci": "1",
        "mig-1g.5gb.slices.gi": "1",
        "mig.capable": "true",
        "mig.strategy": "mixed",
    }


def test_how_gpus_are_shared() -> None:
    mps = Settings(sharing=shared(2, "mps"), mps_root="/m")
    given = found(mps, host(G0))
    assert (given["gpu.sharing-strategy"], given["mps.capable"]) == ("mps", "true")
    given = found(Settings(sharing=shared(2)), host(G0))
    assert (given["gpu.sharing-strategy"], given["mps.capable"]) == ("time-slicing", "false")


def test_a_gpu_in_mig_mode_without_mig_devices_is_not_offered() -> None:
    facts = Facts("", {**FACTS.gpus, G1.uuid: GpuFacts(40960, 8, 0, True, True)}, {})
    assert found(Settings("mixed"), host(G0, G1), facts)["gpu.count"] == "1"
    assert found(Settings(), host(G0, G1), facts)["gpu.count"] == "2"


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        (["0x030200", "0x030200"], "compute"),
        (["0x030000", "0x030000"], "graphics"),
        (["0x030000", "0x030200"], "unknown"),
        (["", ""], "unknown"),
    ],
)
def test_the_mode_is_that_of_all_gpus(classes: list[str], mode: str) -> None:
    by_bus = dict(zip((G0.pci_bus_id, G1.pci_bus_id), classes, strict=True))
    given = labels(Settings(), host(G0, G1), FACTS, "DGX", by_bus)
    assert given["nvidia.com/gpu.mode"] == mode


def test_a_driver_version_of_two_numbers_has_no_revision() -> None:
    inventory = replace(host(G0), driver_version="595.84", cuda_version="")
    given = found(Settings(), inventory, NOTHING)
    assert given["cuda.driver-version.revision"] == given["cuda.driver.rev"] == ""
    assert given["cuda.driver-version.minor"] == "84"
    assert not [name for name in given if name.startswith("cuda.runtime")]


def test_settings_that_can_not_be_offered_are_an_error() -> None:
    with pytest.raises(RequestError, match="more than a kubelet takes"):
        found(Settings(sharing=shared(1 << 20)), host(G0))


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ((12, 0), "blackwell"),
        ((10, 3), "blackwell"),
        ((9, 0), "hopper"),
        ((8, 9), "ada-lovelace"),
        ((8, 6), "ampere"),
        ((7, 5), "turing"),
        ((7, 0), "volta"),
        ((6, 1), "pascal"),
        ((99, 0), "undefined"),
    ],
)
def test_families(capability: tuple[int, int], family: str) -> None:
    facts = Facts("", {G0.uuid: GpuFacts(1, *capability, can_mig=False)}, {})
    assert found(Settings(), host(G0), facts)["gpu.family"] == family


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (A100, TWO),
        ("GeForce GT 710 (rev)", "GeForce-GT-710-rev"),
        ("1g.5gb+me", "1g.5gb.me"),
        ("-_x_-", "x"),
        ("x" * 64, "x" * 63),
        ("a" * 62 + "-b", "a" * 62),
        ("ö", ""),
    ],
)
def test_values_are_such_as_kubernetes_takes(text: str, value: str) -> None:
    assert label_value(text) == value


def test_what_nvml_tells_is_read_and_noise_is_not() -> None:
    uuid = "GPU-AAAAAAAA-0000-4000-8000-000000000000"
    lines = [
        "cuda - 12 4",
        f"gpu {uuid} 81559 9 0 1 1",
        "gpu GPU-x 1 2",
        "gpu GPU-y 1 9 0 1 yes",
        "mig MIG-a 9728 16 1 1 1 1 0 1 0",
        "warning: something",
        "cuda",
        "",
    ]
    assert parse(lines) == Facts(
        "12.4",
        {uuid[:4] + uuid[4:].lower(): GpuFacts(81559, 9, 0, True, True)},
        {"MIG-a": MigFacts(9728, 16, 1, 1, 1, 1, 0, 1, 0)},
    )
