"""Checks outside of any container."""

import json
import os
import re

from findings import Findings, NotRunError, expect

UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def install(known: Findings) -> str:
    """The launcher finds its interpreter and its package, without pip and python-prctl."""
    done = known.machine.nvhook("--version")
    return expect(done.status == 0 and "nvhook" in done.out, done.out.strip() or done.why())


def list_gpus(known: Findings) -> str:
    """The command nvhook list finds the driver, its libraries and a GPU."""
    done = known.machine.nvhook("list", "--json", "--config", str(known.machine.config))
    expect(done.status == 0, done.why())
    found = json.loads(done.out)
    gpus = ", ".join(f"{gpu['index']}={gpu['uuid']}" for gpu in found["gpus"])
    libraries = len(found["libraries"])
    seen = f"driver {found['driver_version']}, {libraries} libraries, GPUs {gpus or 'none'}"
    expect(bool(gpus) and all(UUID.fullmatch(gpu["uuid"]) for gpu in found["gpus"]), seen)
    expect(bool(found["driver_version"]) and libraries > 0, seen)
    known.inventory = found
    return seen


def plan_one(known: Findings) -> str:
    """The command nvhook plan gives the GPU's node, rule, libraries and loader cache."""
    gpu, config = known.gpu, str(known.machine.config)
    done = known.machine.nvhook("plan", "--gpus", str(gpu["index"]), "--json", "--config", config)
    expect(done.status == 0, done.why())
    known.plan = json.loads(done.out)
    mounted = " ".join(edit["host_path"] for edit in known.edits("mount"))
    rules = known.edits("cgroup-rule")
    wanted = {
        "the GPU alone": [d["uuid"] for d in known.plan["devices"]] == [gpu["uuid"]],
        "its node": f"/dev/nvidia{gpu['minor']}" in known.given(),
        "its rule": any((r["major"], r["minor"]) == known.gpu_numbers for r in rules),
        "libcuda": "/libcuda.so." in mounted,
        "libnvidia-ml": "/libnvidia-ml.so." in mounted,
        "nvidia-smi": "/nvidia-smi" in mounted,
        "loader cache": bool(known.edits("ld-cache")),
    }
    missing = [name for name, there in wanted.items() if not there]
    expect(not missing, f"the plan lacks {', '.join(missing)}")
    return f"{len(known.plan['edits'])} edits: {', '.join(wanted)}"


def list_as_nvidia_smi(known: Findings) -> str:
    """The host's own nvidia-smi names the same GPUs as nvhook list."""
    if not known.real:
        raise NotRunError("no NVIDIA kernel driver: the host's nvidia-smi can't answer")
    mounted = [edit["host_path"] for edit in known.edits("mount")]
    programs = [path for path in mounted if path.endswith("/nvidia-smi")] or ["nvidia-smi"]
    libraries = {os.path.dirname(path) for path in known.inventory["libraries"]}
    env = dict(os.environ, LD_LIBRARY_PATH=":".join(sorted(libraries)))
    done = known.machine.run(programs[0], "-L", env=env)
    expect(done.status == 0, done.why())
    ours = sorted(gpu["uuid"] for gpu in known.inventory["gpus"])
    # A MIG device's line says MIG-, so that only whole GPUs are found.
    theirs = sorted(UUID.findall(done.out))
    return expect(ours == theirs, f"nvidia-smi: {' '.join(theirs)}; nvhook: {' '.join(ours)}")
