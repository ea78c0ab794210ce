"""What nvhook generates is valid: to its own validator and to the official library."""

import os
from pathlib import Path

import pytest

from nvhook import config
from nvhook.cdi import specs
from nvhook.create import pipeline
from nvhook.formats.cdi_reader import parse
from nvhook.formats.cdi_writer import dump_json, dump_yaml
from nvhook.record import replace
from nvhook.sim.driver import create
from tests.host.conftest import FakeHost
from tests.host.layouts import LAYOUTS
from tests.host.test_layouts import discover

FEATURES = ("gds", "mofed", "gdrcopy", "nvswitch", "imex")


@pytest.mark.parametrize(
    ("gpus", "mig"), [(1, ()), (4, ()), (8, ()), (2, ("1g.10gb", "2g.20gb", "1c.3g.40gb"))]
)
def test_both_take_what_is_generated_in_every_mode(
    gpus: int, mig: tuple[str, ...], tmp_path: Path, go_verdicts, require
) -> None:
    require(os.geteuid() == 0, "needs root: mknod")
    settings = config.load(create(str(tmp_path / "driver"), gpus, features=FEATURES, mig=mig))
    closed = tmp_path / f"driver/dev/nvidia{gpus - 1}"
    closed.chmod(0o660)  # of a group: the spec says mode and owner, too
    files = {}
    for mode in specs.MODES:
        spec = specs.generate(specs.Wanted("/bin/sh", mode), settings)
        specs.verify(spec)
        names = {device.name for device in spec.devices}
        assert (mode in ("auto", "gpu") and bool(mig)) is ({"0:0", "0:2", "1:1"} <= names)
        for extension, text in (("json", dump_json(spec)), ("yaml", dump_yaml(spec))):
            file = tmp_path / f"{mode}.{extension}"
            file.write_text(text)
            assert parse(file.read_bytes(), str(file)) == spec
            files[str(file)] = ""
    assert go_verdicts(*[Path(file) for file in files]) == files


@pytest.mark.parametrize("name", LAYOUTS)
def test_both_take_what_is_generated_on_every_layout(
    name: str, tmp_path: Path, go_verdicts, monkeypatch
) -> None:
    """The hosts of the golden plans, with a GPU whose node belongs to a group."""
    found = discover(FakeHost(tmp_path / "host"), name, monkeypatch)
    closed = found.nodes[0].name if found.platform else "nvidia0"
    nodes = [
        replace(node, mode=0o660, gid=44) if node.name == closed else node for node in found.nodes
    ]
    found = replace(found, nodes=tuple(nodes))
    monkeypatch.setattr(pipeline, "inventory", lambda *_arguments: found)

    spec = specs.generate(specs.Wanted("/bin/sh"), config.Config())

    files = {}
    for extension, text in (("json", dump_json(spec)), ("yaml", dump_yaml(spec))):
        file = tmp_path / f"{name}.{extension}"
        file.write_text(text)
        assert parse(file.read_bytes(), str(file)) == spec
        files[str(file)] = ""
    assert go_verdicts(*[Path(file) for file in files]) == files
    known = [found.gpus[0].uuid] if "?" not in found.gpus[0].uuid else []
    of_mig = [each for device in found.mig_devices for each in (device.name, device.uuid)]
    assert [device.name for device in spec.devices] == ["0", *known, *of_mig, "all"]
    assert spec.version == "0.7.0"
    assert len(spec.edits.mounts) > 3
