"""nvhook sim create: what it makes, what it refuses, and that a second run makes the same again."""

import ctypes
import os
import platform
import re
import socket
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import click
import pytest

from nvhook.cli.sim import sim
from nvhook.errors import HostError
from nvhook.sim import driver_root
from nvhook.sim.driver import create
from nvhook.sim.elf_writer import ABIS, SYMBOL, shared_library
from nvhook.sim.kernel_files import proc_files
from nvhook.sim.machine import build_machine, gpu_uuid, state_text

DATA = Path(__file__).parents[1] / "data"
TRIPLET = driver_root.TRIPLETS[platform.machine()]


def quiet(_line: str) -> None:
    """Take the lines about what this user can't do: the root tests look at them."""


def make(directory: Path, **settings: object) -> Path:
    return Path(create(str(directory), report=quiet, **settings)).parent  # type: ignore[arg-type]


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    return make(tmp_path / "sim")


def tree(base: Path) -> dict[str, tuple[int, int, str]]:
    """Return mode, device number and content (or link target) of everything below base."""
    found = {}
    for path in sorted(base.rglob("*")):
        status = path.lstat()
        content = ""
        if stat.S_ISLNK(status.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            content = sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(base))] = (status.st_mode, status.st_rdev, content)
    return found


# --- ELF files


def test_the_loader_takes_a_written_library_by_its_soname(tmp_path: Path) -> None:
    image = shared_library(ABIS[platform.machine()], "libnvhooksimtest.so.7", "hello loader")
    path = tmp_path / "file-name-that-is-not-the-soname"
    path.write_bytes(image)
    library = ctypes.CDLL(str(path))
    text = ctypes.c_char.in_dll(library, SYMBOL)
    assert ctypes.string_at(ctypes.addressof(text)) == b"hello loader"
    # glibc finds a library that is loaded already by DT_SONAME, and by nothing else.
    assert ctypes.CDLL("libnvhooksimtest.so.7")._handle == library._handle


LOAD_ALL = """
import ctypes, sys
for line in sys.stdin:
    path, soname = line.split()
    handle = ctypes.CDLL(path)._handle
    assert ctypes.CDLL(soname)._handle == handle, soname
    print(soname)
"""


def test_every_library_of_the_machine_can_be_loaded(simulated: Path) -> None:
    directory = simulated / "root/usr/lib" / TRIPLET
    version = "550.54.14"
    names = driver_root.LIBRARIES
    sonames = [driver_root.soname_of(name, version) for name in names]
    lines = [
        f"{directory}/{name}.{version} {soname}\n"
        for name, soname in zip(names, sonames, strict=True)
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOAD_ALL],
        input="".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == sonames
    for soname in sonames:
        assert (directory / soname).resolve().name.endswith(version)


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="only x86-64 drivers have i386 libraries"
)
def test_i386_libraries_are_of_the_other_class(simulated: Path) -> None:
    directory = simulated / "root/usr/lib/i386-linux-gnu"
    assert len(list(directory.glob("*.550.54.14"))) == len(driver_root.LIBRARIES_32)
    with pytest.raises(OSError, match="ELFCLASS32"):
        ctypes.CDLL(str(directory / "libnvidia-glcore.so.550.54.14"))


# --- the directory


def test_config_points_into_the_directory(simulated: Path) -> None:
    lines = (simulated / "config.toml").read_text().splitlines()
    settings = dict(re.fullmatch(r'([a-z-]+) = "(.*)"', line).groups() for line in lines[1:])
    assert settings == {
        "driver-root": f"{simulated}/root",
        "dev-root": f"{simulated}/dev",
        "proc-root": f"{simulated}/proc",
        "sys-root": f"{simulated}/sys",
        "state-directory": f"{simulated}/run",
        "log-path": f"{simulated}/nvhook.log",
    }
    for key, path in settings.items():
        assert key == "log-path" or Path(path).is_dir()


def test_a_second_run_makes_the_same_again(simulated: Path) -> None:
    before = tree(simulated)
    (simulated / "state").write_text("gpu0.status=lost\n")
    (simulated / "run/inventory").write_text("stale")
    (simulated / "root/usr/bin/nvidia-smi").unlink()
    make(simulated)
    assert tree(simulated) == before


