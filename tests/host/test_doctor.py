"""nvhook doctor on simulated hosts, whole and broken: it names what is broken, and the remedy."""

import json
import os
import socket
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvhook import config as configuration
from nvhook import state
from nvhook.cli.root import main
from nvhook.create import pipeline
from nvhook.doctor import engine_checks, report, system_checks
from nvhook.doctor.check import FAILED, NOT_APPLICABLE, NOT_CHECKED, OK, WARNING, Check
from nvhook.kernel import features
from nvhook.sim import driver as sim_driver

X86 = "usr/lib/x86_64-linux-gnu"
VERSION = sim_driver.DEFAULT_VERSION
NOT_HERE = (
    "capability-nodes",
    "selinux",
    "apparmor",
    "cdi-specs",
    "docker",
    "containerd",
    "crio",
    "podman",
)
NODES = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1")


class Host:
    """A simulated driver, and a directory for the machine's other files."""

    def __init__(self, place: Path) -> None:
        self.sim = place / "sim"
        self.settings = Path(sim_driver.create(str(self.sim), gpus=2))
        with self.settings.open("a") as file:
            file.write(f'cdi-spec-directories = ["{place}/cdi"]\n')
        self.cdi = place / "cdi"
        self.machine = place / "machine"
        (self.machine / "run/systemd/system").mkdir(parents=True)
        self.put("/proc/sys/net/core/bpf_jit_harden", "1\n")
        for name in NODES:
            number = (self.sim / "dev" / name).stat().st_rdev
            self.put(f"/dev/char/{os.major(number)}:{os.minor(number)}")

    def put(self, path: str, text: str = "", mode: int = 0o644) -> Path:
        """Write a file of the machine."""
        target = self.machine / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        return target

    def edit(self, path: str, old: str, new: str) -> None:
        """Change a text of the simulated driver."""
        target = self.sim / path
        text = target.read_text()
        assert old in text
        target.chmod(0o644)
        target.write_text(text.replace(old, new))

    def node(self, name: str, major: int, minor: int) -> None:
        """Make another node in place of one."""
        path = self.sim / "dev" / name
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        path.chmod(0o666)

    def setting(self, key: str, value: str) -> None:
        """Set a key of the configuration anew."""
        lines = [ln for ln in self.settings.read_text().splitlines() if not ln.startswith(key)]
        self.settings.write_text("\n".join([*lines, f"{key} = {value}", ""]))

    def checks(self) -> dict[str, Check]:
        found = report.of_host(str(self.settings), str(self.machine))
        names = [check.name for check in found]
        assert len(names) == len(set(names))
        return dict(zip(names, found, strict=True))


@pytest.fixture
def host(tmp_path: Path, monkeypatch, require) -> Host:
    require(os.geteuid() == 0, "needs root for device nodes")
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "remembered"))
    return Host(tmp_path)


def broken(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if check.status in {FAILED, WARNING}}


def test_a_healthy_host_passes(host, monkeypatch):
    assert broken(host.checks()) == set()
    monkeypatch.setattr(report, "of_host", partial(report.of_host, root=str(host.machine)))

    result = CliRunner().invoke(main, ["doctor", "--config", str(host.settings), "--json"])

    assert result.exit_code == 0, result.output
    checks = json.loads(result.stdout)["checks"]
    assert {tuple(check) for check in checks} == {("name", "status", "saw", "expected", "fix")}
    not_ok = {check["name"]: check["status"] for check in checks if check["status"] != OK}
    assert not_ok.pop("bpf-jit-harden", NOT_APPLICABLE) == NOT_APPLICABLE  # on cgroup v1
    assert not_ok == dict.fromkeys(NOT_HERE, NOT_APPLICABLE)


def no_driver(host: Host) -> None:
    (host.sim / "proc/driver/nvidia/version").unlink()
    (host.sim / "sys/module/nvidia/version").unlink()


def nouveau(host: Host) -> None:
    no_driver(host)
    (host.sim / "sys/module/nouveau").mkdir()


