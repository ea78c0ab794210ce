"""MIG devices of a simulated machine: found, numbered by its NVML, remembered until they change."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvhook import config
from nvhook.cdi import specs
from nvhook.core.edits import CgroupRule, DeviceNode
from nvhook.core.inventory import Gpu, Inventory
from nvhook.core.layout import ContainerLayout
from nvhook.core.planner import rest
from nvhook.core.request import Request
from nvhook.create import cdi_devices, pipeline, preview
from nvhook.errors import HostError
from nvhook.host import mig_devices, nvml
from nvhook.record import replace
from nvhook.sim.driver import create
from nvhook.sim.machine import drm_nodes

MINORS = (1, 0)
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb")  # 0:0 is GPU instance 7, 0:1 is 3, 0:2 is 1


@pytest.fixture
def settings(tmp_path: Path, require) -> config.Config:
    """Two GPUs; the first has MIG devices."""
    require(os.geteuid() == 0, "needs root: mknod")
    path = create(
        str(tmp_path / "sim"),
        2,
        "NVIDIA A100-SXM4-80GB",
        minors=MINORS,
        report=pytest.fail,
        mig=PROFILES,
        mig_gpus=(0,),
    )
    return config.load(path)


@pytest.fixture
def questions(monkeypatch) -> list[str]:
    """The questions that NVML was really asked."""
    asked: list[str] = []
    ask = nvml._ask

    def counted(question: str, library: str, timeout: float) -> list[str]:
        asked.append(question)
        return ask(question, library, timeout)

    monkeypatch.setattr(nvml, "_ask", counted)
    return asked


def shown(inventory: Inventory) -> list[tuple[str, str, int, int, int, int]]:
    return [
        (
            each.name,
            each.profile,
            each.gpu_instance,
            each.compute_instance,
            each.gpu_instance_minor,
            each.compute_instance_minor,
        )
        for each in inventory.mig_devices
    ]


FOUND = [
    ("0:0", "1g.10gb", 7, 0, 201, 202),
    ("0:1", "2g.20gb", 3, 0, 165, 166),
    ("0:2", "3g.40gb", 1, 0, 147, 148),
]


def tree(settings: config.Config) -> Path:
    return Path(settings.proc_root, "driver/nvidia/capabilities")


def test_numbers_are_nvmls_and_minors_the_drivers(settings, questions) -> None:
    inventory = pipeline.inventory(settings)
    assert shown(inventory) == FOUND
    assert {each.gpu.minor for each in inventory.mig_devices} == {1}
    assert len({each.uuid for each in inventory.mig_devices}) == 3
    assert {f"nvidia-caps/nvidia-cap{minor}" for *_, gi, ci in FOUND for minor in (gi, ci)} <= {
        node.name for node in inventory.nodes
    }
    assert questions == ["print_mig_devices"]


def test_nvml_is_asked_once(settings, questions) -> None:
    first = pipeline.inventory(settings)
    assert pipeline.inventory(settings) == first
    assert pipeline.inventory(settings, ("0:1",)) == first
    assert questions == ["print_mig_devices"]


@pytest.mark.parametrize("devices", [("0",), ("GPU-x", "0000:04:00.0"), ()])
def test_for_whole_gpus_nothing_of_mig_is_looked_at(settings, questions, devices) -> None:
    inventory = pipeline.inventory(settings, devices)
    assert inventory.mig_devices == ()
    assert questions == []
    assert not Path(settings.state_directory, mig_devices.FILE_NAME).exists()


def change(settings: config.Config, what: str) -> None:
    partitions = tree(settings) / "gpu1/mig"
    if what == "one goes":
        for path in (partitions / "gi3/ci0/access", partitions / "gi3/access"):
            path.unlink()
        (partitions / "gi3/ci0").rmdir()
        (partitions / "gi3").rmdir()
    elif what == "made anew":
        (partitions / "gi3/ci0").rename(partitions / "gi3/old")
        (partitions / "gi3/ci0").mkdir()
        (partitions / "gi3/old/access").rename(partitions / "gi3/ci0/access")
    elif what == "boot":
        path = Path(settings.proc_root, "sys/kernel/random/boot_id")
        path.chmod(0o644)
        path.write_text("another\n")
    else:
        Path(settings.state_directory, mig_devices.FILE_NAME).write_text(what)


@pytest.mark.parametrize("what", ["one goes", "made anew", "boot", "{", '{"key":[],"devices":[]}'])
def test_nvml_is_asked_again_after_a_change(settings, questions, what) -> None:
    pipeline.inventory(settings)
    change(settings, what)
    again = pipeline.inventory(settings)
    assert shown(again) == [each for each in FOUND if what != "one goes" or each[2] != 3]
    assert questions.count("print_mig_devices") == 2


@pytest.mark.parametrize(
    "row", [[7, 0, "MIG-a", "", 7, 0, 201, 202], [0, 0, "MIG-a", "", 7, 0, 201], ["0"] * 8, {}]
)
def test_a_damaged_row_is_not_believed(settings, questions, row) -> None:
    pipeline.inventory(settings)
    path = Path(settings.state_directory, mig_devices.FILE_NAME)
    path.write_text(json.dumps({**json.loads(path.read_text()), "devices": [row]}))
    assert shown(pipeline.inventory(settings)) == FOUND
    assert len(questions) == 2


def test_a_gpu_that_is_partitioned_after_the_first_look(settings) -> None:
    partitions, away = tree(settings) / "gpu1", tree(settings).parent / "away"
    partitions.rename(away)
    assert pipeline.inventory(settings).mig_devices == ()
    (partitions / "mig").mkdir(parents=True)  # MIG mode is on, but there is no instance
    assert pipeline.inventory(settings).mig_devices == ()
    (partitions / "mig").rmdir()
    partitions.rmdir()
    away.rename(partitions)
    assert shown(pipeline.inventory(settings)) == FOUND


def test_without_nvml_the_ids_are_known_and_nothing_is_remembered(settings, questions) -> None:
    state = Path(settings.driver_root).parent / "state"
    state.write_text("gpu0.status=lost\n")
    mute = pipeline.inventory(settings)
    expected = [("0:?", "", *ids) for _, _, *ids in FOUND]
    assert sorted(shown(mute)) == sorted(expected)
    with pytest.raises(HostError, match="NVML does not tell which MIG device is 0:0"):
        preview.plan_for_gpus("0:0", "", settings)
    uuid = mute.gpus[0].uuid
    (device,) = preview.plan_for_gpus(f"MIG-{uuid}/3/0", "", settings).devices
    assert not isinstance(device, Gpu)
    assert device.gpu_instance_minor == 165
    state.write_text("")
    assert shown(pipeline.inventory(settings)) == FOUND


def test_the_table_tells_the_minor_where_the_tree_does_not(settings) -> None:
    access = tree(settings) / "gpu1/mig/gi3/access"
    access.chmod(0o644)
    access.write_text("")
    assert shown(pipeline.inventory(settings)) == FOUND


def test_the_tree_tells_the_minor_where_there_is_no_table(settings) -> None:
    Path(settings.proc_root, "driver/nvidia-caps/mig-minors").unlink()
    assert shown(pipeline.inventory(settings)) == FOUND
    managed = pipeline.inventory(settings, (), manages_mig=("config",))
    assert managed.mig_capabilities == {
        "config": 1,
        "monitor": 2,
        "gpu1/gi1/access": 147,
        "gpu1/gi1/ci0/access": 148,
        "gpu1/gi3/access": 165,
        "gpu1/gi3/ci0/access": 166,
        "gpu1/gi7/access": 201,
        "gpu1/gi7/ci0/access": 202,
    }


def test_a_capability_that_neither_tells(settings) -> None:
    Path(settings.proc_root, "driver/nvidia-caps/mig-minors").unlink()
    access = tree(settings) / "gpu1/mig/gi3/access"
    access.chmod(0o644)
    access.write_text("DeviceFileMode: 292\n")
    with pytest.raises(HostError, match="tells no device minor for capability gpu1/gi3/access"):
        pipeline.inventory(settings)


def test_lines_of_nvml_are_not_trusted() -> None:
    lines = [
        "Traceback: gi ci",
        "00000000:07:00.0 7 0 1 MIG-a NVIDIA A100 MIG 1g.10gb",
        "00000000:07:00.0 7 x 1 MIG-b NVIDIA",
        "00000000:07:00.0 -1 0 1 MIG-b NVIDIA",
        "elsewhere 7 0 1 MIG-b NVIDIA",
        "00000000:0A:00.0 3 0 0 MIG-GPU-a/3/0",
        "",
    ]
    assert nvml.parse_mig_devices(lines) == {
        ("0000:07:00.0", 7, 0): (1, "MIG-a", "NVIDIA A100 MIG 1g.10gb"),
        ("0000:0a:00.0", 3, 0): (0, "MIG-GPU-a/3/0", ""),
    }


def test_list_shows_them(settings) -> None:
    command = [sys.executable, "-I", "-m", "nvhook", "list"]
    path = f"{Path(settings.driver_root).parent}/config.toml"
    text, document = [
        subprocess.run(
            [*command, *options, "--config", path], capture_output=True, text=True, check=True
        ).stdout
        for options in ([], ["--json"])
    ]
    first, second = json.loads(document)["gpus"]
    uuids = [device["uuid"] for device in first["mig_devices"]]
    assert first["mig_devices"][1] == {
        "index": 1,
        "uuid": uuids[1],
        "profile": "2g.20gb",
        "gpu_instance": 3,
        "compute_instance": 0,
    }
    assert second["mig_devices"] == []
    rows = [line.split() for line in text.splitlines()]
    assert ["0:1", uuids[1], "MIG", "2g.20gb"] in rows


def test_plan_json_names_a_mig_device_as_it_is_asked_for(settings) -> None:
    command = [sys.executable, "-I", "-m", "nvhook", "plan", "--gpus", "0:1,1", "--json"]
    path = f"{Path(settings.driver_root).parent}/config.toml"
    done = subprocess.run([*command, "--config", path], capture_output=True, text=True, check=True)
    inventory = pipeline.inventory(settings)
    assert json.loads(done.stdout)["devices"] == [
        {
            "kind": "mig",
            "index": "0:1",
            "uuid": inventory.mig_devices[1].uuid,
            "minor": 1,
            "pci_bus_id": inventory.gpus[0].pci_bus_id,
        },
        {
            "kind": "gpu",
            "index": 1,
            "uuid": inventory.gpus[1].uuid,
            "minor": 0,
            "pci_bus_id": inventory.gpus[1].pci_bus_id,
        },
    ]


def test_requirements_are_compared_with_a_mig_devices_gpu(settings) -> None:
    def planned(text: str) -> int:
        requirements = (("NVIDIA_REQUIRE_CUDA", text),)
        asked = Request(("0:1", "0:2"), ("utility",), "test", requirements=requirements)
        return len(pipeline.plan_for(asked, settings, ContainerLayout()).devices)

    assert planned("arch>=8.0,brand=nvidia brand=tesla,arch=8.0") == 2
    with pytest.raises(HostError, match=r"unsatisfied condition: arch>=9\.0.*GPU 0 NVIDIA A100"):
        planned("arch>=9.0")


@pytest.mark.parametrize("capabilities", ["compute", "graphics,compute"])
def test_the_hook_of_a_cdi_spec_gives_a_mig_device_nothing_else(settings, capabilities) -> None:
    spec = specs.generate(specs.Wanted("/bin/sh", "gpu", "0:1", capabilities), settings)
    device = next(each for each in spec.devices if each.name == "0:1")
    edits = (*spec.edits.device_nodes, *device.edits.device_nodes)
    has = [(each.path, each.major, each.minor) for each in edits]
    outcome = cdi_devices.plan_for_devices(has, capabilities, settings)
    made = [edit for edit in rest(outcome.plan, has).edits if isinstance(edit, DeviceNode)]
    assert made == []
    assert not any(path.startswith("/dev/dri") for path, _, _ in has)


def test_the_hook_of_a_cdi_spec_tells_systemd_nothing_where_rules_are_off(settings) -> None:
    node = [("/dev/nvidia0", 195, 0)]
    for device_rules in (True, False):
        changed = replace(settings, device_rules=device_rules)
        plan = cdi_devices.plan_for_devices(node, "compute", changed).plan
        assert any(isinstance(edit, CgroupRule) for edit in plan.edits) is device_rules


def test_a_cdi_spec_has_them_by_index_and_uuid_and_in_all(settings) -> None:
    inventory = pipeline.inventory(settings)
    spec = specs.generate(specs.Wanted("/bin/sh"), settings)
    specs.verify(spec)
    devices = {device.name: device.edits for device in spec.devices}
    names = [each.name for each in inventory.mig_devices]
    assert [*devices] == [
        *("0", inventory.gpus[0].uuid),
        *[name for each in inventory.mig_devices for name in (each.name, each.uuid)],
        *("1", inventory.gpus[1].uuid, "all"),
    ]
    assert names == ["0:0", "0:1", "0:2"]
    paths = [node.path for node in devices["0:1"].device_nodes]
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert paths == ["/dev/nvidia1", f"{caps}165", f"{caps}166"]
    assert devices[inventory.mig_devices[1].uuid] == devices["0:1"]
    everything = {node.path for node in devices["all"].device_nodes}
    rendering = {f"/dev/dri/{name}" for gpu in inventory.gpus for name, _ in drm_nodes(gpu)}
    assert everything == {"/dev/nvidia0", "/dev/nvidia1"} | rendering | {
        f"{caps}{minor}" for *_, gi, ci in FOUND for minor in (gi, ci)
    }
    only = specs.generate(
        specs.Wanted("/bin/sh", devices="0:2", strategies=("type-index",)), settings
    )
    assert [device.name for device in only.devices] == ["mig0:2", "all"]