def test_a_rebuild_follows_the_settings(simulated: Path) -> None:
    make(simulated, gpus=1, driver_version="535.054.03")
    assert [p.name for p in (simulated / "proc/driver/nvidia/gpus").iterdir()] == ["0000:04:00.0"]
    directory = simulated / "root/usr/lib" / TRIPLET
    assert (directory / "libcuda.so.1").readlink() == Path("libcuda.so.535.054.03")
    assert not list(simulated.rglob("*550*"))


@pytest.mark.parametrize("entry", ["config.toml", "root", "state"])
def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, entry: str) -> None:
    (tmp_path / entry).write_text("precious")
    with pytest.raises(HostError, match="not empty"):
        make(tmp_path)
    assert tree(tmp_path) == {
        entry: ((tmp_path / entry).stat().st_mode, 0, sha256(b"precious").hexdigest())
    }


def test_sockets_are_sockets_however_deep(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    make(deep)
    path = deep / "root/run/nvidia-persistenced/socket"
    assert stat.S_ISSOCK(path.lstat().st_mode)
    fd = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
            client.connect(f"/proc/self/fd/{fd}/socket")
    finally:
        os.close(fd)


def test_missing_programs_are_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_root, "ARTEFACTS", str(tmp_path / "nowhere"))
    with pytest.raises(HostError, match=r"can't be read .*hint: install nvhook from a wheel"):
        make(tmp_path / "sim")


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="can't be written"):
        make(tmp_path / "file")


# --- what the kernel modules show


def labels(text: str) -> list[str]:
    """Return each line up to its value: the label with its blanks and tabs."""
    return [re.match(r"[^:]*:[ \t]*", line).group() for line in text.splitlines()]


def test_information_has_the_format_of_a_real_file() -> None:
    sample = (DATA / "proc_information/h100_80gb_hbm3-535.129.03.txt").read_text()
    machine = build_machine(1, "NVIDIA H100 80GB HBM3", "535.129.03")
    text = proc_files(machine, "x86_64")["driver/nvidia/gpus/0000:04:00.0/information"]
    assert labels(text) == labels(sample)
    assert text.splitlines()[0] == sample.splitlines()[0]


@pytest.mark.parametrize(
    ("version", "sample"),
    [
        ("535.129.03", "version-535-proprietary-x86_64.txt"),
        ("560.35", "version-555.42.06-open-sles15.txt"),
    ],
)
def test_version_has_the_format_of_a_real_file(version: str, sample: str) -> None:
    first = (DATA / "proc_information" / sample).read_text().splitlines()[0]
    machine = build_machine(0, "NVIDIA L4", version)
    text = proc_files(machine, "x86_64")["driver/nvidia/version"].splitlines()[0]
    start, end = re.search(r"\d+\.[\d.]+", first).span()
    assert text.startswith(first[:start] + version + "  ")
    assert ("Release Build" in text) == ("Release Build" in first[end:])


def test_minors_need_not_follow_the_pci_order(tmp_path: Path) -> None:
    base = make(tmp_path / "sim", gpus=3, minors=(2, 0, 1))
    gpus = base / "proc/driver/nvidia/gpus"
    minors = [
        re.search(r"Device Minor: \t (\d+)\n", (gpus / bus / "information").read_text()).group(1)
        for bus in sorted(os.listdir(gpus))
    ]
    assert minors == ["2", "0", "1"]
    assert (base / "sys/bus/pci/devices/0000:0a:00.0/class").read_text() == "0x030200\n"


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("550.54.14", {"nvidia", "nvidia-modeset", "nvidiactl"}),
        ("550.40.07", {"nvidia", "nvidia-modeset", "nvidiactl"}),
        ("535.054.03", {"nvidia-frontend"}),
    ],
)
def test_devices_has_the_names_of_the_driver_branch(version: str, names: set[str]) -> None:
    machine = build_machine(1, "NVIDIA L4", version, used_majors=frozenset({511, 510}))
    lines = [line.split() for line in proc_files(machine, "x86_64")["devices"].splitlines()]
    assert {line[1] for line in lines if line[:1] == ["195"]} == names
    assert ["509", "nvidia-uvm"] in lines
    assert ["508", "nvidia-caps"] in lines


