"""Error messages that users of GPU containers paste, their usual cause and the remedy: data.

Source: nvidia-container-stack reference, sections 6 and 7 and appendix A; kubernetes reference,
section 4; public bug reports. Of NVIDIA's stack, engines, CUDA and Kubernetes, and of nvhook.
"""

from __future__ import annotations

import re  # noqa: TID253 - only doctor loads this

from nvhook.record import record


@record
class KnownError:
    """One message: ``pattern`` is searched for (case and line ends do not matter)."""

    name: str
    pattern: str
    cause: str
    remedy: str


def explain(text: str, limit: int = 3) -> tuple[KnownError, ...]:
    """Return the known errors in a text, as the table has them: the more specific ones first."""
    line = " ".join(text.split())
    found = [known for known in CATALOGUE if re.search(known.pattern, line, re.IGNORECASE)]
    return tuple(found[:limit])


CATALOGUE = (
    # ---- engines ----
    KnownError(
        "docker-no-gpu-driver",
        r"could not select device driver",
        "dockerd found no nvidia-container-runtime-hook on its PATH when it started, and CDI is "
        "off",
        "scripts/install-hook.sh --compat && systemctl restart docker; or nvhook configure docker "
        "--cdi and --device nvidia.com/gpu=all",
    ),
    KnownError(
        "unknown-runtime",
        r"unknown or invalid runtime name|no runtime for .* is configured"
        r"|RuntimeHandler .* not (supported|found)|unknown runtime handler",
        "the runtime's name (nvidia) is not registered with this engine, or the engine was not "
        "restarted since, or a file imported later replaced the section",
        "nvhook configure docker (containerd, crio), restart it; nvhook doctor looks at its files",
    ),
    KnownError(
        "runtime-not-executable",
        r"(nvhook-runtime|nvidia-container-runtime)(-hook)?\\?\"?:? .*"
        r"(no such file or directory|executable file not found|permission denied)"
        r"|(exec|stat|lookup)\W+[^ ]*(nvhook-runtime|nvidia-container-runtime)",
        "the engine's configuration names a runtime or hook that is not installed at that path",
        "install it there, or nvhook configure ENGINE to name the right path, and restart",
    ),
    KnownError(
        "conmon-missing",
        r"conmon.* not found|conmon executable",
        "a CRI-O drop-in defines a runtime without monitor_path, while the default came from "
        "memory",
        "nvhook configure crio copies conmon's path; systemctl restart crio",
    ),
    KnownError(
        "containerd-runtime-name",
        r"container\.Runtime\.Name must be set",
        "a containerd drop-in defines a runtime without runtime_type",
        'nvhook configure containerd writes runtime_type = "io.containerd.runc.v2"',
    ),
    KnownError(
        "hook-exit-code-only",
        r"error executing hook .* \(exit code: \d+\)",
        "a hook failed, and crun throws its message away",
        "the message is in /var/log/nvhook.log (or log-path of the configuration)",
    ),
    # ---- CDI ----
    KnownError(
        "cdi-empty-edits",
        r"empty (device|container) edits",
        "a device of a CDI spec has no edits: engines refuse the whole file",
        "nvhook cdi validate FILE; nvhook cdi generate --output FILE makes a valid one",
    ),
    KnownError(
        "cdi-version",
        r"cdiVersion|unsupported spec version|invalid CDI (spec )?version"
        r"|additionalGids|unknown field .*cdi",
        "the CDI spec is newer than the engine understands",
        "nvhook cdi generate writes the lowest version that will do; or update the engine",
    ),
    KnownError(
        "cdi-unresolvable",
        r"unresolvable CDI devices?",
        "no CDI spec has this device: none was made, it is in a directory the engine does not "
        "read, or it is invalid, or it names devices otherwise (index, UUID)",
        "nvhook cdi list shows what is there and what is left out; "
        "nvhook cdi generate --output /etc/cdi/nvidia.yaml",
    ),
    KnownError(
        "cdi-conflict",
        r"conflicting device",
        "two CDI specs define the same device, so engines take none",
        "nvhook cdi list names both files: remove one",
    ),
    KnownError(
        "cdi-stale-node",
        r"failed to stat CDI host device|CDI device node .* (no such|has type)"
        r"|no such device.*nvidia-uvm|is not character device .* any more",
        "the CDI spec is older than the nodes: made before a reboot, or the nodes were not made "
        "at boot (nvidia-uvm's number changes)",
        "modprobe nvidia-uvm; nvidia-modprobe -u -c 0; nvhook cdi generate --output FILE; "
        "oci/systemd does it at boot",
    ),
    # ---- NVIDIA's container stack ----
    KnownError(
        "load-library-failed",
        r"load library failed: libnvidia-ml",
        "the driver's user-space libraries are not in the root's loader cache: not installed, "
        "docker is a snap, or WSL has no driver",
        "install the driver's libraries and run ldconfig; nvidia-smi must work on the host; use "
        "docker's own packages instead of the snap",
    ),
    KnownError(
        "driver-rpc-timeout",
        r"driver rpc error: timed out|driver rpc error",
        "NVML's start took more than 10 s: many GPUs without persistence mode, or a hung one",
        "systemctl enable --now nvidia-persistenced; dmesg | grep -i xid. nvhook does not ask NVML",
    ),
    KnownError(
        "ldcache-missing",
        r"open failed: /etc/ld\.so\.cache",
        "the host has no /etc/ld.so.cache (musl, NixOS, minimal systems)",
        "ldconfig, if there is one; nvhook does without, and looks in the usual directories, too",
    ),
    KnownError(
        "cgroup-subsystem",
        r"cgroup subsystem devices not found",
        "an old libnvidia-container looks for cgroup v1 on a host that has v2",
        "update it, or use nvhook, which knows v1, v2 and both",
    ),
    KnownError(
        "device-rules-bpf",
        r"failed to add device rules|bpf_prog_query|bpf_prog_attach"
        r"|can't (query|open|read|replace) (a |the )?device program",
        "the device program of cgroup v2 can't be changed: rootless engine, nested container "
        "(LXC), or no CAP_BPF and CAP_SYS_ADMIN",
        "give the GPU by CDI or nvhook-runtime (the runtime makes the rules then), or set "
        "device-rules = false (no-cgroups = true) in a rootless engine",
    ),
    KnownError(
        "device-programs-hidden",
        r"kernel hides (the )?device program",
        "net.core.bpf_jit_harden is 2: device programs can't be read and so not be extended",
        "sysctl -w net.core.bpf_jit_harden=1; or give the devices by nvhook-runtime or CDI",
    ),
    KnownError(
        "devices-allow",
        r"devices\.allow.*(operation not permitted|permission denied)|can't add device rules",
        "cgroup v1's devices.allow can't be written: rootless or nested, or a cgroup above denies",
        "run the engine as root; in nested containers allow the devices outside first, or set "
        "device-rules = false (no-cgroups = true)",
    ),
    KnownError(
        "denied-above",
        r"cgroup above the container's denies",
        "a slice or pod cgroup above the container's has a device program without the GPU",
        "systemctl set-property SLICE DeviceAllow='/dev/nvidia0 rw' for each node; "
        "nvhook doctor --pid names the program",
    ),
    KnownError(
        "file-exists",
        r"(file|directory) creation failed:? .*: (file exists|not a directory)",
        "the image has driver files of another type (link, directory) where mounts go, often "
        "because a container with GPUs was committed or driver packages are installed in it",
        "remove NVIDIA driver packages and files from the image",
    ),
    KnownError(
        "firmware-path",
        r"path error:? .*firmware",
        "the image's /lib/firmware is a link out of its root",
        "make /lib/firmware of the image a directory, or a link that stays inside",
    ),
    KnownError(
        "proc-mount",
        r"mount operation failed:? .*/proc.*operation not permitted",
        "in a user namespace or rootless engine /proc/driver/nvidia can't be masked",
        "give the GPU by CDI; NVIDIA's toolkit fixed parts of it in 1.17.8",
    ),
    KnownError(
        "ldconfig-failed",
        r"ldcache error|ldconfig(\.real)? (failed|terminated)",
        "the host's ldconfig failed on the container's libraries: broken or foreign libraries, "
        "another glibc, limits (signal 9)",
        "ldconfig in the image shows which file; nvhook writes the cache itself and seldom needs "
        "it",
    ),
    KnownError(
        "unsatisfied-condition",
        r"unsatisfied condition",
        "the image's NVIDIA_REQUIRE_CUDA asks for a newer driver than the host has",
        "update the host's driver, or use an image with older CUDA; "
        "-e NVIDIA_DISABLE_REQUIRE=1 starts it all the same",
    ),
    KnownError(
        "invalid-requirement",
        r"requirement error:? invalid expression|invalid expression",
        "a variable that begins with NVIDIA_REQUIRE_ is no requirement (any such name counts)",
        "correct or unset it; requirements look like cuda>=12.4 driver>=550",
    ),
    KnownError(
        "unknown-device",
        r"unknown device|unknown device id",
        "NVIDIA_VISIBLE_DEVICES (or --gpus) names a GPU that this host does not have: wrong "
        "index or UUID, MIG was reconfigured, or the name of a mount directory",
        "nvhook list (nvidia-smi -L) shows what there is; the index counts in PCI order from 0",
    ),
    KnownError(
        "unsupported-capability",
        r"unsupported capabilities|unknown driver capability|driver capability .* is not allowed",
        "NVIDIA_DRIVER_CAPABILITIES has a typing error, or more than the host allows",
        "use compute, utility, graphics, video, display, ngx, compat32 or all; see "
        "supported-driver-capabilities",
    ),
    KnownError(
        "direct-hook",
        r"invoking the NVIDIA Container Runtime Hook directly",
        "docker --gpus calls NVIDIA's hook, but its configuration has mode cdi or csv",
        "use --runtime nvidia or --device nvidia.com/gpu=all, or set mode = auto; or let --gpus "
        "call nvhook: scripts/install-hook.sh --compat",
    ),
    KnownError(
        "capability-change",
        r"permission error: capability change failed",
        "nvidia-container-cli runs without the capabilities it wants: rootless or nested",
        "give the GPU by CDI, or run the engine as root",
    ),
    KnownError(
        "library-pattern",
        r"pattern lib[^ ]+\.so[^ ]* not found",
        "the driver's libraries are in a directory that was not searched",
        "set driver-root (nvhook), or --library-search-path (nvidia-ctk); nvhook list --json "
        "shows what is found",
    ),
    KnownError(
        "unprivileged",
        r"not accepted from an unprivileged container|insufficient privileges? to read device list",
        "the configuration believes NVIDIA_VISIBLE_DEVICES of privileged containers only",
        "set accept-envvar-when-unprivileged = true, or ask by mounts or CDI as the host wants it",
    ),
    # ---- the driver ----
    KnownError(
        "nvml-mismatch",
        r"driver/library version mismatch|NVML library version",
        "the kernel module and the libraries are of different versions: the driver was updated "
        "without a reboot, or a container kept the old files mounted",
        "on the host: reboot or reload the modules. In a container only: start it again. "
        "nvhook doctor says which it is",
    ),
    KnownError(
        "driver-not-loaded",
        r"driver not loaded|couldn't communicate with the NVIDIA driver"
        r"|no NVIDIA driver is loaded",
        "NVIDIA's kernel module is not loaded: not installed, not built for this kernel, not "
        "signed for secure boot, or nouveau holds the GPU",
        "modprobe nvidia; dmesg | grep -i nvrm; install headers and rebuild (dkms autoinstall)",
    ),
    KnownError(
        "nvml-unknown",
        r"Failed to initialize NVML:? Unknown Error",
        "after it worked for a while: systemctl daemon-reload (or runc update) took the device "
        "rules away, because systemd did not know of them",
        "restart the container; to prevent it give GPUs by nvhook-runtime or CDI, and have links "
        "in /dev/char. nvhook doctor --pid shows who denies",
    ),
    KnownError(
        "nvml-permissions",
        r"Insufficient Permissions",
        "the container's user may not open the nodes: mode 0660 and another group, or rootless",
        "podman --group-add keep-groups, or NVreg_DeviceFileMode=0666 in /etc/modprobe.d",
    ),
    KnownError(
        "gpu-lost",
        r"GPU is lost|fallen off the bus|Xid .*: 79\b|Unable to determine the device handle",
        "the GPU does not answer any more (power, heat, PCIe, or the driver)",
        "dmesg | grep -i xid; drain the node and reboot; look at power and slot if it comes again",
    ),
    KnownError(
        "gpu-blocked",
        r"GPU access blocked by the operating system",
        "WSL2: the container has libraries but not /dev/dxg, or the Windows driver is too old",
        "update the Windows driver and WSL (wsl --update); give /dev/dxg",
    ),
    KnownError(
        "wsl-adapters",
        r"WSL environment detected but no adapters|libdxcore",
        "WSL2 shows no GPU, or libdxcore.so is not where it was looked for (/usr/lib/wsl/lib)",
        "install the Windows driver, no Linux driver inside WSL; wsl --update",
    ),
    KnownError(
        "no-devices-found",
        r"No devices (were )?found",
        "the driver works but no GPU is given: NVIDIA_VISIBLE_DEVICES=none, or no node, or all "
        "GPUs are excluded or passed to virtual machines",
        "ask for a GPU (-e NVIDIA_VISIBLE_DEVICES=0); nvhook list on the host",
    ),
    # ---- programs in containers ----
    KnownError(
        "libcuda-not-found",
        r"(libcuda|libnvidia-[a-z-]+|libnvcuvid)\.so(\.\d+)*: cannot open shared object"
        r"|cannot find -lcuda|could not load dynamic library .libcuda",
        "the container's loader does not know the library: no GPU was given, the capability is "
        "missing (compute for libcuda, utility for libnvidia-ml, video for nvcuvid), the loader "
        "cache was not updated, or the image is musl",
        "nvhook doctor --pid PID; set NVIDIA_DRIVER_CAPABILITIES; musl images need gcompat",
    ),
    KnownError(
        "nvidia-smi-not-found",
        r"nvidia-smi\W*:? .*(not found|no such file)|exec:? .*nvidia-smi",
        "nothing gave the container a GPU, or the capability utility is missing, or the image is "
        "musl and can't run a glibc program",
        "ask for a GPU (--gpus, --runtime nvidia, --device) with utility; use a glibc image or "
        "gcompat",
    ),
    KnownError(
        "unsupported-driver-combination",
        r"unsupported display driver ?/ ?cuda driver combination"
        r"|CUDA_ERROR_(SYSTEM_DRIVER_MISMATCH|COMPAT_NOT_SUPPORTED_ON_DEVICE)"
        r"|forward compatibility was attempted|\berror:? 80[34]\b",
        "the image's cuda-compat libcuda is used with a driver or GPU that it is not for (803, "
        "804)",
        "take /usr/local/cuda/compat out of LD_LIBRARY_PATH and ld.so.conf.d, or update the driver",
    ),
    KnownError(
        "cuda-unknown",
        r"CUDA_ERROR_UNKNOWN|cudaErrorUnknown|CUDA.{0,40}\b999\b|CUDA unknown error",
        "nvidia-uvm is not loaded, its node is missing, or it may not be opened",
        "modprobe nvidia-uvm; nvidia-modprobe -u -c 0; then start the container again; "
        "nvhook doctor and nvhook doctor --pid check all three",
    ),
    KnownError(
        "cuda-no-device",
        r"no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice",
        "CUDA finds no node it may open, or CUDA_VISIBLE_DEVICES names none that is there "
        "(numbers begin at 0 in each container)",
        "unset CUDA_VISIBLE_DEVICES; nvhook doctor --pid PID",
    ),
    KnownError(
        "cuda-insufficient-driver",
        r"driver version is insufficient|CUDA_ERROR_INSUFFICIENT_DRIVER|cudaErrorInsufficientDriver"
        r"|NVIDIA driver on your system is too old",
        "the image's CUDA is newer than the host's driver, or libcuda is not given at all",
        "update the driver, use an image with older CUDA, or its cuda-compat package on data "
        "center GPUs",
    ),
    KnownError(
        "cuda-ptx",
        r"PTX was compiled with an unsupported toolchain|CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "code for a newer CUDA than the driver's compiler knows; a wrong libnvidia-ptxjitcompiler "
        "does it, too",
        "update the driver; nvhook doctor --pid shows whether the container's libraries match it",
    ),
    KnownError(
        "cuda-busy",
        r"all CUDA-capable devices are busy|CUDA_ERROR_DEVICES_UNAVAILABLE"
        r"|cudaErrorDevicesUnavailable",
        "the GPU is in exclusive mode and in use, or MIG is on without an instance",
        "nvidia-smi -c DEFAULT; nvidia-smi -q -d MIG, COMPUTE",
    ),
    KnownError(
        "vulkan-no-driver",
        r"Cannot find a compatible Vulkan|VK_ERROR_INCOMPATIBLE_DRIVER|vk_?icd|Found no drivers"
        r"|libEGL warning|eglInitialize.*fail",
        "the driver's graphics libraries or their JSON files are not in the container",
        "ask with NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility (or all), or use CDI",
    ),
    KnownError(
        "mps",
        r"MPS (control daemon|server|client)|nvidia-cuda-mps|CUDA_ERROR_MPS",
        "CUDA's multi-process service is asked for but its daemon or pipe directory is not "
        "reachable",
        "start nvidia-cuda-mps-control -d on the host; the container needs hostIPC and "
        "/tmp/nvidia-mps",
    ),
    # ---- Kubernetes ----
    KnownError(
        "k8s-unhealthy",
        r"no healthy devices present|cannot allocate unhealthy devices",
        "the device plugin reported the GPU as unhealthy (an Xid), and many never take that back, "
        "or it registered after the pod was admitted",
        "restart the device plugin's pod; dmesg | grep -i xid on the node; then recreate the pod",
    ),
    KnownError(
        "k8s-admission",
        r"UnexpectedAdmissionError",
        "the kubelet admitted the pod before the device plugin was registered (node or kubelet "
        "restart); that is final for the pod",
        "delete the pod; its controller makes a new one",
    ),
    KnownError(
        "k8s-insufficient",
        r"Insufficient nvidia\.com/",
        "no node offers as many free GPUs: the device plugin does not run, sees none, or all are "
        "taken",
        "kubectl describe node: Allocatable nvidia.com/gpu; look at the plugin's log; "
        "nvhook doctor on the node",
    ),
    KnownError(
        "k8s-plugin-no-nvml",
        r"Incompatible (platform|strategy)|Could not find a platform|no valid resources detected"
        r"|could not load NVML library",
        "the device plugin's container has no NVML: the node's default runtime is not the GPU one",
        "nvhook configure containerd --set-as-default, or run the plugin with runtimeClassName: "
        "nvidia",
    ),
    KnownError(
        "selinux",
        r"avc: +denied .*nvidia|SELinux.*nvidia",
        "SELinux keeps confined containers from the device nodes or the driver's files",
        "setsebool -P container_use_devices on, or --security-opt label=disable",
    ),
    KnownError(
        "device-not-permitted",
        r"/dev/nvidia[^ ]*:? .*operation not permitted",
        "the node is there, but the device cgroup has no rule for it",
        "nvhook doctor --pid PID shows who denies; start the container again through nvhook",
    ),
)
