"""The device plugin's CDI specs on a simulated driver: written, kept up to date, taken away."""

import os
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nvhook import config
from nvhook.config import Config
from nvhook.errors import HostError
from nvhook.formats.cdi_reader import parse
from nvhook.formats.cdi_rules import violations
from nvhook.formats.cdi_spec import Spec
from nvhook.kubelet import answers, resources
from nvhook.kubelet.cdi_specs import ensure
from nvhook.kubelet.scan import scan
from nvhook.kubelet.settings import Settings
from nvhook.sim.driver import create
from nvhook.sim.machine import gpu_uuid

LAUNCHER = os.path.join(sysconfig.get_path("scripts"), "nvhook")
VENDOR = "k8s.device-plugin.nvidia.com"
EVERYTHING = Settings(
    list_strategies=("cdi-cri",),
    gds=True,
    mofed=True,
    gdrcopy=True,
    imex_channels=(0,),
    mig_strategy="mixed",
)


class Node:
    """A node with a simulated driver, and the directory of its specs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.specs = directory / "cdi"
        features = ("gds", "mofed", "gdrcopy", "imex")
        create(
            str(directory / "driver"),
            gpus=2,
            minors=(1, 0),
            features=features,
            mig=("1g.10gb",),
            mig_gpus=(1,),
        )

    @property
    def config(self) -> Config:
        return config.load(str(self.directory / "driver/config.toml"))

    def ensure(self, settings: Settings = EVERYTHING) -> tuple[str, ...]:
        host = scan(settings, self.config)
        built = resources.build(settings, host.inventory, {})
        return ensure(settings, self.config, host.facts, built, str(self.specs))

    def spec(self, device_class: str = "gpu") -> Spec:
        path = self.specs / f"{VENDOR}-{device_class}.json"
        return parse(path.read_bytes(), str(path))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.specs.iterdir()) if self.specs.exists() else []


@pytest.fixture
def node(tmp_path: Path, require: Callable[[bool, str], None]) -> Node:
    require(os.geteuid() == 0, "needs root: mknod")
    return Node(tmp_path)


def test_every_name_of_an_answer_is_in_a_spec(node: Node) -> None:
    assert node.ensure() == ()
    host = scan(EVERYTHING, node.config)
    offered = {
        f"{spec.kind}={device.name}"
        for spec in map(node.spec, ("gpu", "gds", "mofed", "gdrcopy", "imex-channel"))
        for device in spec.devices
    }
    built = resources.build(EVERYTHING, host.inventory, {})
    assert [resource.name for resource in built] == ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]
    for settings in (EVERYTHING, Settings(list_strategies=("cdi-cri",), id_strategy="index")):
        for resource in built:
            answer = answers.allocate(resource, resource.ids, settings, host.facts)
            assert answer.cdi_devices
            assert {*answer.cdi_devices} <= offered


def test_the_specs_are_valid_and_have_no_device_that_is_every_gpu(node: Node) -> None:
    node.ensure()
    for device_class in ("gpu", "gds", "mofed", "gdrcopy", "imex-channel"):
        spec = node.spec(device_class)
        assert (spec.kind, [*violations(spec)]) == (f"{VENDOR}/{device_class}", [])
    gpus = node.spec()
    assert "all" not in {device.name for device in gpus.devices}
    assert {gpu_uuid(0), "0", "1:0"} < {device.name for device in gpus.devices}
    (hook,) = gpus.edits.hooks
    assert hook.path == LAUNCHER
    assert "--config" not in hook.args
    node.ensure(replace(EVERYTHING, hook_config="/etc/other.toml"))
    assert node.spec().edits.hooks[0].args[-2:] == ("--config", "/etc/other.toml")


def test_a_spec_that_is_lost_or_old_is_written_again_and_no_other(node: Node) -> None:
    node.ensure()
    before = {path.name: path.stat().st_ino for path in node.specs.iterdir()}
    gpus = node.specs / f"{VENDOR}-gpu.json"
    text = gpus.read_text()
    assert node.ensure() == ()
    assert {path.name: path.stat().st_ino for path in node.specs.iterdir()} == before
    gpus.write_text(text.replace(gpu_uuid(0), "GPU-old"))
    (node.specs / f"{VENDOR}-gds.json").unlink()
    assert node.ensure() == ()
    assert gpus.read_text() == text
    assert node.names() == sorted(before)
    for name in node.names():  # a boot
        (node.specs / name).unlink()
    node.specs.rmdir()
    assert node.ensure() == ()
    assert gpus.read_text() == text


def test_a_class_that_is_not_offered_any_more_is_taken_away_and_others_specs_stay(
    node: Node,
) -> None:
    node.ensure()
    other = node.specs / "vendor.json"
    other.write_text("{}")
    assert node.ensure(Settings(list_strategies=("cdi-annotations",))) == ()
    assert node.names() == [f"{VENDOR}-gpu.json", "vendor.json"]


def test_only_what_is_offered_is_in_a_spec_and_it_stays_while_nothing_is(node: Node) -> None:
    node.ensure(Settings(list_strategies=("cdi-cri",), exclude=("0",)))
    assert {device.name for device in node.spec().devices} == {gpu_uuid(1), "1"}
    before = node.spec()
    assert node.ensure(Settings(list_strategies=("cdi-cri",), exclude=("*",))) == ()
    assert node.spec() == before


def test_nothing_is_written_without_a_cdi_strategy(node: Node) -> None:
    assert node.ensure(Settings(gds=True)) == ()
    assert node.names() == []


def test_what_can_not_be_made_is_told_and_the_rest_and_its_old_spec_stay(node: Node) -> None:
    node.ensure()
    before = node.names()
    (node.directory / "driver/dev/gdrdrv").unlink()
    (problem,) = node.ensure()
    assert f"{VENDOR}-gdrcopy.json: this host has no gdrcopy" in problem
    assert node.names() == before


def test_a_required_channel_that_is_missing_is_an_error(node: Node) -> None:
    (node.directory / "driver/dev/nvidia-caps-imex-channels/channel0").unlink()
    settings = Settings(list_strategies=("cdi-cri",), imex_channels=(0,))
    assert node.ensure(settings) == ()
    assert node.names() == [f"{VENDOR}-gpu.json"]
    with pytest.raises(HostError, match="IMEX channel 0 does not exist"):
        node.ensure(Settings(list_strategies=("cdi-cri",), imex_channels=(0,), imex_required=True))


def test_paths_are_the_hosts_where_the_plugin_sees_the_driver_elsewhere(node: Node) -> None:
    # As a driver container has it: its root has the nodes, too.
    root = node.directory / "driver/root"
    (root / "dev").symlink_to(node.directory / "driver/dev")
    settings = Settings(
        list_strategies=("cdi-cri",),
        driver_root="/run/nvidia/driver",
        driver_root_here=str(root),
        cdi_hook_path="/opt/nvhook/bin/nvhook",
    )
    assert node.ensure(settings) == ()
    spec = node.spec()
    edits = (spec.edits, *[device.edits for device in spec.devices])
    paths = [mount.host_path for each in edits for mount in each.mounts]
    paths += [each.host_path for one in edits for each in one.device_nodes]
    assert len(paths) > 30
    assert [path for path in paths if not path.startswith("/run/nvidia/driver/")] == []
    control = {each.path: each.host_path for each in spec.edits.device_nodes}
    assert control["/dev/nvidiactl"] == "/run/nvidia/driver/dev/nvidiactl"
    (hook,) = spec.edits.hooks
    assert hook.path == "/opt/nvhook/bin/nvhook"
    assert [*violations(spec)] == []