def test_uuids_are_distinct_and_stay() -> None:
    uuids = [gpu_uuid(index) for index in range(64)]
    assert len(set(uuids)) == 64
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", u) for u in uuids)
    assert uuids[0] == "GPU-cad82d93-1db0-555a-be3f-48be51c40b39"


def test_64_gpus_fit(tmp_path: Path) -> None:
    base = make(tmp_path / "sim", gpus=64)
    buses = sorted(os.listdir(base / "proc/driver/nvidia/gpus"))
    assert len(buses) == 64
    assert buses[-1] == "0000:c1:00.0"
    # The programs read at most this much of the table.
    assert len(state_text(build_machine(64, "x" * 64, "550.54.14")).encode()) < 120000


# --- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpus": -1}, "can't have -1 gpus"),
        ({"gpus": 65}, "can't have 65 gpus"),
        ({"driver_version": "550"}, "not a driver version"),
        ({"driver_version": "550.54.14.1"}, "not a driver version"),
        ({"driver_version": "550.x"}, "not a driver version"),
        ({"driver_version": "550..1"}, "not a driver version"),
        ({"driver_version": "../../etc"}, "not a driver version"),
        ({"driver_version": "550.\u0661"}, "not a driver version"),
        ({"model": ""}, "model name"),
        ({"model": "a\nb"}, "model name"),
        ({"model": "x" * 65}, "model name"),
        ({"minors": (0, 1)}, "can't have the minors 0,1"),
        ({"minors": (0, 1, 2, 2)}, "can't have the minors 0,1,2,2"),
        ({"minors": (0, 1, 2, 254)}, "out of range"),
        ({"mig": ("1g",)}, "there is no MIG profile '1g'"),
        ({"mig": ("5g.40gb",)}, "there is no MIG profile '5g.40gb'"),
        ({"mig": ("2c.1g.10gb",)}, "there is no MIG profile '2c.1g.10gb'"),
        ({"mig": ("4g.40gb", "4g.40gb")}, "has no room for 4g.40gb,4g.40gb"),
        ({"mig": ("3g.40gb",) * 3}, "has no room"),
        ({"mig": ("1g.10gb",) * 8}, "has no room"),
        ({"mig": ("1g.10gb",), "mig_gpus": (4,)}, "there is no gpu 4 to partition"),
        ({"mig_gpus": (0,)}, "no profiles"),
        ({"mig": ("1g.10gb",), "model": "NVIDIA L4"}, "a NVIDIA L4 can't be partitioned"),
        ({"mig": ("1g.10gb",), "driver_version": "440.33"}, "driver 440 knows no MIG"),
    ],
)
def test_wrong_settings_are_refused(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(HostError, match=re.escape(message)):
        make(tmp_path / "sim", **settings)
    assert not (tmp_path / "sim").exists()


def test_no_gpus_is_a_machine_too(tmp_path: Path) -> None:
    base = make(tmp_path / "sim", gpus=0)
    assert list((base / "proc/driver/nvidia/gpus").iterdir()) == []


def test_the_command_prints_the_path_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["create", str(tmp_path / "sim"), "--gpus", "2", "--minors", "1,0"]
    sim.main(arguments, standalone_mode=False)
    assert capsys.readouterr().out == f"{tmp_path}/sim/config.toml\n"
    assert "gpu0.minor=1\n" in (tmp_path / "sim/state").read_text()


@pytest.mark.parametrize("option", [["--minors", "a"], ["--minors", "0,,1"], ["--mig-gpus", "x"]])
def test_the_command_refuses_what_it_does_not_know(tmp_path: Path, option: list[str]) -> None:
    with pytest.raises(click.UsageError):
        sim.main(["create", str(tmp_path / "sim"), *option], standalone_mode=False)
    assert not (tmp_path / "sim").exists()


# --- features


def test_features_have_majors_nodes_and_files(tmp_path: Path) -> None:
    machine = build_machine(1, "T4", "550.54.14", features=("gds", "imex"))
    assert machine.feature_majors == {"gds": 508, "imex": 507}
    devices = proc_files(machine, "x86_64")["devices"]
    assert "508 nvidia-fs\n" in devices
    assert "507 nvidia-caps-imex-channels\n" in devices
    assert "gdrdrv" not in devices
    base = make(tmp_path / "sim", features=("gds", "gds"))
    assert (base / "root/etc/cufile.json").is_file()
    assert (base / "run/udev").is_dir()


def test_a_feature_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="there is no feature 'warp'"):
        make(tmp_path / "sim", features=("gds", "warp"))
    assert not (tmp_path / "sim").exists()


