"""Everything an image can ask, as one table: what a container says, and what comes of it.

One host, with four GPUs (GPU 0 and 2 have MIG devices) and driver 550.54.14, so CUDA 12.4; all of
them are an L4. A row goes the whole way: config.json, settings, selection, requirements. Sections
of the table are the rows of nvidia-container-stack 1.2 and 1.3, and the points of its appendix G
that are about requests; ELSEWHERE names the tests of the others.
"""

import json
import re
from pathlib import Path

import pytest

from nvhook.config import Config
from nvhook.core import requirements
from nvhook.core.catalog import CAPABILITIES
from nvhook.core.inventory import Gpu, Inventory, MigDevice, gpus_of
from nvhook.core.request import Request, from_container
from nvhook.core.selection import select
from nvhook.errors import HostError, NvhookError, RequestError
from nvhook.formats.oci import parse_config

TESTS = Path(__file__).parents[1]
V, CAPS, CUDA = "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA"
IMEX, MIG_CONFIG = "NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES"
MIG_MONITOR, SWARM = "NVIDIA_MIG_MONITOR_DEVICES", "DOCKER_RESOURCE_GPU"
MOUNTS = "/var/run/nvidia-container-devices"
EVERY = " ".join(sorted(CAPABILITIES))
# Minors are not indices: PCI order and probe order differ on real hosts.
GPUS = (
    Gpu(0, "GPU-aaaaaaaa-0000-0000-0000-000000000000", 2, "0000:07:00.0", "NVIDIA L4"),
    Gpu(1, "GPU-bbbbbbbb-0000-0000-0000-000000000000", 0, "0000:0a:00.0", "NVIDIA L4"),
    Gpu(2, "GPU-cccccccc-0000-0000-0000-000000000000", 1, "0000:47:00.0", "NVIDIA L4"),
    Gpu(3, "GPU-????????-????-????-????-????????????", 3, "10de:4e:00.0", "NVIDIA L4"),
)
# NVML's order is not that of the ids.
MIG = (
    MigDevice(GPUS[0], 0, "MIG-e8c4bf14-4d33-3495-5d46-af783b52901a", "1g.10gb", 7, 0, 70, 71),
    MigDevice(GPUS[0], 1, "MIG-aaaaaaaa-4d33-3495-5d46-af783b52901a", "1g.10gb", 1, 0, 20, 21),
    MigDevice(GPUS[2], 0, f"MIG-{GPUS[2].uuid}/9/1", "1g.10gb", 9, 1, 90, 91),  # driver 460
)
HOST = Inventory(
    driver_version="550.54.14",
    cuda_version="",
    driver_root="/",
    proc_root="/proc",
    majors={"nvidia": 195, "nvidia-caps": 235},
    gpus=GPUS,
    nodes=(),
    libraries=(),
    files=(),
    proc_files={},
    mig_devices=MIG,
)
ALL = "0 0:0 0:1 1 2 2:0 3"


class Case:
    """What a container says (variables, mounts, annotations, privilege) under which settings."""

    def __init__(
        self,
        variables: dict[str, str] | list[str],
        expected: object,
        *,
        mounts: tuple[str, ...] = (),
        other_mounts: tuple[tuple[str, str], ...] = (),
        annotations: dict[str, str] | None = None,
        bounding: tuple[str, ...] = (),
        warns: str = "",
        **settings: object,
    ) -> None:
        self.expected, self.warns, self.settings = expected, warns, settings
        env = variables
        if isinstance(variables, dict):
            env = [f"{name}={value}" for name, value in variables.items()]
        pairs = (*[("/dev/null", f"{MOUNTS}/{name}") for name in mounts], *other_mounts)
        self.document = {
            "ociVersion": "1.0.2",
            "process": {
                "env": env,
                "capabilities": {"bounding": [*bounding], "effective": ["CAP_SYS_ADMIN"]},
            },
            "root": {"path": "rootfs"},
            "mounts": [{"source": source, "destination": path} for source, path in pairs],
            "annotations": annotations or {},
        }


class Gives:
    """A GPU container: devices (by index; of MIG by GPU:index) and what comes with them."""

    def __init__(self, devices: str, capabilities: str = "compute utility", **rest: object) -> None:
        self.devices = devices.split()
        self.capabilities = capabilities.split()
        self.rest = rest