def no_gpu_at_all(host: Host) -> None:
    no_driver(host)
    (host.sim / "sys/bus/pci/devices").rename(host.sim / "sys/bus/pci/gone")


def loaded_version(version: str) -> Callable[[Host], None]:
    return lambda host: host.edit("proc/driver/nvidia/version", VERSION, version)


def libraries_removed(name: str) -> Callable[[Host], None]:
    def remove(host: Host) -> None:
        found = list((host.sim / "root/usr/lib").glob(f"*/{name}.so.{VERSION}"))
        assert found
        for path in found:
            path.unlink()

    return remove


def node_removed(name: str) -> Callable[[Host], None]:
    return lambda host: (host.sim / "dev" / name).unlink()


def node_of(name: str, major: int, minor: int) -> Callable[[Host], None]:
    return lambda host: host.node(name, major, minor)


def node_is_a_file(host: Host) -> None:
    node_removed("nvidia0")(host)
    (host.sim / "dev/nvidia0").write_text("")


def no_uvm_module(host: Host) -> None:
    lines = (host.sim / "proc/devices").read_text().splitlines(keepends=True)
    (line,) = [line for line in lines if line.endswith(" nvidia-uvm\n")]
    host.edit("proc/devices", line, "")


def gpu_not_bound(host: Host) -> None:
    directory = host.sim / "proc/driver/nvidia/gpus/0000:07:00.0"
    (directory / "information").unlink()
    directory.rmdir()


def no_gpu_in_proc(host: Host) -> None:
    (host.sim / "proc/driver/nvidia/gpus").rename(host.sim / "proc/driver/nvidia/gone")


def information(old: str, new: str) -> Callable[[Host], None]:
    path = "proc/driver/nvidia/gpus/0000:04:00.0/information"
    return lambda host: host.edit(path, old, new)


def unknown_uuid(host: Host) -> None:
    path = "proc/driver/nvidia/gpus/0000:04:00.0/information"
    uuid = (host.sim / path).read_text().partition("GPU-")[2][:36]
    host.edit(path, uuid, "????????-????-????-????-????????????")


def cards_layout(host: Host) -> None:
    path = host.sim / "proc/driver/nvidia/gpus/0000:04:00.0/information"
    path.chmod(0o644)
    path.write_text("Card Type: \t GeForce 8800\nIRQ: \t 16\n")


def no_loader_cache(host: Host) -> None:
    (host.sim / "root/etc/ld.so.cache").unlink()


def empty_loader_cache(host: Host) -> None:
    (host.sim / "root/etc/ld.so.cache").write_bytes(b"")


def damaged_loader_cache(host: Host) -> None:
    (host.sim / "root/etc/ld.so.cache").write_bytes(b"x" * 500)


def link_of_loader_cache_removed(host: Host) -> None:
    (host.sim / "root" / X86 / "libcuda.so.1").unlink()


def no_persistence_daemon(host: Host) -> None:
    (host.sim / "root/run/nvidia-persistenced/socket").unlink()


def old_capability_node(host: Host) -> None:
    host.node("nvidia-caps/nvidia-cap1", 240, 1)


def closed_nodes(host: Host) -> None:
    (host.sim / "dev/nvidia1").chmod(0o660)


def no_char_link(host: Host) -> None:
    (host.machine / "dev/char/195:1").unlink()


def stale_inventory(host: Host) -> None:
    """A library goes without a trace in the loader cache's time stamp."""
    pipeline.inventory(configuration.load(str(host.settings)))
    libraries_removed("libnvidia-encode")(host)


def selinux_enforcing(host: Host) -> None:
    host.put("/sys/fs/selinux/enforce", "1")
    host.put("/sys/fs/selinux/booleans/container_use_devices", "0 0")


def no_place_for_the_log(host: Host) -> None:
    host.setting("log-path", f'"{host.sim}/gone/nvhook.log"')


def log_is_a_link(host: Host) -> None:
    (host.sim / "nvhook.log").symlink_to("/etc/passwd")


