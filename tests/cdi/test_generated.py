"""What nvhook generates is valid: to its own validator and to the official library."""

import os
from pathlib import Path

import pytest

from nvhook import cdi, config
from nvhook.formats.cdi_reader import parse
from nvhook.formats.cdi_writer import dump_json, dump_yaml
from nvhook.sim.driver import create

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
