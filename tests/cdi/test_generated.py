"""What nvhook generates is valid: to its own validator and to the official library."""

import os
from pathlib import Path

import pytest

from nvhook import cdi, config, pipeline
from nvhook.core.inventory import Gpu, HostNode
from nvhook.formats.cdi_reader import parse
from nvhook.formats.cdi_writer import dump_json, dump_yaml
from nvhook.sim.driver import create
from tests.host.conftest import FakeHost
from tests.host.layouts import LAYOUTS
from tests.host.test_layouts import inventory

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
    for mode in cdi.MODES:
        spec = cdi.generate(cdi.Wanted("/bin/sh", mode), settings)
        cdi.verify(spec)
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
    machine, lay_out = LAYOUTS[name]
    fake = FakeHost(tmp_path / "host")
    lay_out(fake)
    found = inventory(fake, machine, monkeypatch)
    gpu = Gpu(0, "GPU-00000000-1111-2222-3333-444444444444", 0, "0000:01:00.0", "NVIDIA T4")
    node = HostNode("nvidia0", f"{fake.dev}/nvidia0", 195, 0, 0o660, 0, 44)
    found = found.replace(gpus=(gpu,), nodes=(*found.nodes, node))
    monkeypatch.setattr(pipeline, "inventory", lambda *_arguments: found)

    spec = cdi.generate(cdi.Wanted("/bin/sh"), config.Config())

    files = {}
    for extension, text in (("json", dump_json(spec)), ("yaml", dump_yaml(spec))):
        file = tmp_path / f"{name}.{extension}"
        file.write_text(text)
        assert parse(file.read_bytes(), str(file)) == spec
        files[str(file)] = ""
    assert go_verdicts(*[Path(file) for file in files]) == files
    assert [device.name for device in spec.devices] == ["0", gpu.uuid, "all"]
    assert len(spec.edits.mounts) > 3