BROKEN = [
    (no_driver, "driver-loaded", FAILED, "0000:04:00.0", "modprobe nvidia"),
    (nouveau, "driver-loaded", FAILED, "no NVIDIA driver is loaded", "blacklist"),
    (no_gpu_at_all, "driver-loaded", FAILED, "PCI bus: none", "lspci -d 10de:"),
    (loaded_version("390.157"), "driver-age", FAILED, "driver 390.157", "newer driver"),
    (loaded_version("470.256.02"), "driver-age", WARNING, "driver 470.256.02", "newer driver"),
    (
        loaded_version("560.35.03"),
        "driver-libraries",
        FAILED,
        f"kernel module 560.35.03, libnvidia-ml.so {VERSION}",
        "reboot",
    ),
    (libraries_removed("libcuda"), "driver-libraries", FAILED, "no libcuda.so", "install"),
    (libraries_removed("libnvidia-ml"), "driver-libraries", FAILED, "no libnvidia-ml", "install"),
    (node_removed("nvidia1"), "gpu-nodes", FAILED, "nvidia1 is missing", "nvidia-modprobe -c 1"),
    (node_removed("nvidiactl"), "gpu-nodes", FAILED, "nvidiactl is missing", "nvidia-modprobe"),
    (node_of("nvidia0", 195, 9), "gpu-nodes", FAILED, "nvidia0 is 195:9", "rm "),
    (node_is_a_file, "gpu-nodes", FAILED, "nvidia0 is a file", "rm "),
    (node_of("nvidia-uvm", 240, 0), "nvidia-uvm", FAILED, "nvidia-uvm is 240:0", "rm "),
    (node_removed("nvidia-uvm"), "nvidia-uvm", FAILED, "is missing", "nvidia-modprobe -u -c 0"),
    (no_uvm_module, "nvidia-uvm", FAILED, "has no nvidia-uvm", "modprobe nvidia-uvm"),
    (node_removed("nvidia-modeset"), "nvidia-modeset", WARNING, "missing", "nvidia-modprobe -m"),
    (gpu_not_bound, "gpus", WARNING, "0000:07:00.0", "dmesg"),
    (no_gpu_in_proc, "gpus", FAILED, "the driver has no GPU", "dmesg"),
    (information("Device Minor", "Device Other"), "gpus", FAILED, "no device minor", "dmesg"),
    (information("Excluded:\t No", "Excluded:\t Yes"), "gpus", OK, "1 excluded", ""),
    (unknown_uuid, "gpus", WARNING, "UUID of 0000:04:00.0", "nvidia-smi -L"),
    (cards_layout, "gpus", FAILED, "cards layout", "dmesg"),
    (no_loader_cache, "loader-cache", WARNING, "ld.so.cache is absent", "ldconfig -r"),
    (empty_loader_cache, "loader-cache", WARNING, "libcuda.so.1 is not listed", "ldconfig -r"),
    (damaged_loader_cache, "loader-cache", WARNING, "ld.so.cache: ", "ldconfig -r"),
    (link_of_loader_cache_removed, "loader-cache", WARNING, "does not exist", "ldconfig -r"),
    (no_persistence_daemon, "persistence-daemon", WARNING, "no /run/nvidia", "systemctl enable"),
    (old_capability_node, "capability-nodes", FAILED, "nvidia-cap1 = 240:1", "nvidia-modprobe"),
    (closed_nodes, "node-permissions", WARNING, "nvidia1 is 0660 0:0", "NVreg_DeviceFileMode"),
    (no_char_link, "char-links", WARNING, "no 195:1 (nvidia1)", "ln -s ../"),
    (stale_inventory, "inventory-cache", FAILED, "other libraries than the host", "rm "),
    (selinux_enforcing, "selinux", WARNING, "container_use_devices is off", "setsebool"),
    (no_place_for_the_log, "log", FAILED, "can't be made", "mkdir -p"),
    (log_is_a_link, "log", FAILED, "is a link", "rm "),
]
# What a break takes along: everything else must stay as on a healthy host.
CONSEQUENCES = {
    "driver-loaded": set(),
    "driver-age": {"driver-libraries"},
    "driver-libraries": {"loader-cache"},
    "gpu-nodes": {"char-links"},
    "nvidia-uvm": {"char-links"},
    "gpus": set(),
}


