"""What the driver's kernel modules show below /proc and /sys, as text by relative path.

The formats, tabs and trailing blanks included, are those of the samples in tests/data.
"""

from nvhook.core.inventory import Gpu
from nvhook.sim.features import FEATURES
from nvhook.sim.machine import BOOT_ID, MODELS, NVIDIA_MAJOR, OTHER_MODEL, Machine, drm_nodes
from nvhook.sim.mig_tree import capability_files

_BUILT = "Thu Feb 22 01:44:30 UTC 2024"

_PARAMS = (
    ("ResmanDebugLevel", "4294967295"),
    ("RmLogonRC", "1"),
    ("ModifyDeviceFiles", "1"),
    ("DeviceFileUID", "0"),
    ("DeviceFileGID", "0"),
    ("DeviceFileMode", "438"),
    ("InitializeSystemMemoryAllocations", "1"),
    ("UsePageAttributeTable", "4294967295"),
    ("EnableMSI", "1"),
    ("EnablePCIeGen3", "0"),
    ("MemoryPoolSize", "0"),
    ("KMallocHeapMaxSize", "0"),
    ("VMallocHeapMaxSize", "0"),
    ("IgnoreMMIOCheck", "0"),
    ("EnableStreamMemOPs", "0"),
    ("EnableUserNUMAManagement", "1"),
    ("NvLinkDisable", "0"),
    ("RmProfilingAdminOnly", "1"),
    ("PreserveVideoMemoryAllocations", "0"),
    ("EnableS0ixPowerManagement", "0"),
    ("S0ixPowerManagementVideoMemoryThreshold", "256"),
    ("DynamicPowerManagement", "3"),
    ("DynamicPowerManagementVideoMemoryThreshold", "200"),
    ("RegisterPCIDriver", "1"),
    ("EnablePCIERelaxedOrderingMode", "0"),
    ("EnableResizableBar", "0"),
    ("EnableGpuFirmware", "18"),
    ("EnableGpuFirmwareLogs", "2"),
    ("EnableDbgBreakpoint", "0"),
    ("OpenRmEnableUnsupportedGpus", "1"),
    ("DmaRemapPeerMmio", "1"),
    ("RegistryDwords", '""'),
    ("RegistryDwordsPerDevice", '""'),
    ("RmMsg", '""'),
    ("GpuBlacklist", '""'),
    ("TemporaryFilePath", '""'),
    ("ExcludedGpus", '""'),
)

# What any machine has around the driver's lines.
_OTHER_MAJORS = (
    (1, "mem"),
    (4, "/dev/vc/0"),
    (4, "tty"),
    (4, "ttyS"),
    (5, "/dev/tty"),
    (5, "/dev/console"),
    (5, "/dev/ptmx"),
    (10, "misc"),
    (13, "input"),
    (29, "fb"),
    (128, "ptm"),
    (136, "pts"),
    (252, "tpm"),
    (254, "gpiochip"),
)


def proc_files(machine: Machine, architecture: str) -> dict[str, str]:
    """Return the files of /proc; ``architecture`` is x86_64 or aarch64."""
    driver = "driver/nvidia"
    files = {
        "devices": _devices(machine),
        "sys/kernel/random/boot_id": f"{BOOT_ID}\n",
        f"{driver}/version": _version(machine, architecture),
        f"{driver}/params": "".join(f"{name}: {value}\n" for name, value in _PARAMS),
        f"{driver}/registry": 'Binary: ""\n',
    }
    for gpu in machine.gpus:
        path = f"{driver}/gpus/{gpu.pci_bus_id}/information"
        files[path] = _information(gpu, machine.driver_version)
    if machine.mig_devices:
        files |= {
            f"driver/{path}": text
            for path, text in capability_files(machine.gpus, machine.mig_devices).items()
        }
    return files


def sys_files(machine: Machine) -> dict[str, str]:
    """Return the files of /sys. The first half of the GPUs is on NUMA node 0, the rest on 1."""
    files = {"module/nvidia/version": f"{machine.driver_version}\n"}
    count = len(machine.gpus)
    for gpu in machine.gpus:
        directory = f"bus/pci/devices/{gpu.pci_bus_id}"
        model = MODELS.get(gpu.model, OTHER_MODEL)
        files[f"{directory}/vendor"] = "0x10de\n"
        files[f"{directory}/device"] = f"0x{model.device:04x}\n"
        files[f"{directory}/class"] = "0x030200\n"
        files[f"{directory}/numa_node"] = f"{gpu.index * 2 // count}\n"
        for name, minor in drm_nodes(gpu):
            files[f"{directory}/drm/{name}/dev"] = f"{machine.drm_major}:{minor}\n"
    return files


def _devices(machine: Machine) -> str:
    # The old name went with 550.40.
    parts = [int(part) for part in machine.driver_version.split(".")]
    renamed = parts >= [550, 40]
    names = ("nvidia", "nvidia-modeset", "nvidiactl") if renamed else ("nvidia-frontend",)
    majors = [*_OTHER_MAJORS, *[(NVIDIA_MAJOR, name) for name in names]]
    majors += [
        (machine.drm_major, "drm"),
        (machine.caps_major, "nvidia-caps"),
        (machine.uvm_major, "nvidia-uvm"),
    ]
    majors += [(major, FEATURES[name].major_name) for name, major in machine.feature_majors.items()]
    majors.sort(key=lambda line: line[0])
    characters = "".join(f"{major:3d} {name}\n" for major, name in majors)
    return f"Character devices:\n{characters}\nBlock devices:\n  7 loop\n259 blkext\n"


def _version(machine: Machine, architecture: str) -> str:
    if machine.open_modules:
        kind = f"Open Kernel Module for {architecture}"
        tail = f"Release Build  (nvhook@sim)  {_BUILT}"
    else:
        kind = f"{architecture} Kernel Module"
        tail = _BUILT
    return (
        f"NVRM version: NVIDIA UNIX {kind}  {machine.driver_version}  {tail}\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14) \n"
    )


def _information(gpu: Gpu, driver_version: str) -> str:
    return (
        f"Model: \t\t {gpu.model}\n"
        f"IRQ:   \t\t {100 + gpu.index}\n"
        f"GPU UUID: \t {gpu.uuid}\n"
        "Video BIOS: \t 96.00.99.00.01\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 52 bits\n"
        "DMA Mask: \t 0xfffffffffffff\n"
        f"Bus Location: \t {gpu.pci_bus_id}\n"
        f"Device Minor: \t {gpu.minor}\n"
        f"GPU Firmware: \t {driver_version}\n"
        "GPU Excluded:\t No\n"
    )
