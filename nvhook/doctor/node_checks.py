"""The device nodes: there, with the right numbers, open to containers, known to systemd."""

import os
import stat

from nvhook.core.catalog import CONTROL_NODES
from nvhook.doctor.check import Check, failed, listed, not_applicable, not_checked, ok, warning
from nvhook.doctor.facts import HostFacts
from nvhook.doctor.host_checks import NO_DRIVER
from nvhook.host.nodes import read_node

CAPS = "nvidia-caps"


def checks(facts: HostFacts) -> tuple[Check, ...]:
    """Check the device nodes."""
    return (
        gpu_nodes(facts),
        unified_memory(facts),
        modeset_node(facts),
        capability_nodes(facts),
        node_permissions(facts),
        char_links(facts),
    )


def gpu_nodes(facts: HostFacts) -> Check:
    """Check nvidiactl and the node of each GPU."""
    name = "gpu-nodes"
    if not facts.version:
        return not_checked(name, NO_DRIVER)
    major = facts.majors.get("nvidia")
    if major is None:
        return failed(
            name,
            "/proc/devices has no nvidia",
            "the driver's character devices registered",
            "modprobe nvidia, and look at dmesg | grep -i nvrm",
        )
    used = [gpu for gpu in facts.gpus if not gpu.excluded and gpu.minor is not None]
    wanted = {"nvidiactl": CONTROL_NODES["nvidiactl"][1]}
    wanted |= {f"nvidia{gpu.minor}": gpu.minor for gpu in used if gpu.minor is not None}
    problems = [text for node in wanted if (text := _problem(facts, node, major, wanted[node]))]
    if problems:
        first = next(node for node in wanted if _problem(facts, node, major, wanted[node]))
        number = wanted[first] if first != "nvidiactl" else 0
        return failed(
            name,
            listed(problems),
            listed(f"{node} = {major}:{minor}" for node, minor in wanted.items()),
            _remake(facts, first, f"nvidia-modprobe -c {number}"),
        )
    return ok(name, f"{listed(wanted)} of major {major}")


def unified_memory(facts: HostFacts) -> Check:
    """Check nvidia-uvm: loaded, and its nodes of its major, which changes from boot to boot."""
    name = "nvidia-uvm"
    if not facts.version:
        return not_checked(name, NO_DRIVER)
    major = facts.majors.get("nvidia-uvm")
    if major is None:
        return failed(
            name,
            "/proc/devices has no nvidia-uvm",
            "the module nvidia-uvm loaded: without it CUDA ends in error 999",
            "modprobe nvidia-uvm && nvidia-modprobe -u -c 0",
        )
    nodes = {node: CONTROL_NODES[node][1] for node in ("nvidia-uvm", "nvidia-uvm-tools")}
    problems = [text for node in nodes if (text := _problem(facts, node, major, nodes[node]))]
    if problems:
        fix = _remake(facts, "nvidia-uvm", "nvidia-modprobe -u -c 0")
        expected = listed(f"{node} = {major}:{minor}" for node, minor in nodes.items())
        return failed(name, listed(problems), expected, fix)
    return ok(name, f"loaded, major {major}")


def modeset_node(facts: HostFacts) -> Check:
    """Check nvidia-modeset, which only graphics and display need."""
    name = "nvidia-modeset"
    if not facts.version:
        return not_checked(name, NO_DRIVER)
    minor = CONTROL_NODES[name][1]
    major = facts.majors.get("nvidia")
    if major is None:
        return not_checked(name, "/proc/devices has no nvidia")
    problem = _problem(facts, name, major, minor)
    if problem is None:
        return ok(name, f"{major}:{minor}")
    return warning(
        name,
        problem,
        f"{name} = {major}:{minor}, for containers with graphics or display",
        _remake(facts, name, "nvidia-modprobe -m"),
    )


def capability_nodes(facts: HostFacts) -> Check:
    """Check that the nodes of MIG and its like have today's major."""
    name = "capability-nodes"
    directory = f"{facts.config.dev_root.rstrip('/')}/{CAPS}"
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        names = []
    nodes = [node for each in names if (node := read_node(directory, each)) is not None]
    if not nodes:
        return not_applicable(name, "no node of MIG or of other driver capabilities")
    major = facts.majors.get(CAPS)
    wrong = [f"{node.name} = {node.major}:{node.minor}" for node in nodes if node.major != major]
    if wrong:
        return failed(
            name,
            listed(wrong),
            f"the major of {CAPS} in /proc/devices, {'none' if major is None else major}",
            f"rm -r {directory} && nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/config",
        )
    return ok(name, f"{len(nodes)} of major {major}")


def node_permissions(facts: HostFacts) -> Check:
    """Tell whether a user in a container may open the nodes, as far as their modes say."""
    name = "node-permissions"
    if not facts.nodes:
        return not_checked(name, f"no NVIDIA device node in {facts.config.dev_root}")
    closed = [
        f"{node.name} is {node.mode:04o} {node.uid}:{node.gid}"
        for node in facts.nodes.values()
        if node.mode & 0o006 != 0o006
    ]
    if not closed:
        return ok(name, "every user may open the nodes")
    return warning(
        name,
        listed(closed),
        "mode 0666, or containers whose user is in that group (podman --group-add keep-groups)",
        "set NVreg_DeviceFileMode=0666 in /etc/modprobe.d and reload the driver",
    )


def char_links(facts: HostFacts) -> Check:
    """Check /dev/char: systemd drops a device rule whose number has no link there."""
    name = "char-links"
    if not os.path.isdir(facts.path("/run/systemd/system")):
        return not_applicable(name, "systemd does not run here")
    if not facts.nodes:
        return not_checked(name, f"no NVIDIA device node in {facts.config.dev_root}")
    missing = [
        f"{node.major}:{node.minor} ({node.name})"
        for node in facts.nodes.values()
        if not os.path.exists(facts.path(f"/dev/char/{node.major}:{node.minor}"))
    ]
    if not missing:
        return ok(name, f"/dev/char has all {len(facts.nodes)}")
    first = next(iter(facts.nodes.values()))
    return warning(
        name,
        f"/dev/char has no {listed(missing)}",
        "a link for each node: else containers lose GPUs at systemctl daemon-reload",
        f"ln -s ../{first.name} /dev/char/{first.major}:{first.minor}, and so on; "
        "nvidia-ctk system create-dev-char-symlinks --create-all makes all of them",
    )


def _problem(facts: HostFacts, name: str, major: int, minor: int) -> str | None:
    """Return what is wrong with a node, None for nothing."""
    node = facts.nodes.get(name)
    path = f"{facts.config.dev_root.rstrip('/')}/{name}"
    if node is not None:
        same = (node.major, node.minor) == (major, minor)
        return None if same else f"{path} is {node.major}:{node.minor}"
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return f"{path} is missing"
    return f"{path} is a {'link' if stat.S_ISLNK(mode) else 'file'}, not a device node"


def _remake(facts: HostFacts, name: str, command: str) -> str:
    """Return the command that makes nodes; a wrong one must go first."""
    path = f"{facts.config.dev_root.rstrip('/')}/{name}"
    return f"rm {path} && {command}" if os.path.lexists(path) else command