@pytest.mark.parametrize(
    ("change", "name", "status", "saw", "fix"),
    BROKEN,
    ids=[f"{case[1]}-{case[3].replace(' ', '-')}" for case in BROKEN],
)
def test_a_broken_host_is_named(host, change, name, status, saw, fix):
    change(host)

    checks = host.checks()

    check = checks[name]
    assert check.status == status, check
    assert saw in check.saw
    assert fix in check.fix
    assert bool(check.expected) == (status != OK)
    assert broken(checks) - CONSEQUENCES.get(name, set()) == ({name} if status != OK else set())


def test_what_depends_on_the_driver_is_not_called_good_without_one(host):
    no_driver(host)

    checks = host.checks()

    for name in ("driver-age", "gpus", "driver-libraries", "gpu-nodes", "inventory-cache"):
        assert checks[name].status == NOT_CHECKED
        assert checks[name].saw == "no driver is loaded"


@pytest.mark.parametrize(
    ("version", "kind"), [("550.54.14", "proprietary"), ("570.86.15", "open kernel modules")]
)
def test_open_and_proprietary_modules_are_told_apart(tmp_path, version, kind):
    settings = sim_driver.create(str(tmp_path / "sim"), gpus=1, driver_version=version)

    checks = report.of_host(settings, str(tmp_path))

    assert f"driver {version}, " in checks[0].saw
    assert kind in checks[0].saw


@pytest.mark.parametrize(
    ("text", "saw"),
    [
        ("driver-root = \n", "line 1"),
        ('driver-rot = "/"\n', "unknown key driver-rot"),
        ("device-rules = 1\n", "device-rules must be true or false"),
    ],
)
def test_a_wrong_configuration_is_named_and_nothing_is_guessed(host, text, saw):
    host.settings.write_text(text)

    checks = host.checks()

    assert saw in checks["configuration"].saw
    assert checks["configuration"].fix
    assert {name: check.status for name, check in checks.items()} == {
        "configuration": FAILED,
        "driver-loaded": NOT_CHECKED,
    }


def test_a_configuration_that_does_not_exist(host):
    host.settings.unlink()
    assert "does not exist" in host.checks()["configuration"].saw


def test_an_inventory_of_another_boot_is_no_fault(host):
    stale_inventory(host)
    host.edit("proc/sys/kernel/random/boot_id", "-", "+")
    assert "makes it anew" in host.checks()["inventory-cache"].saw


# ---- CDI ----


def generated(host: Host) -> Path:
    """Let nvhook write a spec."""
    launcher = host.put("/usr/local/bin/nvhook", "#!/bin/true\n", 0o755)
    spec = host.cdi / "nvidia.yaml"
    command = ["cdi", "generate", "--config", str(host.settings), "--hook-path", str(launcher)]
    result = CliRunner().invoke(main, [*command, "--output", str(spec)])
    assert result.exit_code == 0, result.output
    return spec


def cdi_node_changed(host: Host, _spec: Path) -> None:
    """After a boot the driver, and its node, have another major than the spec."""
    major = int((host.sim / "proc/devices").read_text().partition(" nvidia-uvm\n")[0].split()[-1])
    host.edit("proc/devices", f"{major} nvidia-uvm\n", "333 nvidia-uvm\n")
    for name, minor in (("nvidia-uvm", 0), ("nvidia-uvm-tools", 1)):
        host.node(name, 333, minor)
        host.put(f"/dev/char/333:{minor}")


def cdi_library_gone(host: Host, _spec: Path) -> None:
    libraries_removed("libnvidia-encode")(host)


def cdi_hook_gone(host: Host, _spec: Path) -> None:
    (host.machine / "usr/local/bin/nvhook").unlink()


def cdi_twice(_host: Host, spec: Path) -> None:
    spec.with_name("other.yaml").write_text(spec.read_text())