class Refuses:
    """An error of a kind, with these words in its one line."""

    def __init__(self, kind: type[NvhookError], *words: str) -> None:
        self.kind, self.words = kind, words


NOTHING = None
SYS_ADMIN = ("CAP_SYS_ADMIN",)
UNKNOWN = "unknown device id"
CLOSED = {"accept_envvar_when_unprivileged": False}
BY_MOUNTS = {"accept_volume_mounts": True}


def devices(value: str, expected: object) -> Case:
    return Case({V: value}, Gives(expected) if isinstance(expected, str) else expected)


def capabilities(value: str, expected: object, **settings: object) -> Case:
    given = Gives("1", expected) if isinstance(expected, str) else expected
    return Case({V: "1", CAPS: value}, given, **settings)


def no_device(name: str) -> Case:
    return devices(f"0,{name}", Refuses(RequestError, UNKNOWN, "this host has 0-3; nvhook list"))


def no_mig_device(name: str, hint: str) -> Case:
    return devices(f"0,{name}", Refuses(RequestError, f"{UNKNOWN} {name[:90]}", hint))


def holds(text: str, **variables: str) -> Case:
    return Case({V: "1", CUDA: text, **variables}, Gives("1"))


def fails(text: str, **variables: str) -> Case:
    words = ("requirement error: unsatisfied condition", "driver 550.54.14 with CUDA 12.4")
    refusal = Refuses(HostError, *words, "NVIDIA_DISABLE_REQUIRE=1")
    return Case({V: "1", CUDA: text, **variables}, refusal)


def malformed(text: str, why: str) -> Case:
    words = ("requirement error: invalid expression", f"in {CUDA}: {why}")
    return Case({V: "1", CUDA: text}, Refuses(RequestError, *words, "NVIDIA_DISABLE_REQUIRE=1"))


def switch(name: str, feature: str) -> list[Case]:
    return [
        Case({V: "1", name: "enabled"}, Gives("1", features=(feature,))),
        Case({V: "1", name: "1"}, Gives("1"), warns=f"{name}=1 asks for nothing: only the value"),
        Case({V: "1", name: "disabled"}, Gives("1")),
        Case({name: "enabled"}, NOTHING),
        Case({V: "void", name: "enabled"}, NOTHING),
    ]


def privileged_only(name: str, what: str) -> list[Case]:
    refused = Refuses(RequestError, f"{name} is for privileged containers only", "CAP_SYS_ADMIN")
    only_all = Refuses(RequestError, f"{name}=", "it can only be all")
    return [
        Case({V: "0:1", name: "all"}, Gives("0:1", manages_mig=(what,)), bounding=SYS_ADMIN),
        Case({V: "all", name: " all ,all"}, Gives(ALL, manages_mig=(what,)), bounding=SYS_ADMIN),
        Case({V: "0:1", name: "all"}, refused),
        Case({V: "0:1", name: "all"}, refused, bounding=("CAP_NET_ADMIN",)),
        Case({V: "void", name: "all"}, NOTHING),
        Case({V: "0", name: " "}, Gives("0")),
        *[
            Case({V: "0", name: value}, only_all, bounding=SYS_ADMIN)
            for value in ("0", "all,0:1", "none", "void")
        ],
    ]


