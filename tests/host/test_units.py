"""The units that keep the CDI spec up to date are ones that systemd takes."""

import re
import shutil
import subprocess
from pathlib import Path

OCI = Path(__file__).parents[2] / "oci"
LAUNCHER = "/usr/local/bin/nvhook"


def test_systemd_takes_the_units(tmp_path: Path, require) -> None:
    require(shutil.which("systemd-analyze") is not None, "needs systemd-analyze: apt, systemd")
    units = [tmp_path / unit.name for unit in sorted((OCI / "systemd").iterdir())]
    for unit in units:
        text = (OCI / "systemd" / unit.name).read_text()
        # It looks whether the program is there.
        unit.write_text(text.replace(LAUNCHER, "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_path_and_the_rule_start_the_service() -> None:
    service = OCI / "systemd/nvhook-cdi.service"
    assert (OCI / "systemd/nvhook-cdi.path").exists(), "a path unit starts the service of its name"
    rule = (OCI / "udev/60-nvhook-cdi.rules").read_text()
    assert re.search(r'ENV\{SYSTEMD_WANTS\}\+="([^"]+)"', rule)[1] == service.name  # type: ignore[index]
    assert f"{LAUNCHER} cdi generate --output /var/run/cdi/nvidia.yaml" in service.read_text()
