"""A simulated machine whose GPUs fail when they are told to."""

import os
from collections.abc import Sequence
from pathlib import Path

from nvhook import config
from nvhook.core.inventory import Inventory
from nvhook.create import pipeline
from nvhook.sim import driver


class Machine:
    """A directory of the simulated driver; ``say`` adds lines to its state file, at once."""

    def __init__(self, directory: Path, gpus: int = 2, mig: Sequence[str] = (), **settings) -> None:
        self.config = config.load(
            driver.create(str(directory), gpus, report=_refuse, mig=mig, **settings)
        )
        self.directory = directory
        self._state = directory / "state"
        self._start = self._state.read_text()

    @property
    def inventory(self) -> Inventory:
        return pipeline.inventory(self.config, ("all", "0:0"))

    def say(self, *lines: str) -> None:
        self._write(self._state.read_text() + "".join(f"{line}\n" for line in lines))

    def mend(self) -> None:
        """Everything is as it was made."""
        self._write(self._start)

    def _write(self, text: str) -> None:
        new = self._state.with_name("state.new")
        new.write_text(text)
        new.replace(self._state)


def _refuse(line: str) -> None:
    raise AssertionError(line)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