TABLE: dict[str, list[Case]] = {
    "1.2 unset, empty or void": [
        Case({}, NOTHING),
        Case({"PATH": "/bin", CAPS: "all"}, NOTHING),
        *[devices(value, NOTHING) for value in ("", " ", ",, ,", "void", "0, void ,1", " void")],
        Case({V: "void", CAPS: "nonsense"}, NOTHING),
    ],
    "G4 void wins over everything": [
        *[devices(value, NOTHING) for value in ("all,void", "void,all", "none,void", "x,void")],
        Case({V: "all", SWARM: "0,void"}, NOTHING, swarm_resource=(SWARM,)),
        Case([f"{V}=all", f"{V}=void"], NOTHING),
        Case([f"{V}=void", f"{V}=1"], Gives("1")),
    ],
    "1.2 and G2 none": [
        *[devices(value, "") for value in ("none", " none ", "none,all", "0,none", "none,x")],
        Case({V: "none", CAPS: "utility"}, Gives("", "utility")),
    ],
    "1.2 all": [
        *[devices(value, ALL) for value in ("all", " all ", "all,none", "0,all,1", "all,x")],
        devices("ALL", Refuses(RequestError, f"{UNKNOWN} ALL")),  # the words are case-sensitive
    ],
    "1.2 indices": [
        devices("0", "0"),  # a GPU with MIG devices may be asked for as a whole
        devices("1", "1"),
        devices("00003", "3"),
        *[no_device(name) for name in ("4", "99999999999999999999", "-1", "+1", "1.0", "\u0661")],
    ],
    "1.2 UUIDs": [
        devices("GPU-BBBBBBBB-0000-0000-0000-000000000000", "1"),
        devices("gpu-cccccccc-0000-0000-0000-000000000000", "2"),
        no_device("GPU-aaaaaaaa"),  # a prefix is not a name
        no_device("GPU-aaaaaaaa-0000-0000-0000-0000000000001"),
        no_device("GPU-????????-????-????-????-????????????"),  # of every GPU that has none
    ],
    "1.2 PCI bus ids": [
        devices("0000:0a:00.0", "1"),
        devices("00000000:0A:00.0", "1"),
        devices("0a:00.0", "1"),
        devices("000010DE:4E:00.0", "3"),
        no_device("4e:00.0"),  # domain 0 is not 10de
        *[no_device(name) for name in ("0000:0a:00.1", "0000:0a:00", "000000000:0a:00.0")],
    ],
    "1.2 MIG devices": [
        devices("0:0", "0:0"),
        devices("2:0", "2:0"),
        devices("00:01", "0:1"),
        devices("MIG-e8c4bf14-4d33-3495-5d46-af783b52901a", "0:0"),
        devices("mig-AAAAAAAA-4d33-3495-5d46-af783b52901a", "0:1"),
        devices("MIG-GPU-cccccccc-0000-0000-0000-000000000000/9/1", "2:0"),
        devices("MIG-GPU-AAAAAAAA-0000-0000-0000-000000000000/1/0", "0:1"),
        no_mig_device("0:2", "GPU 0 has MIG devices 0:0, 0:1; nvhook list shows them"),
        no_mig_device("1:0", "GPU 1 has no MIG device: make one with nvidia-smi mig"),
        no_mig_device("9:0", "this host has 0-3; nvhook list shows them"),
        no_mig_device("99999999999999:0", "this host has 0-3; nvhook list shows them"),
        no_mig_device("MIG-x", "this host has MIG devices 0:0, 0:1, 2:0"),
        no_mig_device("MIG-0:0", "this host has MIG devices 0:0, 0:1, 2:0"),
        no_mig_device(f"MIG-{GPUS[0].uuid}/1/1", "this host has MIG devices 0:0, 0:1, 2:0"),
        no_mig_device("MIG-" + "x" * 5000, "this host has MIG devices 0:0, 0:1, 2:0"),
    ],
    "1.2 what is no device at all": [
        *[no_device(name) for name in ("/dev/nvidia0", "../nvidia0", "nvidia0", "all all")],
        *[no_device(name) for name in ("no-gpu-has-10MiB-to-run", "x" * 5000, "a\x1b[31m\nb")],
        Case({V: "0," * 70_000}, Refuses(RequestError, f"{V} is longer than 131072 characters")),
    ],
    "G5 duplicates are one, in the host's order": [
        devices("2,0", "0 2"),
        devices(" 0 ,\t1,,1,0", "0 1"),
        devices("10de:4e:00.0,0,07:00.0", "0 3"),
        devices(f"{GPUS[1].uuid},1,0a:00.0", "1"),
        devices(f"2:0,1,0:1,0:1,{MIG[1].uuid}", "0:1 1 2:0"),
        devices("0:0,0", "0 0:0"),
    ],
    "1.2 CDI names": [
        devices("nvidia.com/gpu=0", "0"),
        devices("nvidia.com/gpu=all,runtime.nvidia.com/gpu=1", ALL),
        devices("k8s.device-plugin.nvidia.com/gpu=1, 2", "1 2"),
        devices("nvidia.com/gpu=none", ""),
        devices("nvidia.com/gpu=void", NOTHING),
        devices("nvidia.com/gpu=void,a.b/c=d", NOTHING),
        devices("nvidia.com/gpu=9", Refuses(RequestError, f"{UNKNOWN} 9")),
        Case({V: "a.b/c=d"}, Gives("", cdi_devices=("a.b/c=d",), needs_driver=False)),
        Case({V: "a.b/c=d,0,a.b/c=e,a.b/c=d"}, Gives("0", cdi_devices=("a.b/c=d", "a.b/c=e"))),
        Case({V: "nvidia.com/gds=all"}, Gives("", cdi_devices=("nvidia.com/gds=all",))),
    ],
    "1.2 driver capabilities": [
        Case({V: "1"}, Gives("1")),
        *[capabilities(value, "compute utility") for value in ("", " , ", " utility , compute ")],
        *[capabilities(name, name) for name in CAPABILITIES],
        *[capabilities(value, EVERY) for value in ("all", "all,utility", "utility,all,nonsense")],
        capabilities("video,compute,video", "compute video"),
        capabilities(
            "compute,nvenc",
            Refuses(RequestError, f"unknown driver capability nvenc in {CAPS}", "ngx, utility"),
        ),
        capabilities("ALL", Refuses(RequestError, "unknown driver capability ALL")),
        capabilities(
            "compute",
            Refuses(RequestError, "driver capability compute is not allowed on this host"),
            supported_driver_capabilities=("utility", "video"),
        ),
        capabilities("all", "utility video", supported_driver_capabilities=("utility", "video")),
        capabilities("", "utility", supported_driver_capabilities=("utility", "video")),
        capabilities("", "", supported_driver_capabilities=("video",)),
    ],
    "1.2 and G3 CUDA_VERSION": [
        Case({"CUDA_VERSION": "8.0.61"}, Gives(ALL, EVERY, source="CUDA_VERSION")),
        Case({"CUDA_VERSION": "v10.2.89", V: "1"}, Gives("1", EVERY)),
        Case({"CUDA_VERSION": "8.0", V: "1", CAPS: "utility"}, Gives("1", "utility")),
        Case({"CUDA_VERSION": "8.0", V: ""}, NOTHING),
        Case({"CUDA_VERSION": "8.0", V: "void"}, NOTHING),
        Case({"CUDA_VERSION": ""}, NOTHING),
        Case({"CUDA_VERSION": "8.0", CUDA: "cuda>=8.0"}, NOTHING),
        Case({"CUDA_VERSION": "8.0"}, NOTHING, warns="CUDA_VERSION is not accepted from", **CLOSED),
        Case({"CUDA_VERSION": "13.0"}, Refuses(HostError, "unsatisfied condition: cuda>=13.0")),
        Case({"CUDA_VERSION": "nonsense"}, Refuses(RequestError, "nonsense is no version")),
        Case({"CUDA_VERSION": "99", "NVIDIA_DISABLE_REQUIRE": "true"}, Gives(ALL, EVERY)),
        Case(
            {"CUDA_VERSION": "8.0"},
            Gives(ALL, "utility"),
            supported_driver_capabilities=("utility",),
        ),
    ],
    "1.2 NVIDIA_REQUIRE_JETPACK": [
        Case({V: "1", "NVIDIA_REQUIRE_JETPACK": "csv-mounts=all"}, Gives("1", every_csv=True)),
        Case({V: "1", "NVIDIA_REQUIRE_JETPACK": "csv-mounts=base"}, Gives("1")),
        Case({V: "1", "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS": "base-only"}, Gives("1")),
    ],
    "1.2 NVIDIA_MIG_CONFIG_DEVICES": privileged_only(MIG_CONFIG, "config"),
    "1.2 NVIDIA_MIG_MONITOR_DEVICES": [
        *privileged_only(MIG_MONITOR, "monitor"),
        Case(
            {V: "0:1", MIG_MONITOR: "all", MIG_CONFIG: "all"},
            Gives("0:1", manages_mig=("config", "monitor")),
            bounding=SYS_ADMIN,
        ),
    ],
    "1.2 NVIDIA_IMEX_CHANNELS": [
        Case({V: "1", IMEX: "0"}, Gives("1", imex_channels=("0",))),
        Case({V: "1", IMEX: " 1 ,0,1"}, Gives("1", imex_channels=("1", "0"))),
        *[
            Case({V: "1", IMEX: value}, Gives("1", imex_channels=("all",)))
            for value in ("all", "1,all")
        ],
        Case({V: "1", IMEX: ""}, Gives("1")),
        Case({IMEX: "0"}, NOTHING),
        Case(
            {V: "1", IMEX: "7"},
            Gives("2", imex_channels=("3", "5"), source=MOUNTS),
            mounts=("2", "imex/3", "imex/5/"),
            **BY_MOUNTS,
        ),
        Case(
            {V: "1", IMEX: "7"},
            Gives("1", imex_channels=("7",)),
            mounts=("2", "imex/3"),
            warns="2 mounts below",
        ),
        Case(
            {IMEX: "0"},
            Gives("2"),
            mounts=("2",),
            warns=f"{IMEX} is not accepted from an unprivileged container",
            **CLOSED,
            **BY_MOUNTS,
        ),
        Case({}, Gives("2", imex_channels=("1",)), mounts=("2", "imex/1"), **CLOSED, **BY_MOUNTS),
        Case({}, NOTHING, mounts=("imex/1",), **BY_MOUNTS),
    ],
    "1.2 NVIDIA_GDS": switch("NVIDIA_GDS", "gds"),
    "1.2 NVIDIA_MOFED": switch("NVIDIA_MOFED", "mofed"),
    "1.2 NVIDIA_GDRCOPY": switch("NVIDIA_GDRCOPY", "gdrcopy"),
    "1.2 NVIDIA_NVSWITCH": [
        *switch("NVIDIA_NVSWITCH", "nvswitch"),
        Case(
            {V: "none", "NVIDIA_NVSWITCH": "enabled", "NVIDIA_GDS": "enabled"},
            Gives("", features=("gds", "nvswitch")),
        ),
    ],
    "1.2 and G15 DOCKER_RESOURCE_...": [
        Case({V: "all", SWARM: "2"}, Gives("2", source=SWARM), swarm_resource=(SWARM,)),
        Case(
            {"DOCKER_RESOURCE_A": "0", "DOCKER_RESOURCE_B": "1, 0"},
            Gives("0 1", source="DOCKER_RESOURCE_B+DOCKER_RESOURCE_A"),
            swarm_resource=("DOCKER_RESOURCE_B", "DOCKER_RESOURCE_A"),
        ),
        Case({V: "1", SWARM: "0"}, Gives("1"), swarm_resource=("DOCKER_RESOURCE_OTHER",)),
        Case({V: "1", SWARM: "0"}, Gives("1")),
        Case({SWARM: "none"}, Gives(""), swarm_resource=(SWARM,)),
        Case({V: "all", SWARM: ""}, NOTHING, swarm_resource=(SWARM,)),
        Case({SWARM: "9"}, Refuses(RequestError, f"{UNKNOWN} 9"), swarm_resource=(SWARM,)),
    ],
    "1.2 what specs and NVIDIA's own programs set": [
        Case({V: "void", "NVIDIA_CTK_LIBCUDA_DIR": "/usr/lib/x86_64-linux-gnu"}, NOTHING),
        Case({V: "1", "NVIDIA_CTK_LIBCUDA_DIR": "/x", "NVCT_EMPTY_DEVICE": ""}, Gives("1")),
        Case({V: "1", "NVIDIA_CTK_CONFIG_FILE_PATH": "/x", "XDG_CONFIG_HOME": "/x"}, Gives("1")),
        Case({V: "1", "NVC_DEBUG_FILE": "/x", "NVC_INSECURE_MODE": "1"}, Gives("1")),
    ],
    "1.2 variables of unprivileged containers": [
        Case({V: "1"}, Gives("1"), bounding=SYS_ADMIN, **CLOSED),
        Case(
            {V: "1"},
            NOTHING,
            warns=f"{V} is not accepted from an unprivileged container: it gets no GPU "
            "(accept-envvar-when-unprivileged is false)",
            **CLOSED,
        ),
        Case({V: "1"}, NOTHING, bounding=("CAP_MKNOD",), warns="is not accepted", **CLOSED),
        Case({V: "9"}, NOTHING, warns="is not accepted", **CLOSED),
        *[Case({V: value}, NOTHING, **CLOSED) for value in ("void", "")],
        Case({}, NOTHING, **CLOSED),
        Case({SWARM: "1"}, NOTHING, swarm_resource=(SWARM,), warns=f"{SWARM} is not", **CLOSED),
    ],
    "1.2 and G15 volume mounts": [
        Case({V: "1"}, Gives("0", source=MOUNTS), mounts=("0",), **BY_MOUNTS),
        Case({}, Gives("0"), mounts=("0",), **CLOSED, **BY_MOUNTS),
        Case({V: "1"}, Gives("0 2"), mounts=("2", "0", "2"), **BY_MOUNTS),
        Case({V: "1"}, Gives("0"), mounts=("0/",), **BY_MOUNTS),
        Case({V: "1"}, Gives(ALL), mounts=("all",), **BY_MOUNTS),
        Case({V: "1"}, Gives("0:1"), mounts=(MIG[1].uuid,), **BY_MOUNTS),
        Case({V: "1"}, NOTHING, mounts=("void",), **BY_MOUNTS),
        Case({V: "1"}, Gives("0"), mounts=("cdi/nvidia.com/gpu/0",), **BY_MOUNTS),
        Case({V: "1"}, Gives("0"), mounts=("cdi/nvidia.com/gpu=0",), **BY_MOUNTS),
        Case({V: "1"}, Gives("", cdi_devices=("a.b/c=d",)), mounts=("cdi/a.b/c/d",), **BY_MOUNTS),
        Case({V: "1"}, Refuses(RequestError, f"{UNKNOWN} 9"), mounts=("9",), **BY_MOUNTS),
        Case({V: "1"}, Gives("1"), mounts=("0",), warns="1 mounts below"),
        Case({}, NOTHING, mounts=("0",), warns="accept-volume-mounts is false"),
        # None of these is a device list: the variable counts.
        *[
            Case({V: "1"}, Gives("1"), other_mounts=(mount,), **BY_MOUNTS)
            for mount in (
                ("/dev/zero", f"{MOUNTS}/0"),
                ("/dev/null", MOUNTS),
                ("/dev/null", f"/x{MOUNTS}/0"),
            )
        ],
        # ctk108: the directory is never a device.
        Case({V: MOUNTS}, Refuses(RequestError, MOUNTS, "set accept-volume-mounts = true")),
        Case({V: MOUNTS}, Refuses(RequestError, "but nothing is mounted there"), **BY_MOUNTS),
        Case({V: MOUNTS}, Gives("0"), mounts=("0",), **BY_MOUNTS),
    ],
    "1.2 and G15 CDI annotations": [
        Case(
            {V: "all"},  # of a CUDA image: what the device plugin chose must win
            Gives("1 3", source="cdi.k8s.io/", cdi_devices=("a.b/c=d",)),
            annotations={
                "cdi.k8s.io/nvidia-device-plugin_1": "nvidia.com/gpu=1, nvidia.com/gpu=3",
                "cdi.k8s.io/other": "a.b/c=d",
                "org.other": "nvidia.com/gpu=2",
            },
        ),
        Case({}, Gives("1"), annotations={"cdi.k8s.io/x": "nvidia.com/gpu=1"}, **CLOSED),
        Case(
            {},
            Gives("1"),
            annotations={"cdi.k8s.io/x": "nvidia.com/gpu=1"},
            mounts=("0",),
            **BY_MOUNTS,
        ),
        Case(
            {V: "2"},
            Gives("2"),
            annotations={"cdi.k8s.io/x": "nvidia.com/gpu=1"},
            accept_cdi_annotations=False,
        ),
        *[
            Case(
                {},
                Refuses(RequestError, f"{value} in annotation cdi.k8s.io/x is no CDI device"),
                annotations={"cdi.k8s.io/x": value},
            )
            for value in ("0", "nvidia.com=0", "a.b/c")
        ],
    ],
    "1.2 NVIDIA_DISABLE_REQUIRE": [
        *[
            holds("cuda>=99", NVIDIA_DISABLE_REQUIRE=value)
            for value in ("1", "t", "T", "TRUE", "true", "True")
        ],
        *[fails("cuda>=99", NVIDIA_DISABLE_REQUIRE=value) for value in ("0", "yes", "", "tRUE")],
        fails("cuda>=99", NVIDIA_REQUIRE_DISABLE=""),  # ctk152, as the thread has it
        Case({V: "1", CUDA: "cuda>=99"}, Gives("1"), disable_require=True),
    ],
    "1.2 NVIDIA_REQUIRE_*": [
        holds("cuda>=12", NVIDIA_REQUIRE_DRIVER="driver>=550"),
        fails("cuda>=12", NVIDIA_REQUIRE_DRIVER="driver>=560"),
        fails("cuda>=99", NVIDIA_REQUIRE_DRIVER="driver>=550"),
        fails("cuda>=12", NVIDIA_REQUIRE_="cuda>=99"),
        fails("cuda>=12", CUDA_VERSION="8.0", NVIDIA_REQUIRE_ARCH="arch>=99"),
        holds(""),
        Case({V: "void", CUDA: "cuda>=99"}, NOTHING),
        Case({V: "none", CUDA: "arch>=99,brand=x,cuda>=12"}, Gives("")),
        Case({V: "none", CUDA: "arch>=1,cuda>=13"}, Refuses(HostError, "unsatisfied condition")),
        Case({V: "0:1", CUDA: "arch>=8.9"}, Gives("0:1")),
        Case({V: "0:1", CUDA: "arch>=9"}, Refuses(HostError, "GPU 0 NVIDIA L4: brand nvidia")),
    ],
    "1.3 a blank is or, a comma is and": [
        holds("cuda>=99 driver>=550"),
        fails("cuda>=99 driver>=560"),
        fails("cuda>=12,driver>=560"),
        holds("cuda>=12,driver<551"),
        holds("brand=tesla,driver>=1 brand=nvidia,driver>=550,driver<551"),
        fails("brand=tesla,driver>=550 brand=nvidia,driver>=551"),
        holds(",cuda>=12,,"),
        holds(" , "),
        holds("  cuda>=99\tcuda>=12 "),
    ],
    "1.3 operators": [
        holds("cuda>=12.4"),
        fails("cuda>=12.5"),
        fails("cuda>12.4"),
        holds("cuda<=12.4"),
        fails("cuda<12.4"),
        fails("cuda!=12.4"),
        holds("cuda!=12.3"),
        holds("cuda=12.4"),
        fails("cuda=12"),
    ],
    "1.3 versions": [
        holds("cuda=12.4.0.0"),
        holds("cuda>=9.2"),  # numbers, not text: "12" < "9"
        holds("driver>=550.54"),
        holds("driver>=550.054.014"),
        holds("driver<550.54.15"),
        fails("driver>=550.100"),
        holds("driver=550.54.14.0"),
    ],
    "1.3 arch and brand": [
        holds("arch>=8.9"),
        fails("arch<8.9"),
        fails("arch>=10.0"),
        *[holds(text) for text in ("brand=nvidia", "brand=NVIDIA", "brand!=tesla")],
        *[fails(text) for text in ("brand!=nvidia", "brand=tesla")],
        holds("CUDA>=12,Driver<551,ARCH>=8,BRAND=Nvidia"),
    ],
    "1.3 malformed terms": [
        malformed("cuda", "an operator is one of"),
        malformed("cuda >= 9.0", "an operator is one of"),
        malformed("cuda>=1 nonsense", "an operator is one of"),
        malformed("cuda>=", "a version has numbers and dots"),
        malformed("cuda==12", "a version has numbers and dots"),
        malformed("cuda=>12", "a version has numbers and dots"),
        malformed("cuda>=12.x", "a version has numbers and dots"),
        malformed("cuda>=1²", "a version has numbers and dots"),
        malformed("cuda>=12..4", "a version has numbers and dots"),
        malformed("memory>=80", "properties are cuda, driver, arch, brand"),
        malformed(">=12", "properties are"),
        malformed("brand>=tesla", "a brand is compared with = and !="),
        malformed("brand=", "the brand is empty"),
    ],
    "G6 all includes MIG devices, and their GPUs": [
        devices("all", ALL),
        devices("0:0,0:1", "0:0 0:1"),
    ],
    "G12 the words of a failed requirement": [
        Case(
            {V: "1", CUDA: "cuda>=13.0"},
            Refuses(
                HostError,
                f"requirement error: unsatisfied condition: cuda>=13.0, {CUDA}: this host has "
                "driver 550.54.14 with CUDA 12.4, GPU 1 NVIDIA L4: brand nvidia, arch 8.9 (hint: "
                "update the driver or use an image for an older CUDA, or -e",
            ),
        ),
    ],
}
CASES = [
    pytest.param(case, id=f"{section}-{number}")
    for section, cases in TABLE.items()
    for number, case in enumerate(cases)
]


