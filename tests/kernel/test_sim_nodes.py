"""The simulated programs tell the truth about device nodes: permitted, missing, denied, lost."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvhook.sim.driver import create
from nvhook.sim.driver_root import TRIPLETS
from nvhook.sim.machine import build_machine, gpu_uuid

pytestmark = [
    pytest.mark.root,
    pytest.mark.usefixtures("root_host"),
]

REPOSITORY = Path(__file__).parents[2]
TRIPLET = TRIPLETS[platform.machine()]
MINORS = (2, 0, 1)


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    config = create(str(tmp_path / "sim"), gpus=3, minors=MINORS, report=pytest.fail)
    return Path(config).parent


@pytest.fixture
def rootfs(tmp_path: Path, simulated: Path) -> Path:
    """Make a root with nvidia-smi and libnvidia-ml in it, and no C library: what a hook injects."""
    root = tmp_path / "rootfs"
    source = simulated / "root"
    for directory in ("dev", "etc", "proc", "sys", "usr/bin", "usr/lib/here"):
        (root / directory).mkdir(parents=True)
    shutil.copy2(source / "usr/bin/nvidia-smi", root / "usr/bin")
    library = source / "usr/lib" / TRIPLET / "libnvidia-ml.so.1"
    shutil.copy2(library, root / "usr/lib/here/libnvidia-ml.so.1")
    (root / "etc/ld.so.conf").write_text("/usr/lib/here\n")
    subprocess.run(["/sbin/ldconfig", "-X", "-r", str(root)], check=True, stderr=subprocess.DEVNULL)
    return root


def node(root: Path, name: str, minor: int) -> None:
    os.mknod(root / "dev" / name, 0o020666, os.makedev(195, minor))


def smi(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["chroot", str(root), "/usr/bin/nvidia-smi", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def listed(count: int, *indices: int) -> str:
    lines = [
        f"GPU {position}: NVIDIA H100 80GB HBM3 (UUID: {gpu_uuid(index)})\n"
        for position, index in enumerate(indices)
    ]
    assert len(lines) == count
    return "".join(lines)


# --- nvidia-smi


def test_smi_lists_what_is_there_and_renumbers(rootfs: Path) -> None:
    node(rootfs, "nvidiactl", 255)
    node(rootfs, "nvidia0", 0)
    node(rootfs, "nvidia1", 1)
    done = smi(rootfs, "-L")
    assert done.stdout == listed(2, 1, 2)
    assert done.stderr == f"/dev/nvidia2: node missing ({gpu_uuid(0)})\n"
    assert done.returncode == 0


def test_smi_without_devices(rootfs: Path) -> None:
    node(rootfs, "nvidiactl", 255)
    done = smi(rootfs)
    assert (done.returncode, done.stdout) == (0, "No devices found.\n")


def test_smi_without_control_node(rootfs: Path) -> None:
    node(rootfs, "nvidia0", 0)
    done = smi(rootfs, "-L")
    assert done.returncode == 9
    assert "/dev/nvidiactl: node missing" in done.stdout


def test_smi_says_that_a_gpu_is_lost(rootfs: Path, simulated: Path) -> None:
    node(rootfs, "nvidiactl", 255)
    node(rootfs, "nvidia1", 1)
    node(rootfs, "nvidia2", 2)
    # The state file wins where it can be seen, under the path that it has on the host.
    state = rootfs / str(simulated).lstrip("/") / "state"
    state.parent.mkdir(parents=True)
    state.write_text("# only what differs\ngpu0.status=lost\n")
    done = smi(rootfs, "-L")
    assert done.stdout.splitlines() == [
        f"GPU 0: 0000:04:00.0 is lost (UUID: {gpu_uuid(0)})",
        f"GPU 1: NVIDIA H100 80GB HBM3 (UUID: {gpu_uuid(2)})",
    ]
    assert done.returncode == 15


def test_smi_does_not_take_a_wrong_node(rootfs: Path) -> None:
    node(rootfs, "nvidiactl", 255)
    node(rootfs, "nvidia0", 1)
    (rootfs / "dev/nvidia1").write_text("")
    done = smi(rootfs, "--all")
    assert done.stdout.splitlines() == [
        "No devices found.",
        f"/dev/nvidia2: node missing ({gpu_uuid(0)})",
        f"/dev/nvidia0: wrong node type or number ({gpu_uuid(1)})",
        f"/dev/nvidia1: wrong node type or number ({gpu_uuid(2)})",
    ]


def test_smi_finds_the_library_through_the_loader_cache(rootfs: Path) -> None:
    node(rootfs, "nvidiactl", 255)
    found = "libnvidia-ml.so.1 => /usr/lib/here/libnvidia-ml.so.1 (/etc/ld.so.cache)"
    assert smi(rootfs, "--loader").stdout.splitlines()[0] == found


@pytest.mark.parametrize("damage", ["no cache", "cut", "old and empty", "no file", "no elf"])
def test_smi_misses_a_library_the_loader_would_miss(rootfs: Path, damage: str) -> None:
    node(rootfs, "nvidiactl", 255)
    cache = rootfs / "etc/ld.so.cache"
    library = rootfs / "usr/lib/here/libnvidia-ml.so.1"
    if damage == "no cache":
        cache.unlink()
    elif damage == "cut":
        cache.write_bytes(cache.read_bytes()[:60])
    elif damage == "old and empty":
        cache.write_bytes(b"ld.so-1.7.0\0\xff\xff\xff\xff")
    elif damage == "no file":
        library.unlink()
    else:
        library.write_bytes(b"\x7fELF but no more than that")
    done = smi(rootfs, "-L")
    assert done.returncode == 12
    assert "could not find libnvidia-ml.so.1" in done.stdout


def test_smi_reads_a_cache_with_the_old_table_in_front(rootfs: Path) -> None:
    node(rootfs, "nvidiactl", 255)
    subprocess.run(
        ["/sbin/ldconfig", "-X", "-c", "compat", "-r", str(rootfs)],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    assert (rootfs / "etc/ld.so.cache").read_bytes().startswith(b"ld.so-1.7.0")
    assert "here/libnvidia-ml.so.1 (/etc/ld.so.cache)" in smi(rootfs, "--loader").stdout


def test_smi_looks_into_the_default_directories(rootfs: Path) -> None:
    node(rootfs, "nvidiactl", 255)
    (rootfs / "etc/ld.so.cache").unlink()
    (rootfs / "usr/lib/here/libnvidia-ml.so.1").rename(rootfs / "usr/lib/libnvidia-ml.so.1")
    assert "/usr/lib/libnvidia-ml.so.1 (default directories)" in smi(rootfs, "--loader").stdout


def runc_config(allowed: "tuple[int, ...]", made: "tuple[int, ...]") -> dict[str, object]:
    """Return a bundle's config: nodes for ctl and the made minors, rules for the allowed ones."""
    names = {255: "nvidiactl", **{minor: f"nvidia{minor}" for minor in MINORS}}
    devices = [
        {"path": f"/dev/{names[minor]}", "type": "c", "major": 195, "minor": minor, "fileMode": 438}
        for minor in made
    ]
    rules: list[dict[str, object]] = [{"allow": False, "access": "rwm"}]
    rules += [
        {"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rw"}
        for minor in allowed
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["/usr/bin/nvidia-smi", "-L", "--all"],
            "env": [],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
            "devices": devices,
            "resources": {"devices": rules},
        },
    }


