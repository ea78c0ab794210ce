"""The floor (floor.c): built as the launcher is, with lists of what nvhook's plans come to."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from bundles import HERE, Bundle, output_of

from nvhook.config import Config
from nvhook.core.edits import CgroupRule, DeviceNode, LdCacheUpdate, Mount, Symlink
from nvhook.core.layout import container_layout
from nvhook.core.request import Request
from nvhook.create import pipeline
from nvhook.kernel import bpf, cgroup, programs


class Floor:
    """The floor's program, and what its lists need to know of this machine.

    ``libc`` is the one it is linked with, ``original`` the device program runc gives a container
    like ``plain``; empty where cgroup v1 decides.
    """

    def __init__(self, work: Path, plain: Bundle) -> None:
        self.work = work
        self.path = work / "floor"
        self.libc = _build(self.path)
        self.original = _device_program(plain)

    def hook(
        self, name: str, settings: Config, devices: str, root: Path, rootfs: Path
    ) -> list[str]:
        """Return the hook that gives the devices to a container at rootfs, a fresh one of root."""
        layout = container_layout(platform.machine(), debian=True, has_lib32=False)
        request = Request((devices,), ("compute", "utility"), "benchmark")
        lines, rules = [], []
        for edit in pipeline.plan_for(request, settings, layout).plan.edits:
            match edit:
                case CgroupRule():
                    rules.append((edit.type, edit.major, edit.minor, edit.access))
                case DeviceNode():
                    numbers = f"{edit.major} {edit.minor}"
                    lines.append(f"d {edit.host_path} {edit.container_path} {numbers}")
                case Mount() if edit.host_path and not edit.container_path.startswith("/proc/"):
                    lines.append(f"m {edit.host_path} {edit.container_path}")
                case Symlink():
                    lines.append(f"l {edit.target} {edit.container_path}")
                case LdCacheUpdate():
                    lines.append(f"c {root}/etc/ld.so.cache /etc/ld.so.cache")
        if self.original:
            program = self.work / f"{name}.program"
            program.write_bytes(bpf.prologue(rules) + self.original)
            lines.append(f"b {program} -")
        given = self.work / f"{name}.list"
        given.write_text("\n".join(lines) + "\n")
        return [str(self.path), str(given), str(rootfs)]


def _build(path: Path) -> str:
    """Compile the floor with the launcher's compiler; return the C library's name."""
    words: list[str | Path] = ["-O2", "-static", "-o", path, HERE / "floor.c"]
    if not shutil.which("musl-gcc"):
        subprocess.run(["gcc", *words], check=True)
        return "glibc"
    # The kernel's headers, which musl has none of, behind musl's own.
    triplet = output_of("gcc", "-print-multiarch").strip()
    kernel = ["-idirafter", "/usr/include", "-idirafter", f"/usr/include/{triplet}"]
    subprocess.run(["musl-gcc", *kernel, *words], check=True)
    return "musl"


def _device_program(plain: Bundle) -> bytes:
    """Return the instructions runc attaches to a container's cgroup; none on cgroup v1."""
    with plain.running() as pid, cgroup.find(pid) as found:
        if found.v1 is not None or not found.v2:
            return b""
        ids, _ = programs.attached(found.v2[0])
        program = programs.open_program(ids[0])
        try:
            return programs.instructions(program)
        finally:
            os.close(program)