def ask(case: Case, warnings: list[str]) -> tuple[Request | None, tuple[Gpu | MigDevice, ...]]:
    """Return a row's request and the devices it selects.

    Raises: NvhookError.
    """
    container = parse_config(json.dumps(case.document).encode(), "/bundle")
    asked = from_container(container, Config(**case.settings), warnings)
    if asked is None:
        return None, ()
    selected = select(asked.devices, HOST)
    requirements.check(asked.requirements, HOST.driver_version, "", gpus_of(selected))
    return asked, selected


@pytest.mark.parametrize("case", CASES)
def test_what_a_container_asks_for(case: Case) -> None:
    warnings: list[str] = []
    if isinstance(case.expected, Refuses):
        with pytest.raises(case.expected.kind) as caught:
            ask(case, warnings)
        line = f"nvhook: {caught.value}"
        assert all(words in line for words in case.expected.words), line
        assert line.isprintable()
        assert len(line) < 300
        return
    asked, selected = ask(case, warnings)
    assert [line for line in warnings if case.warns and case.warns in line] or not case.warns
    assert len(warnings) == bool(case.warns), warnings
    if case.expected is NOTHING:
        assert asked is None
        return
    assert isinstance(case.expected, Gives), asked
    assert asked is not None
    names = [each.name if isinstance(each, MigDevice) else str(each.index) for each in selected]
    assert (names, list(asked.driver_capabilities)) == (
        case.expected.devices,
        case.expected.capabilities,
    )
    usual: dict[str, object] = {
        "features": (),
        "imex_channels": (),
        "manages_mig": (),
        "every_csv": False,
        "cdi_devices": (),
    }
    for field, value in {**usual, **case.expected.rest}.items():
        assert getattr(asked, field) == value, field