def cdi_invalid(_host: Host, spec: Path) -> None:
    spec.write_text(spec.read_text().replace("cdiVersion", "cdiVersions"))


@pytest.mark.parametrize(
    ("change", "saw", "fix"),
    [
        (cdi_node_changed, "nvidia-uvm is 333:0, not ", "nvhook cdi generate --output "),
        (cdi_library_gone, f"libnvidia-encode.so.{VERSION} does not exist", "cdi generate"),
        (cdi_hook_gone, "bin/nvhook can't be executed", "cdi generate"),
        (cdi_twice, "other.yaml", "remove one"),
        (cdi_invalid, "nvidia.yaml", "nvhook cdi validate"),
    ],
)
def test_a_stale_or_wrong_cdi_spec_is_named(host, change, saw, fix):
    spec = generated(host)
    assert host.checks()["cdi-specs"].status == OK
    change(host, spec)

    checks = host.checks()

    assert checks["cdi-specs"].status == FAILED
    assert saw in checks["cdi-specs"].saw
    assert fix in checks["cdi-specs"].fix


def test_specs_of_other_vendors_are_not_judged(host):
    host.cdi.mkdir()
    (host.cdi / "bad.json").write_text('{"cdiVersion": "0.5.0", "kind": "amd.com/gpu"}')
    assert host.checks()["cdi-specs"].status == NOT_APPLICABLE


# ---- engines ----

RUNTIME = "/usr/local/bin/nvhook-runtime"
CONTAINERD = f"""version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "{RUNTIME}"
"""
DOCKER = json.dumps({"runtimes": {"nvidia": {"path": RUNTIME}}})
CRIO = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{RUNTIME}"\n'
PODMAN = f'[engine.runtimes]\nnvidia = ["{RUNTIME}"]\n'
HOOK = json.dumps({"version": "1.0.0", "hook": {"path": "/usr/local/bin/nvhook"}})
FILES = {
    "docker": ("/etc/docker/daemon.json", DOCKER),
    "containerd": ("/etc/containerd/config.toml", CONTAINERD),
    "crio": ("/etc/crio/crio.conf.d/99-nvhook.conf", CRIO),
    "podman": ("/etc/containers/containers.conf.d/99-nvhook.conf", PODMAN),
}
DAEMONS = {"docker": "dockerd"}


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Path]:
    """Write files (path, text) below a root; programs have the mode of programs."""

    def put(*files: tuple[str, str]) -> Path:
        for path, text in files:
            target = tmp_path / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            if "bin/" in path:
                target.chmod(0o755)
        return tmp_path

    return put


def engine(root: Path, name: str) -> Check:
    return {check.name: check for check in engine_checks.checks(str(root))}[name]


@pytest.mark.parametrize("name", FILES)
def test_a_registered_runtime_that_is_there(machine, name):
    root = machine((f"/usr/bin/{DAEMONS.get(name, name)}", ""), FILES[name], (RUNTIME, ""))
    check = engine(root, name)
    assert (check.status, check.saw) == (OK, f"runtime nvidia = {RUNTIME}")


@pytest.mark.parametrize("name", FILES)
def test_a_registered_runtime_that_is_missing(machine, name):
    check = engine(machine((f"/usr/bin/{DAEMONS.get(name, name)}", ""), FILES[name]), name)
    assert check.status == FAILED
    assert f"{FILES[name][0]}: runtime nvidia is {RUNTIME}, no program" in check.saw
    assert check.fix.startswith(f"nvhook configure {name}")


@pytest.mark.parametrize("name", FILES)
def test_an_engine_that_knows_nothing_of_gpus(machine, name):
    check = engine(machine((f"/usr/bin/{DAEMONS.get(name, name)}", "")), name)
    assert check.status == WARNING
    assert "knows no GPU runtime" in check.saw
    assert check.fix.startswith(f"nvhook configure {name}")