def run_container(bundle: Path, config: dict[str, object]) -> "subprocess.CompletedProcess[str]":
    (bundle / "config.json").write_text(json.dumps(config))
    name = f"nvhook-sim-{os.getpid()}"
    runc = ["runc", "--root", str(bundle / "runc")]
    try:
        return subprocess.run(
            [*runc, "run", "--bundle", str(bundle), name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        subprocess.run(
            [*runc, "delete", "--force", name],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def test_smi_in_a_container_tells_permitted_denied_and_missing(
    tmp_path: Path, rootfs: Path
) -> None:
    done = run_container(tmp_path, runc_config(allowed=(255, 2), made=(255, 2, 0)))
    assert done.stdout == listed(1, 0) + (
        f"/dev/nvidia2: permitted ({gpu_uuid(0)})\n"
        f"/dev/nvidia0: denied by the device cgroup ({gpu_uuid(1)})\n"
        f"/dev/nvidia1: node missing ({gpu_uuid(2)})\n"
    )
    assert done.returncode == 0


def test_smi_in_a_container_with_a_denied_control_node(tmp_path: Path, rootfs: Path) -> None:
    done = run_container(tmp_path, runc_config(allowed=(2,), made=(255, 2)))
    assert done.returncode == 9
    assert "/dev/nvidiactl: denied by the device cgroup" in done.stdout


# --- the libraries, on a machine whose /dev is the simulated one


def run_with_dev(simulated: Path, script: str) -> str:
    """Run Python with the simulated nodes in /dev, in a mount namespace of its own."""
    library = simulated / "root/usr/lib" / TRIPLET
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
            'mount --bind "$0" /dev && exec "$@"',
            str(simulated / "dev"),
            *(sys.executable, "-I", "-c", script, str(library), str(simulated)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


NVML = """
import ctypes, sys
import pynvml as n
ctypes.CDLL(sys.argv[1] + "/libnvidia-ml.so.1")
n.nvmlInit()
print(n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2())
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
for h in handles:
    uuid, pci = n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetPciInfo(h)
    print(n.nvmlDeviceGetIndex(h), n.nvmlDeviceGetMinorNumber(h), uuid, pci.busId,
          n.nvmlDeviceGetName(h), sep="|")
    assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)) == n.nvmlDeviceGetIndex(h)
    assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy)) == uuid
    assert pci.pciDeviceId == 0x233010DE
    assert n.nvmlDeviceGetMemoryInfo(h).total == 81559 << 20
    assert n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).free == 81559 << 20
    assert n.nvmlDeviceGetMigMode(h) == [0, 0]
    assert n.nvmlDeviceGetBrand(h) == n.NVML_BRAND_NVIDIA
    assert n.nvmlDeviceGetCudaComputeCapability(h) == (9, 0)
    assert 0 < n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU) < 100
"""


def test_pynvml_lists_the_gpus_of_proc(simulated: Path) -> None:
    expected = ["550.54.14 12040"]
    gpus = simulated / "proc/driver/nvidia/gpus"
    for index, bus in enumerate(sorted(os.listdir(gpus))):
        lines = (gpus / bus / "information").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        minor, uuid, model = (
            fields[name].strip() for name in ("Device Minor", "GPU UUID", "Model")
        )
        expected.append(f"{index}|{minor}|{uuid}|0000{bus.upper()}|{model}")
    assert run_with_dev(simulated, NVML).splitlines() == expected


def test_pynvml_counts_only_the_nodes_that_are_there(simulated: Path) -> None:
    (simulated / "dev/nvidia0").unlink()
    minors = [line.split("|")[1] for line in run_with_dev(simulated, NVML).splitlines()[1:]]
    assert minors == ["2", "1"]


MIG = """
import ctypes, sys
import pynvml as n
ctypes.CDLL(sys.argv[1] + "/libnvidia-ml.so.1")
n.nvmlInit()
for gpu in [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]:
    print("GPU", n.nvmlDeviceGetMigMode(gpu), n.nvmlDeviceGetMaxMigDeviceCount(gpu))
    assert not n.nvmlDeviceIsMigDeviceHandle(gpu)
    try:
        for i in range(7):
            mig = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i)
            uuid = n.nvmlDeviceGetUUID(mig)
            parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
            assert n.nvmlDeviceGetUUID(parent) == n.nvmlDeviceGetUUID(gpu) != uuid
            assert n.nvmlDeviceIsMigDeviceHandle(mig)
            assert n.nvmlDeviceGetIndex(mig) == i
            assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(uuid)) == uuid
            slices = n.nvmlDeviceGetAttributes_v2(mig)
            print(uuid, n.nvmlDeviceGetName(mig), n.nvmlDeviceGetGpuInstanceId(mig),
                  n.nvmlDeviceGetComputeInstanceId(mig), n.nvmlDeviceGetMemoryInfo(mig).total >> 30,
                  slices.gpuInstanceSliceCount, slices.computeInstanceSliceCount, sep="|")
    except n.NVMLError_NotFound:
        pass
"""


@pytest.mark.parametrize("left_out", ["", "nvidia-cap201", "nvidia-cap202"])
def test_pynvml_lists_the_mig_devices_whose_nodes_are_all_there(
    tmp_path: Path, left_out: str
) -> None:
    profiles = ("1g.10gb", "1c.2g.20gb")
    path = create(
        str(tmp_path / "mig"),
        2,
        minors=(1, 0),
        report=pytest.fail,
        mig=profiles,
        mig_gpus=(0,),
    )
    simulated = Path(path).parent
    machine = build_machine(2, "NVIDIA H200", "550.54.14", (1, 0), mig=profiles, mig_gpus=(0,))
    uuids = [device.uuid for device in machine.mig_devices]
    devices = [
        f"{uuids[0]}|NVIDIA H100 80GB HBM3 MIG 1g.10gb|7|0|10|1|1",
        f"{uuids[1]}|NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb|3|0|20|2|1",
    ]
    if left_out:
        (simulated / "dev/nvidia-caps" / left_out).unlink()
        devices.pop(0)
    assert run_with_dev(simulated, MIG).splitlines() == ["GPU [1, 1] 7", *devices, "GPU [0, 0] 7"]


LOST = """
import ctypes, sys
import pynvml as n
ctypes.CDLL(sys.argv[1] + "/libnvidia-ml.so.1")
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
with open(sys.argv[2] + "/state", "a") as state:
    state.write("gpu1.status=lost\\n")
for h in handles:
    try:
        print(n.nvmlDeviceGetUUID(h))
    except n.NVMLError_GpuIsLost as error:
        print(error)
"""


def test_a_gpu_can_be_lost_while_a_program_runs(simulated: Path) -> None:
    lines = run_with_dev(simulated, LOST).splitlines()
    assert lines == [gpu_uuid(0), "GPU is lost", gpu_uuid(2)]


def test_nvml_without_control_node(simulated: Path) -> None:
    (simulated / "dev/nvidiactl").unlink()
    script = NVML.replace("n.nvmlInit()", "print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())")
    script = script.split("print(n.nvmlSystem")[0]
    assert run_with_dev(simulated, script) == "9\n"


CUDA = """
import ctypes, sys
c = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
print(c.cuInit(0))
count, version = ctypes.c_int(-1), ctypes.c_int()
assert c.cuDriverGetVersion(ctypes.byref(version)) == 0
c.cuDeviceGetCount(ctypes.byref(count))
print(version.value, count.value)
for device in range(count.value):
    uuid = ctypes.create_string_buffer(16)
    assert c.cuDeviceGetUuid(uuid, device) == 0
    print(uuid.raw.hex())
"""


def test_cuda_counts_and_names(simulated: Path) -> None:
    (simulated / "dev/nvidia0").unlink()
    uuids = [gpu_uuid(index)[4:].replace("-", "") for index in (0, 2)]
    assert run_with_dev(simulated, CUDA).split() == ["0", "12040", "2", *uuids]


@pytest.mark.parametrize(
    ("removed", "result"), [("nvidia-uvm", "999"), ("nvidia[0-9]", "100"), ("nvidiactl", "100")]
)
def test_cuda_fails_as_the_real_one(simulated: Path, removed: str, result: str) -> None:
    for path in (simulated / "dev").glob(removed):
        path.unlink()
    assert run_with_dev(simulated, CUDA).split()[0] == result


# --- what an unprivileged user gets


def test_without_mknod_the_rest_is_made(tmp_path: Path, simulated: Path) -> None:
    target = tmp_path / "plain"
    done = subprocess.run(
        [
            *("setpriv", "--bounding-set=-mknod,-sys_chroot", sys.executable, "-I", "-c"),
            "import sys; from nvhook.cli.sim import sim; sim(['create', sys.argv[1], '--gpus=3'])",
            str(target),
        ],
        env={"PYTHONPATH": str(REPOSITORY), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{target}/config.toml\n"
    assert "no device nodes in" in done.stderr
    assert [path.name for path in (target / "dev").iterdir()] == ["nvidia-caps"]
    cache = "root/etc/ld.so.cache"
    assert (target / cache).read_bytes() == (simulated / cache).read_bytes()
