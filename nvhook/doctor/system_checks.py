"""The kernel and its security modules, as far as GPUs in containers need them."""

import os

from nvhook.doctor.check import Check, failed, listed, not_applicable, not_checked, ok, warning
from nvhook.doctor.facts import HostFacts
from nvhook.errors import NvhookError
from nvhook.host.driver_texts import read_text
from nvhook.kernel import features, mountinfo

_MODES = {
    features.V1: "v1: devices.list decides about devices",
    features.V2: "v2: device programs decide about devices",
    features.HYBRID: "hybrid: v1 decides about devices, and programs attached to v2, too",
}


def checks(facts: HostFacts) -> tuple[Check, ...]:
    """Check the machine below the driver."""
    try:
        mounts = mountinfo.read(containing=b" - cgroup")
    except NvhookError as error:
        return (not_checked("cgroup-mode", str(error)), selinux(facts), apparmor(facts))
    mode = features.cgroup_mode(mounts)
    places = [mount.mount_point for mount in mounts if mount.fs_type == "cgroup2"]
    return (
        cgroup_mode(mode),
        kernel_features(places[-1] if places else None),
        jit_hardening(facts, mode),
        selinux(facts),
        apparmor(facts),
    )


def cgroup_mode(mode: str) -> Check:
    """Tell who decides about devices."""
    if mode:
        return ok("cgroup-mode", _MODES[mode])
    return failed(
        "cgroup-mode",
        "neither the devices hierarchy of cgroup v1 nor cgroup v2 is mounted",
        "one of them",
        "mount -t cgroup2 cgroup2 /sys/fs/cgroup",
    )


def kernel_features(cgroup2: str | None) -> Check:
    """Try the system calls that nvhook needs; cgroup2 is where cgroup v2 is mounted."""
    name = "kernel-features"
    if os.geteuid() != 0:
        return not_checked(name, "trying them needs root")
    missing = features.missing(cgroup2)
    release = os.uname().release
    if not missing:
        return ok(name, f"Linux {release} has all that nvhook needs")
    return failed(
        name,
        f"Linux {release}: " + listed(f"{what}: {why}" for what, why in missing.items()),
        "Linux 5.12 or newer, and CAP_SYS_ADMIN and CAP_BPF for who runs the hook",
        "a newer kernel; in a nested or rootless engine, give the devices by CDI instead",
    )


def jit_hardening(facts: HostFacts, mode: str) -> Check:
    """Tell whether the kernel hides the constants of device programs."""
    name = "bpf-jit-harden"
    if mode == features.V1:
        return not_applicable(name, "cgroup v1 has no device programs")
    text = read_text(facts.path("/proc/sys/net/core/bpf_jit_harden"), 16)
    if text is None:
        return not_checked(name, "net.core.bpf_jit_harden can't be read (root only)")
    if text.strip() != "2":
        return ok(name, f"net.core.bpf_jit_harden is {text.strip()}")
    report = failed if mode == features.V2 else warning
    return report(
        name,
        "net.core.bpf_jit_harden is 2: device programs can't be read, so not be extended",
        "0 or 1 (hardened for unprivileged programs only)",
        "sysctl -w net.core.bpf_jit_harden=1, or give the devices by nvhook-runtime or CDI",
    )


def selinux(facts: HostFacts) -> Check:
    """Tell whether SELinux keeps containers from device nodes."""
    enforce = read_text(facts.path("/sys/fs/selinux/enforce"), 16)
    if enforce is None:
        return not_applicable("selinux", "not enabled")
    if enforce.strip() != "1":
        return ok("selinux", "permissive")
    boolean = read_text(facts.path("/sys/fs/selinux/booleans/container_use_devices"), 16) or ""
    if boolean.startswith("1"):
        return ok("selinux", "enforcing, container_use_devices is on")
    return warning(
        "selinux",
        "enforcing, container_use_devices is off",
        "confined containers (container_t) allowed to use device nodes",
        "setsebool -P container_use_devices on; or --security-opt label=disable",
    )


def apparmor(facts: HostFacts) -> Check:
    """Tell whether AppArmor is there; the engines' own profiles do not restrict GPU nodes."""
    enabled = read_text(facts.path("/sys/module/apparmor/parameters/enabled"), 16) or ""
    if not enabled.startswith("Y"):
        return not_applicable("apparmor", "not enabled")
    return ok(
        "apparmor",
        "enabled; docker-default and its like let GPU nodes through, look at own profiles",
    )