@pytest.mark.parametrize(
    ("name", "files", "status", "saw"),
    [
        ("docker", [("/etc/docker/daemon.json", '{"a": 1 "b": 2}')], FAILED, "line 1"),
        (
            "docker",
            [("/etc/docker/daemon.json", '{"default-runtime": "nvidia"}')],
            WARNING,
            "the default runtime nvidia is not registered",
        ),
        (
            "docker",
            [("/usr/bin/dockerd", ""), ("/snap/bin/docker", "")],
            WARNING,
            "docker of a snap",
        ),
        (
            "docker",
            [("/usr/bin/dockerd", ""), ("/usr/bin/nvidia-container-runtime-hook", "")],
            OK,
            "hook of --gpus = /usr/bin/nvidia-container-runtime-hook",
        ),
        (
            "containerd",
            [
                ("/etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n' + CONTAINERD),
                (RUNTIME, ""),
            ],
            WARNING,
            "disables the CRI plugin",
        ),
        (
            "containerd",
            [
                ("/etc/containerd/config.toml", 'version = 2\nimports = ["conf.d/*.toml"]\n'),
                ("/etc/containerd/conf.d/gpu.toml", CONTAINERD),
            ],
            FAILED,
            "conf.d/gpu.toml: runtime nvidia",
        ),
        ("containerd", [("/etc/containerd/config.toml", "version = \n")], FAILED, "line 1"),
        (
            "crio",
            [
                ("/etc/crio/crio.conf", '[crio.runtime]\nhooks_dir = ["/run/hooks.d"]\n'),
                ("/usr/share/containers/oci/hooks.d/nvhook.json", HOOK),
            ],
            WARNING,
            "hooks_dir does not name the directory",
        ),
        (
            "podman",
            [("/usr/bin/podman", ""), ("/usr/share/containers/oci/hooks.d/nvhook.json", HOOK)],
            FAILED,
            "hook is /usr/local/bin/nvhook, no program",
        ),
        (
            "podman",
            [
                ("/usr/bin/podman", ""),
                ("/usr/local/bin/nvhook", ""),
                ("/usr/share/containers/oci/hooks.d/nvhook.json", HOOK),
                ("/etc/containers/oci/hooks.d/oci-nvidia.json", HOOK),
            ],
            WARNING,
            "inject GPUs twice",
        ),
    ],
)
def test_a_wrong_engine_configuration_is_named(machine, name, files, status, saw):
    check = engine(machine(*files), name)
    assert check.status == status, check
    assert saw in check.saw


def test_an_engine_that_is_not_installed(tmp_path):
    assert {check.status for check in engine_checks.checks(str(tmp_path))} == {NOT_APPLICABLE}


# ---- the kernel ----


@pytest.mark.parametrize(
    ("mode", "status"),
    [(features.V1, NOT_APPLICABLE), (features.HYBRID, WARNING), (features.V2, FAILED)],
)
def test_hidden_device_programs(host, mode, status):
    host.put("/proc/sys/net/core/bpf_jit_harden", "2\n")
    facts = report.facts.read(configuration.load(str(host.settings)), str(host.machine))
    check = system_checks.jit_hardening(facts, mode)
    assert check.status == status
    assert status == NOT_APPLICABLE or "bpf_jit_harden=1" in check.fix


def test_no_device_cgroup_at_all():
    check = system_checks.cgroup_mode("")
    assert check.status == FAILED
    assert "mount -t cgroup2" in check.fix


def test_a_kernel_that_lacks_something_is_told_by_what_it_lacks(monkeypatch, require):
    require(os.geteuid() == 0, "needs root")
    assert system_checks.kernel_features(None).status == OK
    monkeypatch.setattr(features, "_mount_setattr", refused)
    check = system_checks.kernel_features(None)
    assert check.status == FAILED
    assert "mount_setattr (Linux 5.12): Function not implemented" in check.saw


def refused() -> int:
    raise OSError(38, "Function not implemented")


def test_a_socket_for_a_log_is_named(tmp_path, host):
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(tmp_path / "sim/nvhook.log"))
        assert host.checks()["log"].status == FAILED