# --- MIG


def test_the_table_of_capabilities_is_the_drivers_own() -> None:
    machine = build_machine(2, "NVIDIA H200", "550.54.14", mig=("1g.18gb",))
    text = proc_files(machine, "x86_64")["driver/nvidia-caps/mig-minors"]
    sample = (DATA / "mig_minors/mig-minors-head.txt").read_text()
    assert text.startswith(sample)
    # As seen on a real H200: see data/cdi/nvidia-0.5.0-dra_claim_mig_h200.yaml.
    assert "gpu0/gi11/access 102\ngpu0/gi11/ci0/access 103\n" in text


def test_an_access_file_has_the_format_of_a_real_file() -> None:
    machine = build_machine(1, "NVIDIA H200", "550.54.14", mig=("1g.18gb",))
    files = proc_files(machine, "x86_64")
    sample = (DATA / "proc_information/capabilities-mig-config.txt").read_text()
    assert files["driver/nvidia/capabilities/mig/config"] == sample
    access = files["driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access"]
    assert access == "DeviceFileMinor: 67\nDeviceFileMode: 292\nDeviceFileModify: 1\n"


def test_ids_follow_the_sizes_and_indices_the_order() -> None:
    profiles = ("1g.10gb", "2g.20gb", "1c.3g.40gb", "1g.10gb")
    machine = build_machine(3, "NVIDIA H200", "550.54.14", (2, 0, 1), mig=profiles, mig_gpus=(0, 2))
    devices = machine.mig_devices
    assert [each.gpu_index for each in devices] == [0] * 4 + [2] * 4
    assert [each.gpu.minor for each in devices] == [2] * 4 + [1] * 4
    assert [(each.name, each.profile, each.gpu_instance) for each in devices[:4]] == [
        ("0:0", "1g.10gb", 7),
        ("0:1", "2g.20gb", 3),
        ("0:2", "1c.3g.40gb", 1),
        ("0:3", "1g.10gb", 8),
    ]
    assert len({each.uuid for each in devices}) == 8
    assert all(re.fullmatch(r"MIG-[0-9a-f-]{36}", each.uuid) for each in devices)


def test_before_driver_470_a_mig_device_is_named_by_its_ids() -> None:
    machine = build_machine(1, "NVIDIA A100-SXM4-80GB", "460.32", mig=("2g.20gb",))
    assert machine.mig_devices[0].uuid == f"MIG-{gpu_uuid(0)}/3/0"


def test_every_real_profile_can_be_simulated() -> None:
    names = (DATA / "mig_minors/mig_profile_names.txt").read_text().split()
    assert len(names) > 10
    for name in names:
        (device,) = build_machine(1, "NVIDIA H200", "550.54.14", mig=(name,)).mig_devices
        assert device.profile == name


def test_seven_mig_devices_of_64_gpus_fit() -> None:
    machine = build_machine(64, "NVIDIA A100-SXM4-80GB", "550.54.14", mig=("1g.10gb+me.all",) * 7)
    assert len(machine.mig_devices) == 64 * 7
    assert len(state_text(machine).encode()) < 120000


def test_without_mig_the_driver_shows_no_capabilities(simulated: Path) -> None:
    assert not (simulated / "proc/driver/nvidia/capabilities").exists()
