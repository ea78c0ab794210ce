"""What a container asked for, against what it has: nodes, rules, and opening them."""

import errno
import os
import stat

from nvhook.core.edits import DeviceNode
from nvhook.core.inventory import Device, MigDevice
from nvhook.core.mig_plans import node_names
from nvhook.create.pipeline import Outcome
from nvhook.doctor.check import Check, failed, listed, not_applicable, not_checked, ok
from nvhook.doctor.container import Asked, Running
from nvhook.errors import NvhookError
from nvhook.kernel import device_verdict, trial_open
from nvhook.kernel.device_rules import DeviceRule
from nvhook.kernel.root_view import RootView

NOTHING = "the container has and asks for no GPU"
RESTART = "start the container again, with nvhook's hook or nvhook-runtime"
PERMITTED = frozenset({0, errno.ENXIO, errno.EBUSY, errno.EIO, errno.ENODEV})


def request(asked: Asked) -> Check:
    """Tell what the container asks for, or why it can't get that."""
    name = "container-request"
    if asked.refusal is not None:
        return failed(
            name,
            asked.refusal.message,
            "a request that this host can grant",
            asked.refusal.hint or "change what the container asks for",
        )
    if asked.outcome is None:
        if asked.notes:
            expected = "a request that the configuration accepts"
            fix = "set accept-envvar-when-unprivileged = true, or start it privileged"
            return failed(name, listed(asked.notes), expected, fix)
        return not_applicable(name, NOTHING)
    wanted = asked.outcome.request
    gpus = listed(_called(gpu) for gpu in asked.outcome.devices) or "no GPU"
    capabilities = ", ".join(wanted.driver_capabilities)
    return ok(name, f"{wanted.source}: {gpus}; {capabilities}")


def gpus(running: Running, outcome: Outcome) -> Check:
    """Count the GPUs asked for and those whose nodes are there."""
    name = "container-gpus"
    if not outcome.devices:
        return not_applicable(name, "it asks for no GPU, only for the driver")
    nodes = {
        node.container_path: _problem(running.rootfs, node) is None for node in _nodes(outcome)
    }
    has = []
    for device in outcome.devices:
        own = [path for name in node_names(device) if (path := f"/dev/{name}") in nodes]
        # On WSL 2 and Jetsons all nodes are for all GPUs.
        if all(nodes[path] for path in own or nodes):
            has.append(device)
    if len(has) == len(outcome.devices):
        return ok(name, f"{len(has)} asked for, {len(has)} there")
    missing = [device for device in outcome.devices if device not in has]
    return failed(
        name,
        f"{len(outcome.devices)} asked for, {len(has)} there: no {listed(map(_called, missing))}",
        listed(map(_called, outcome.devices)),
        RESTART,
    )


def nodes(running: Running, outcome: Outcome) -> Check:
    """Compare the container's device nodes with those it should have."""
    name = "container-nodes"
    wanted = _nodes(outcome)
    problems = [text for node in wanted if (text := _problem(running.rootfs, node))]
    if problems:
        expected = listed(f"{node.container_path} = {node.major}:{node.minor}" for node in wanted)
        return failed(name, listed(problems), expected, RESTART)
    return ok(name, listed(node.container_path for node in wanted))


def device_rules(running: Running, outcome: Outcome) -> Check:
    """Compute whether every rule list and program up the cgroup tree lets the devices through."""
    name = "container-device-rules"
    if running.cgroup is None:
        return not_checked(name, running.cgroup_trouble)
    rules = _rules(outcome)
    try:
        answers = device_verdict.verdicts(running.cgroup, rules)
    except (NvhookError, OSError) as error:
        return not_checked(name, str(error))
    denied = [each for each in answers if each.allowed is False]
    if denied:
        first = denied[0]
        devices = listed(f"{each.rule[1]}:{each.rule[2]}" for each in denied)
        above = "above" in first.why
        slice_fix = "systemctl set-property SLICE DeviceAllow='/dev/nvidia0 rw', for each node"
        return failed(
            name,
            f"denied: {devices}, by {first.why}",
            "every cgroup from the container's up to the root allows c MAJOR:MINOR rw",
            f"{slice_fix}, on the cgroup above" if above else f"{RESTART}; {_LOST_RULES}",
        )
    unknown = [each for each in answers if each.allowed is None]
    if unknown:
        return not_checked(name, unknown[0].why)
    return ok(name, f"all {len(rules)} devices permitted")


_LOST_RULES = "rules lost at systemctl daemon-reload: use nvhook-runtime or CDI"


def opening(running: Running, outcome: Outcome) -> Check:
    """Open the container's nodes from inside its cgroup, as its user."""
    name = "container-open"
    if running.cgroup is None:
        return not_checked(name, running.cgroup_trouble)
    if os.geteuid() != 0:
        return not_checked(name, "entering the container's cgroup needs root")
    wanted = _nodes(outcome)
    usable: list[DeviceNode] = []
    fds: list[int] = []
    try:
        for node in wanted:
            fd = running.rootfs.existing(node.container_path)
            if fd is None:
                continue
            fds.append(fd)
            # Of the descriptor that is opened: the container may change what the path names.
            if _problem_of(fd, node) is None:
                usable.append(node)
            else:
                os.close(fds.pop())
        if not usable:
            return not_checked(name, "no node is as it should be: see container-nodes")
        answers = trial_open.try_open(running.process, running.cgroup, fds)
    except (NvhookError, OSError) as error:
        return not_checked(name, str(error))
    finally:
        for fd in fds:
            os.close(fd)
    refused = [
        (node, answer)
        for node, answer in zip(usable, answers, strict=True)
        if answer not in PERMITTED
    ]
    if not refused:
        driver = "" if any(not answer for answer in answers) else ", though no driver answers"
        return ok(name, f"{listed(node.container_path for node in usable)} can be opened{driver}")
    saw = listed(f"{node.container_path}: {os.strerror(answer)}" for node, answer in refused)
    if all(answer == errno.EACCES for _, answer in refused):
        gids = listed(dict.fromkeys(str(node.gid) for node, _ in refused))
        fix = f"run it as root or with group {gids}, or open the host's nodes (mode 0666)"
        return failed(name, saw, "nodes that the container's user may open", fix)
    return failed(
        name,
        saw,
        "no EPERM: that is the device cgroup's answer",
        f"see container-device-rules; {RESTART}",
    )


def _nodes(outcome: Outcome) -> list[DeviceNode]:
    return [edit for edit in outcome.plan.edits if isinstance(edit, DeviceNode)]


def _rules(outcome: Outcome) -> list[DeviceRule]:
    """Return a rule for each node: what opening takes, whoever makes the rules."""
    return [("c", node.major, node.minor, "rw") for node in _nodes(outcome)]


def _problem(rootfs: RootView, node: DeviceNode) -> str | None:
    """Return what is wrong with a container's node, None for nothing."""
    fd = rootfs.existing(node.container_path)
    if fd is None:
        return f"{node.container_path} is missing"
    try:
        return _problem_of(fd, node)
    finally:
        os.close(fd)


def _problem_of(fd: int, node: DeviceNode) -> str | None:
    status = os.fstat(fd)
    if not stat.S_ISCHR(status.st_mode):
        return f"{node.container_path} is no device node"
    numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
    if numbers != (node.major, node.minor):
        return f"{node.container_path} is {numbers[0]}:{numbers[1]}"
    return None


def _called(device: Device) -> str:
    if isinstance(device, MigDevice):
        return f"MIG device {device.gpu.index}:{device.index}"
    return f"GPU {device.index} (nvidia{device.minor})"
