"""WSL 2 and Jetsons, as far as their files and nodes go: real containers open the nodes.

Nothing stands behind the nodes: what the device rules let through ends in ENXIO, or in ENODEV for
the major that all small drivers share.
"""

import json
import os
import platform
import stat
import subprocess
import sysconfig
from pathlib import Path

import pytest

from nvhook.formats import json_text
from nvhook.sim.elf_writer import ABIS, shared_library
from tests.host.conftest import FakeHost
from tests.host.layouts import LAYOUTS, STORE, WITHOUT_DRIVER
from tests.runtime.bundle import flat
from tests.runtime.cdi_specs import generate_and_inject
from tests.runtime.live import Live
from tests.runtime.simulated import Driver

ALLOWED = ("ENODEV", "ENXIO")
TEGRA = "/usr/lib/aarch64-linux-gnu/tegra"
# Where libcuda.so.1 is for the loader, and what programs of the driver and the system there are.
LIBCUDA = {"wsl": f"{STORE}/libcuda.so.1", "jetson": f"{TEGRA}/libcuda.so.1"}
THERE = {
    "wsl": ("/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/libdxcore.so", f"{STORE}/nvcubins.bin"),
    "jetson": ("/etc/nv_tegra_release", f"{TEGRA}/libcuda.so.1.1", "/usr/share/nvidia/tegra-fonts"),
}
NODES = {"wsl": ("dxg",), "jetson": ("nvmap", "nvhost-as-gpu", "nvhost-vic", "nvgpu/igpu0/ctrl")}


class Machine(FakeHost, Driver):
    """A layout whose nodes are real, and whose libraries a loader of this machine can load."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory)
        self.directory = directory
        self.launcher = Path(sysconfig.get_path("scripts")) / "nvhook"
        self.made: dict[str, tuple[int, int]] = {}
        LAYOUTS[name][1](self)
        self.config = directory / "config.toml"
        roots = {"driver": self.root, "dev": self.dev, "proc": self.proc, "sys": self.sys}
        lines = [f'{key}-root = "{path}"\n' for key, path in roots.items()]
        self.config.write_text("".join([*lines, f'state-directory = "{self.state}"\n']))

    def library(self, path: str, soname: str, tag: str = "") -> Path:
        return self.put(path, shared_library(ABIS[platform.machine()], soname, path))

    def fake_node(self, name: str, major: int, minor: int) -> None:
        path = self.dev / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        path.chmod(0o666)
        self.made[name] = (major, minor)

    def numbers(self) -> dict[str, tuple[int, int]]:
        return self.made


@pytest.fixture(params=WITHOUT_DRIVER)
def machine(request, place: Path) -> tuple[str, Machine]:
    directory = place / "machine"
    directory.mkdir()
    return request.param, Machine(directory, request.param)


def opened(answers: dict[str, str], machine: Machine, directory: str) -> set[str]:
    names = machine.numbers()
    return {n for n in names if answers[f"open {directory}{flat(n)}"] in ALLOWED}


@pytest.mark.parametrize("asked", ["all", "0", "none"])
def test_its_nodes_can_be_opened_and_no_others(started_by, bundles, machine, asked) -> None:
    name, host = machine
    bundle = bundles(started_by, host=host)
    bundle.ask(f"NVIDIA_VISIBLE_DEVICES={asked}")
    words = []
    for node in host.numbers():
        words += ["open", f"/nodes/{flat(node)}", "open", f"/dev/{node}"]
    bundle.args("/probe", *words)
    answers = started_by.start(bundle).answers

    given = set(NODES[name]) if asked != "none" else set()
    for node in host.numbers().keys() - {"null"}:  # every container has that one
        image, injected = answers[f"open /nodes/{flat(node)}"], answers[f"open /dev/{node}"]
        assert (image in ALLOWED, injected in ALLOWED) == (node in given, node in given), node
        if node not in given:
            assert (image, injected) == ("EPERM", "ENOENT")


def test_the_loader_finds_cuda_and_files_are_where_the_host_has_them(
    started_by, bundles, machine, debian
) -> None:
    name, host = machine
    bundle = bundles(started_by, debian, host)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=all")
    tests = " ".join(f"test -e {path} || echo missing {path};" for path in THERE[name])
    bundle.args("/bin/sh", "-c", f"{tests} /sbin/ldconfig -p | grep 'libcuda.so.1 '")
    output = started_by.start(bundle).stdout
    assert "missing" not in output
    assert output.strip().endswith(f"=> {LIBCUDA[name]}")
    assert (bundle.seen_root / "usr/lib").exists()


def test_a_cdi_spec_gives_the_same(runc, bundles, machine, place, debian) -> None:
    name, host = machine
    bundle = bundles(runc, debian, host)
    bundle.config.pop("hooks")
    generate_and_inject(bundle, place, ["all"])
    words = " ".join(f"open /dev/{node}" for node in NODES[name])
    bundle.args("/bin/sh", "-c", f"/probe {words}; /sbin/ldconfig -p | sed -n 's/ => / = /p'")
    answers = runc.start(bundle).answers
    assert all(answers[f"open /dev/{node}"] in ALLOWED for node in NODES[name])
    found = {path for question, path in answers.items() if "libcuda.so.1 " in question}
    assert found == {LIBCUDA[name]}


def test_commands_know_the_machine(machine, place: Path) -> None:
    name, host = machine

    def nvhook(*words: str) -> str:
        command = [host.launcher, *words, "--config", host.config]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert {"wsl": "WSL 2", "jetson": "a Jetson"}[name] in nvhook("list")
    plan = json.loads(nvhook("plan", "--gpus", "all", "--json"))
    assert [device["index"] for device in plan["devices"]] == [0]
    doctor = {each["name"]: each for each in json.loads(nvhook("doctor", "--json"))["checks"]}
    for check in ("driver-loaded", "gpus", "driver-libraries", "gpu-nodes"):
        assert doctor[check]["status"] == "ok", doctor[check]
    assert doctor["nvidia-uvm"]["status"] == "not-applicable"
    spec = place / "nvidia.json"
    output = nvhook("cdi", "generate", "--output", str(spec))
    assert spec.exists(), output
    document = json_text.parse(spec.read_bytes(), str(spec))
    assert [device["name"] for device in document["devices"]] == ["0", "all"]
    nodes = {node["path"] for node in document["devices"][1]["containerEdits"]["deviceNodes"]}
    assert nodes == {f"/dev/{node}" for node in NODES[name]}
    assert "valid" in nvhook("cdi", "validate", str(spec), "--json")
    assert "containers can't be told" in nvhook("list", "--containers")


@pytest.mark.parametrize("command", ["inject", "eject"])
def test_a_running_container_stays_as_it_is(runc, bundles, machine, command) -> None:
    _, host = machine
    container = Live(runc, bundles(runc, host=host))
    try:
        done = container.nvhook(command, "--gpus", "all")
    finally:
        container.delete()
    assert done.returncode == 1
    assert "can't be given to a running container yet, nor taken" in done.stderr