def test_the_table_is_as_large_as_it_should_be() -> None:
    assert len(CASES) >= 150


# What of 1.2 and appendix G is not about what a container asks for -> the tests of it.
ELSEWHERE = {
    "1.2 the files of GDS, MOFED, GDRCOPY and NVSWITCH": (
        "runtime/test_requests.py::test_a_feature_is_given_and_no_other"
    ),
    "1.2 a channel that is missing": (
        "runtime/test_requests.py::test_a_channel_the_host_lacks_is_refused"
    ),
    "1.2 the environment of the hook's process": (
        "runtime/test_isolation.py::test_a_hook_entry_that_passes_the_attack_on"
    ),
    "1.2 VISIBLE_DEVICES=void is set by specs": "host/test_cdi_generate.py::VOID",
    "1.2 the lists of a Jetson": (
        "host/test_platforms.py::test_all_lists_of_a_jetson_are_for_who_asks_for_them"
    ),
    "1.2 privileged means the bounding set": (
        "unit/test_oci.py::test_privileged_is_sys_admin_in_the_bounding_set"
    ),
    "G1 nobody asks, no driver": (
        "runtime/test_bad_input.py::test_no_driver_and_a_container_that_does_not_ask"
    ),
    "G6 the node of a MIG device's GPU": (
        "runtime/test_mig.py::test_a_hook_gives_exactly_what_is_asked_for"
    ),
    "G7 files of the image are shadowed": (
        "runtime/test_driver_files.py::test_files_of_the_image_are_shadowed_and_come_back"
    ),
    "G8 links that the host does not have": "unit/test_planner.py::test_links_of_graphics",
    "G9 ModifyDeviceFiles": (
        "runtime/test_proc_mask.py::test_only_the_given_gpu_and_no_device_files"
    ),
    "G10 the loader cache and its order": (
        "runtime/test_loader_cache.py::test_equals_what_ldconfig_writes"
    ),
    "G11 the host's mounts": "runtime/conftest.py::host_unchanged",
    "G13 whose states and configurations": "unit/test_oci.py::test_state_of_a_real_runtime",
    "G14 the runtime is transparent": (
        "runtime/test_transparency.py::test_a_whole_life_is_the_same"
    ),
}


@pytest.mark.parametrize("place", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_is_elsewhere_is_there(place: str) -> None:
    file, _, name = place.partition("::")
    assert re.search(rf"\b{name}\b", (TESTS / file).read_text())
