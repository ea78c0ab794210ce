"""The simulated four-GPU driver that the tests' host has. A GPU's index is never its minor."""

import os
import stat
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from nvhook.core.inventory import Gpu
from nvhook.sim import driver
from nvhook.sim.machine import gpu_uuid

MINORS = (2, 3, 1, 0)
FEATURES = ("gds", "mofed", "gdrcopy", "nvswitch", "imex")
NAMES = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")


class Driver:
    """Where it is, and what tests need to know of it."""

    def __init__(
        self, directory: Path, mig: Sequence[str] = (), mig_gpus: Sequence[int] = ()
    ) -> None:
        self.directory = directory
        settings = {"mig": mig, "mig_gpus": mig_gpus} if mig else {}
        self.config = Path(
            driver.create(
                str(directory),
                minors=MINORS,
                report=self._refuse,
                features=FEATURES,
                **settings,
            )
        )
        self.launcher = Path(sysconfig.get_path("scripts")) / "nvhook"
        assert self.launcher.exists(), "install the package: these tests run the real launcher"

    @staticmethod
    def _refuse(line: str) -> None:
        raise AssertionError(line)

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs in index order."""
        return [
            Gpu(
                index,
                gpu_uuid(index),
                minor,
                f"0000:{4 + 3 * index:02x}:00.0",
                driver.DEFAULT_MODEL,
            )
            for index, minor in enumerate(MINORS)
        ]

    def numbers(self) -> dict[str, tuple[int, int]]:
        """Return the device numbers of every node."""
        found = {}
        capabilities = sorted((self.directory / "dev/nvidia-caps").iterdir())
        names = [*NAMES, *(f"nvidia{minor}" for minor in sorted(MINORS))]
        names += [f"nvidia-caps/{path.name}" for path in capabilities]
        for name in names:
            status = (self.directory / "dev" / name).stat()
            assert stat.S_ISCHR(status.st_mode)
            found[name] = (os.major(status.st_rdev), os.minor(status.st_rdev))
        return found

    def configuration(self, path: Path, log: Path, **changes: str) -> Path:
        """Write a configuration like the driver's own, with another log and other changes."""
        lines = {}
        for line in self.config.read_text().splitlines():
            key, equals, value = line.partition(" = ")
            if equals and not line.startswith("#"):
                lines[key] = value
        lines["log-path"] = f'"{log}"'
        lines |= {key.replace("_", "-"): value for key, value in changes.items()}
        path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
        return path
