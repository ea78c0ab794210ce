"""What the checks find out, and how one ends that fails or can't be made."""

from pathlib import Path
from typing import Any

from container import Machine

KERNEL_DRIVER = Path("/proc/driver/nvidia/version")
Parts = dict[str, tuple[str, int]]


class NotRunError(Exception):
    """A check that this machine can't answer, and why."""


class WrongError(Exception):
    """A check that failed, and what was seen."""


def expect(condition: bool, seen: str) -> str:
    """Return what was seen. Raises: WrongError."""
    if not condition:
        raise WrongError(seen)
    return seen


class Findings:
    """What one check leaves to the next."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cgroups = ""
        self.inventory: dict[str, Any] = {}  # nvhook list --json
        self.plan: dict[str, Any] = {}  # nvhook plan --json
        # What containers said: one without a hook, one with a GPU, one with none.
        self.plain: Parts = {}
        self.with_gpu: Parts = {}
        self.with_none: Parts = {}
        self.timing: dict[str, object] = {}

    @property
    def real(self) -> bool:
        """Tell whether NVIDIA's kernel driver runs here."""
        return KERNEL_DRIVER.exists()

    @property
    def gpu(self) -> dict[str, Any]:
        """The GPU that is asked for: the first one. Raises: NotRunError."""
        if not self.inventory:
            raise NotRunError("nvhook list failed: see list")
        found: dict[str, Any] = self.inventory["gpus"][0]
        return found

    @property
    def gpu_numbers(self) -> tuple[int, int]:
        """Its device numbers."""
        return self.inventory["majors"]["nvidia"], self.gpu["minor"]

    def need_containers(self) -> None:
        """Raises: NotRunError if runc can't make any."""
        if not self.plain:
            raise NotRunError("runc can't run a container on this machine: see runc-runs")

    def part(self, parts: Parts, title: str) -> str:
        """Return a part of what a container said. Raises: NotRunError if it did not get there."""
        self.need_containers()
        if title not in parts:
            raise NotRunError("its container did not run: see gpu-container and none-container")
        return parts[title][0]

    def edits(self, kind: str) -> list[dict[str, Any]]:
        """Return the plan's edits of a kind. Raises: NotRunError."""
        if not self.plan:
            raise NotRunError("nvhook plan failed: see plan")
        return [edit for edit in self.plan["edits"] if edit["kind"] == kind]

    def given(self) -> dict[str, str]:
        """Return the host path of every node the plan gives, by container path."""
        return {edit["container_path"]: edit["host_path"] for edit in self.edits("device-node")}

    def not_given(self) -> dict[str, tuple[int, int]]:
        """Return numbers of devices that are not asked for, by the node's name."""
        major, minor = self.gpu_numbers
        others = [gpu["minor"] for gpu in self.inventory["gpus"][1:4]] or [minor + 1]
        found = {f"nvidia{other}": (major, other) for other in others}
        found["nvidia-modeset"] = (major, 254)
        if "nvidia-caps" in self.inventory["majors"]:
            found["nvidia-caps/nvidia-cap1"] = (self.inventory["majors"]["nvidia-caps"], 1)
        return found
