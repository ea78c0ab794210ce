"""Every known error is found in the words in which users paste it."""

import pytest

from nvhook.core.error_catalogue import CATALOGUE, explain

# Name in the catalogue -> a text as pasted. Those above the line are the reference's appendix A.
APPENDIX_A = {
    "docker-no-gpu-driver": (
        'docker: Error response from daemon: could not select device driver "" with '
        "capabilities: [[gpu]]."
    ),
    "load-library-failed": (
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: "
        "cannot open shared object file: no such file or directory: unknown"
    ),
    "driver-not-loaded": (
        "nvidia-container-cli: initialization error: nvml error: driver not loaded"
    ),
    "nvml-mismatch": "initialization error: nvml error: driver/library version mismatch: unknown.",
    "driver-rpc-timeout": "initialization error: driver rpc error: timed out: unknown",
    "ldcache-missing": (
        "nvidia-container-cli: initialization error: open failed: /etc/ld.so.cache: no such "
        "file or directory"
    ),
    "cgroup-subsystem": "container error: cgroup subsystem devices not found: unknown.",
    "device-rules-bpf": (
        "mount error: failed to add device rules: unable to find any existing device filters "
        "attached to the cgroup: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not "
        "permitted"
    ),
    "devices-allow": (
        "mount error: write error: /sys/fs/cgroup/devices/user.slice/devices.allow: operation "
        "not permitted"
    ),
    "file-exists": (
        "mount error: file creation failed: "
        "/var/lib/docker/overlay2/ab/merged/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1: file "
        "exists"
    ),
    "firmware-path": (
        "mount error: path error: /data/merged/lib/firmware/nvidia/535.54.03: not a path"
    ),
    "proc-mount": (
        "mount error: mount operation failed: /storage/overlay/merged/proc/driver/nvidia: "
        "operation not permitted"
    ),
    "ldconfig-failed": "ldcache error: process /sbin/ldconfig.real terminated with signal 9",
    "unsatisfied-condition": (
        "requirement error: unsatisfied condition: cuda>=11.6, please update your driver to a "
        "newer version, or use an earlier cuda container: unknown."
    ),
    "invalid-requirement": "nvidia-container-cli: requirement error: invalid expression: unknown",
    "unknown-device": "nvidia-container-cli: device error: 4: unknown device: unknown.",
    "unsupported-capability": (
        "unsupported capabilities found in 'compute,utilities' (allowed 'compute,utility')"
    ),
    "direct-hook": (
        "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker "
        "--gpus flag) is not supported. Please use the NVIDIA Container Runtime"
    ),
    "cdi-unresolvable": (
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"
    ),
    "cdi-stale-node": (
        'failed to inject devices: failed to stat CDI host device "/dev/nvidia-uvm": no such '
        "file or directory"
    ),
    "nvml-unknown": "$ nvidia-smi\nFailed to initialize NVML: Unknown Error",
    "libcuda-not-found": (
        "./deviceQuery: error while loading shared libraries: libcuda.so.1: cannot open shared "
        "object file: No such file or directory"
    ),
    "unsupported-driver-combination": (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has "
        "unsupported display driver / cuda driver combination"
    ),
    "cuda-unknown": "cuInit(0) failed: CUDA_ERROR_UNKNOWN (999)",
}
OTHERS = {
    "unknown-runtime": (
        "docker: Error response from daemon: unknown or invalid runtime name: nvidia."
    ),
    "runtime-not-executable": (
        'exec: "nvidia-container-runtime": executable file not found in $PATH'
    ),
    "conmon-missing": "level=fatal msg=runtime config: conmon executable file not found in $PATH",
    "containerd-runtime-name": "invalid argument: container.Runtime.Name must be set",
    "hook-exit-code-only": "error executing hook `/usr/local/bin/nvhook` (exit code: 1)",
    "cdi-empty-edits": 'failed to parse CDI Spec: invalid device "demo1": empty device edits',
    "cdi-version": "Error: unsupported spec version: invalid CDI Spec cdiVersion 0.7.0",
    "cdi-conflict": 'conflicting device "nvidia.com/gpu=0" in /etc/cdi/a.yaml and /etc/cdi/b.yaml',
    "device-programs-hidden": "nvhook: the kernel hides device programs (hint: set net.core...)",
    "denied-above": (
        "nvhook: a cgroup above the container's denies the device c 195:0 rw (program 9)"
    ),
    "capability-change": "permission error: capability change failed: operation not permitted",
    "library-pattern": "failed to get libraries: pattern libcuda.so.535.183.06 not found",
    "unprivileged": "NVIDIA_VISIBLE_DEVICES is not accepted from an unprivileged container",
    "nvml-permissions": "Failed to initialize NVML: Insufficient Permissions",
    "gpu-lost": "NVRM: Xid (PCI:0000:07:00): 79, pid=1234, GPU has fallen off the bus.",
    "gpu-blocked": "Failed to initialize NVML: GPU access blocked by the operating system",
    "wsl-adapters": "initialization error: WSL environment detected but no adapters were found",
    "no-devices-found": "$ nvidia-smi -L\nNo devices found.",
    "nvidia-smi-not-found": "bash: nvidia-smi: command not found",
    "cuda-no-device": "cudaGetDeviceCount returned 100 -> no CUDA-capable device is detected",
    "cuda-insufficient-driver": "CUDA driver version is insufficient for CUDA runtime version",
    "cuda-ptx": "the provided PTX was compiled with an unsupported toolchain.",
    "cuda-busy": "CUDA error: all CUDA-capable devices are busy or unavailable",
    "vulkan-no-driver": "ERROR: [Loader] vkCreateInstance: Found no drivers!",
    "mps": "MPS control daemon is not running: Cannot find MPS control daemon process",
    "k8s-unhealthy": (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
        "nvidia.com/gpu, which is unexpected"
    ),
    "k8s-admission": "Warning  UnexpectedAdmissionError  2m  kubelet  Allocate failed",
    "k8s-insufficient": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    "k8s-plugin-no-nvml": (
        "Incompatible strategy detected auto. If this is a GPU node, did you configure the "
        "NVIDIA Container Toolkit?"
    ),
    "selinux": "avc:  denied  { read write } for comm=nvidia-smi name=nvidiactl",
    "device-not-permitted": "open /dev/nvidia0: Operation not permitted",
}
# Other spellings of the same.
VARIANTS = [
    (
        "nvml-mismatch",
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: "
            "550.54"
        ),
    ),
    ("nvml-mismatch", "driver/library version mismatch: kernel module 550.54.14, libcuda.so 535.1"),
    (
        "driver-not-loaded",
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
    ),
    ("ldconfig-failed", "ldcache error: process /sbin/ldconfig failed with error code: 1: unknown"),
    ("unknown-device", "nvhook: unknown device id 7 (hint: this host has 0-3; nvhook list shows)"),
    (
        "unknown-runtime",
        (
            "rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "
            '"nvidia" is configured'
        ),
    ),
    (
        "runtime-not-executable",
        (
            "failed to create task: fork/exec /usr/bin/nvidia-container-runtime: no such file or "
            "directory"
        ),
    ),
    ("libcuda-not-found", "OSError: libnvidia-ml.so.1: cannot open shared object file"),
    (
        "cuda-unknown",
        (
            "torch._C._cuda_init() RuntimeError: CUDA unknown error - this may be due to an "
            "incorrectly set up environment"
        ),
    ),
    ("unsatisfied-condition", "UNSATISFIED\n  condition: cuda>=12.8"),
]


@pytest.mark.parametrize(("name", "text"), [*APPENDIX_A.items(), *OTHERS.items(), *VARIANTS])
def test_a_pasted_text_finds_its_entry_first(name, text) -> None:
    assert [known.name for known in explain(text)][:1] == [name]


def test_every_entry_has_a_text_that_finds_it() -> None:
    assert {known.name for known in CATALOGUE} == {*APPENDIX_A, *OTHERS}
    assert len(CATALOGUE) == len({known.name for known in CATALOGUE})


@pytest.mark.parametrize("known", CATALOGUE, ids=[known.name for known in CATALOGUE])
def test_causes_and_remedies_are_short_and_say_something(known) -> None:
    assert 20 < len(known.cause) < 300
    assert 15 < len(known.remedy) < 300
    assert not known.cause.endswith(".")


@pytest.mark.parametrize(
    "text", ["", "all is well", "Segmentation fault", "Killed", "nvidia-smi", "open /etc/passwd"]
)
def test_other_texts_are_not_known(text) -> None:
    assert explain(text) == ()


def test_a_long_log_gives_a_few_explanations() -> None:
    log = "\n".join([*APPENDIX_A.values(), *OTHERS.values()] * 20)
    assert len(explain(log)) == 3
