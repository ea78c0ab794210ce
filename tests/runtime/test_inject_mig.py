"""MIG devices given to a running container and taken away: what siblings share stays for them."""

import pytest

from nvhook import config
from nvhook.core.mig_plans import node_names
from nvhook.core.ownership import owner_of
from nvhook.create import pipeline
from tests.runtime.bundle import Bundle
from tests.runtime.expectations import flat
from tests.runtime.live import Live


@pytest.fixture(scope="session")
def migs(mig_driver):
    """The MIG devices by name: 0:0, 0:1, 0:2, 2:0, 2:1, 2:2."""
    inventory = pipeline.inventory(config.load(str(mig_driver.config)))
    return {device.name: device for device in inventory.mig_devices}


@pytest.fixture
def container(live, mig_driver):
    """Start a container on that host."""

    def start(readonly: bool = False, user: str = "") -> Live:
        return live(readonly, user, host=mig_driver)

    return start


def assert_has(container: Live, devices, gpus=(), in_place: bool = True) -> None:
    """Check which nodes of GPUs and of capabilities can be opened: the image's, and in place."""
    names = {name for device in devices for name in node_names(device)}
    names |= {container.node(gpu) for gpu in gpus}
    every = [name for name in container.driver.numbers() if name[6:].isdigit() or "cap" in name]
    questions = [("open", f"/nodes/{flat(name)}") for name in every]
    expected = ["ENXIO" if name in names else "EPERM" for name in every]
    if in_place:
        questions += [("open", f"/dev/{name}") for name in every]
        expected += ["ENXIO" if name in names else "ENOENT" for name in every]
    assert dict(zip(questions, container.probe(*questions), strict=True)) == dict(
        zip(questions, expected, strict=True)
    )


KINDS = [
    pytest.param(readonly, user, id=f"{'ro' if readonly else 'rw'}-{user or 'root'}")
    for readonly in (False, True)
    for user in ("", "own-image")
]


@pytest.mark.parametrize(("readonly", "user"), KINDS)
@pytest.mark.parametrize("asked", ["0:1", "{uuid}", "MIG-{gpu}/3/0"])
def test_inject_use_eject(container, migs, readonly, user, asked):
    device = migs["0:1"]
    box = container(readonly, user)
    before = box.snapshot()

    done = box.inject(asked.format(uuid=device.uuid, gpu=device.gpu.uuid))

    assert [(gpu["kind"], gpu["index"], gpu["uuid"]) for gpu in done["gpus"]] == [
        ("mig", "0:1", device.uuid)
    ]
    assert_has(box, [device])
    assert box.smi() == [device.gpu.uuid]
    assert device.uuid in box.run("/usr/bin/nvidia-smi", "-L").stdout
    assert not box.inject("0:1")["changed"]

    assert box.eject("0:1")["gpus"] == [owner_of(device)]

    assert_has(box, [])
    assert box.snapshot() == before
    assert box.journals() == []


def test_the_gpu_stays_for_siblings(container, migs):
    box = container()
    before = box.snapshot()
    box.inject("0:1,2:0")
    box.inject("0:0")
    assert_has(box, [migs["0:0"], migs["0:1"], migs["2:0"]])

    box.eject("0:1")

    assert_has(box, [migs["0:0"], migs["2:0"]])
    box.eject("0:0")
    assert_has(box, [migs["2:0"]])
    box.eject()
    assert box.snapshot() == before


@pytest.mark.parametrize("first", ["0", "0:1"])
def test_a_gpu_that_was_asked_for_itself_stays(container, migs, first):
    """Whichever came first; with the GPU its MIG devices go."""
    box = container()
    before = box.snapshot()
    box.inject(first)
    box.inject("0:1" if first == "0" else "0")

    box.eject("0:1")

    assert_has(box, [], gpus=[0])
    box.inject("0:2")
    done = box.eject("0")
    assert done["gpus"] == [migs["0:0"].gpu.pci_bus_id, owner_of(migs["0:2"])]
    assert_has(box, [])
    assert box.snapshot() == before


def test_mig_devices_of_the_creation_are_ejected_too(each_engine, bundles, mig_driver, migs):
    bundle: Bundle = bundles(each_engine, host=mig_driver)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0:0,0:1")
    box = Live(each_engine, bundle)
    try:
        assert not box.inject("0:1")["changed"]
        box.inject("0:2")

        done = box.eject("0:1")

        assert done["given_at_creation"] == [owner_of(migs["0:1"])]
        # Where nodes were mounted at the creation, empty files stay.
        assert_has(box, [migs["0:0"], migs["0:2"]], in_place=False)
        box.eject()
        assert_has(box, [], in_place=False)
        box.inject("0:1")
        assert_has(box, [migs["0:1"]], in_place=False)
        assert box.smi() == [migs["0:1"].gpu.uuid]
    finally:
        box.delete()


def test_killed_in_between(container, migs):
    box = container()
    before = box.snapshot()
    for fault in (30, 60, 120):
        box.nvhook("inject", "--gpus", "0:1", env=(f"NVHOOK_FAULT={fault}",))
        box.reconcile()
        assert box.snapshot() == before
    box.inject("0:0,0:1")
    box.nvhook("eject", "--gpus", "0:1", env=("NVHOOK_FAULT=6",))
    box.reconcile()
    assert_has(box, [migs["0:0"]])
    box.eject()
    assert box.snapshot() == before
