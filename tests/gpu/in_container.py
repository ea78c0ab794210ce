"""Checks of what a container sees and may open."""

from pathlib import Path

from container import make_node, parse_answers, section, sections
from findings import Findings, NotRunError, expect
from on_host import UUID

PROC_DRIVER = Path("/proc/driver/nvidia")
SMI = section("smi", "nvidia-smi -L 2>&1")
STRIP = "sed 's/ shared:[0-9]*//; s/ master:[0-9]*//'"
# Everything an injection could change, without what differs between any two containers.
LOOK = (
    section("files", "find / /dev -xdev | sort")
    + section("mounts", f"cut -d' ' -f5- /proc/self/mountinfo | {STRIP}")
    + section("loader cache", "md5sum /etc/ld.so.cache")
    + section("params", "cat /proc/driver/nvidia/params 2>&1")
)


def ask(devices: object) -> tuple[str, ...]:
    """Return environment entries that ask for devices."""
    return f"NVIDIA_VISIBLE_DEVICES={devices}", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"


def runc_runs(known: Findings) -> str:
    """A container can be made here at all: namespaces, mounts, cgroup."""
    done = known.machine.container(LOOK + _make_nodes(known), hook=False).run()
    expect(done.status == 0, f"{done.why()}; cgroups: {known.cgroups}")
    parts = sections(done.out)
    expect("params" in parts, f"its script ended after {' '.join(parts) or 'nothing'}")
    known.plain = parts
    return f"cgroups: {known.cgroups}"


def gpu_container(known: Findings) -> str:
    """A container that asks for one GPU starts."""
    known.need_containers()
    opens = " ".join(f"open {path}" for path in known.given())
    script = (
        SMI
        + section("cuda", "/cuda_check")
        + section("libraries", "ldconfig -p")
        + section("given", f"/probe {opens}")
        + section("devices", "cd /dev; find . -name 'nvidia*' | sort")
        + section("params", "cat /proc/driver/nvidia/params")
        + section("gpus", "ls /proc/driver/nvidia/gpus")
        + _make_nodes(known)
    )
    done = known.machine.container(script, ask(known.gpu["index"])).run()
    expect(done.status == 0, done.why())
    known.with_gpu = sections(done.out)
    return expect("made" in known.with_gpu, f"it answered {', '.join(known.with_gpu) or 'nothing'}")


def gpu_nvidia_smi(known: Findings) -> str:
    """Inside, nvidia-smi lists that GPU and no other."""
    text = known.part(known.with_gpu, "smi")
    lines = [line for line in text.splitlines() if line.startswith("GPU ")]
    return expect(UUID.findall("\n".join(lines)) == [known.gpu["uuid"]], text[:600])


def gpu_loader(known: Findings) -> str:
    """The container's own ldconfig finds the libraries in its cache."""
    lines = [line.strip() for line in known.part(known.with_gpu, "libraries").splitlines()]
    names = ("libcuda.so.1", "libnvidia-ml.so.1")
    missing = [name for name in names if not any(line.startswith(f"{name} ") for line in lines)]
    seen = "; ".join(line for line in lines if line.startswith(names))
    return expect(not missing, seen or f"{len(lines)} lines, neither library among them")


def gpu_cuda(known: Findings) -> str:
    """A program that loads libcuda.so.1 initialises it and counts one device, the right one."""
    lines = known.part(known.with_gpu, "cuda").splitlines()
    right = ["cuInit = 0", "devices = 1", known.gpu["uuid"]]
    return expect(lines == right, "; ".join(lines) or "no answer")


def gpu_nodes(known: Findings) -> str:
    """Every node of the plan opens inside just as it does on the host."""
    inside = parse_answers(known.part(known.with_gpu, "given"))
    usual = {"OK"} if known.real else {"OK", "ENXIO"}
    seen, good = [], True
    for path, host_path in known.given().items():
        outside = known.machine.answers("open", host_path).get(f"open {host_path}", "?")
        answer = inside.get(f"open {path}", "?")
        good = good and answer == outside and answer in usual
        seen.append(f"{path} {answer} (host {outside})")
    return expect(good and bool(seen), "; ".join(seen))


def gpu_denied(known: Findings) -> str:
    """What was not asked for is absent and refused even after mknod; the GPU's own is not."""
    made = parse_answers(known.part(known.with_gpu, "made"))
    devices = known.part(known.with_gpu, "devices").split()
    good = devices == sorted(path.replace("/dev/", "./") for path in known.given())
    seen = [f"/dev has {' '.join(devices)}"]
    for name, numbers in known.not_given().items():
        answer = _made(made, name)
        good = good and answer == "EPERM"
        outside = _outside(known, numbers)
        seen.append(f"{name} {numbers[0]}:{numbers[1]} {answer} (host {outside})")
    own = _made(made, "asked")
    seen.append(f"the GPU's own {own}")
    return expect(good and own != "EPERM", "; ".join(seen))


def gpu_proc_params(known: Findings) -> str:
    """The driver's tools inside are told not to make device nodes."""
    _need_proc()
    text = known.part(known.with_gpu, "params")
    lines = [line for line in text.splitlines() if line.startswith("ModifyDeviceFiles:")]
    return expect(lines == ["ModifyDeviceFiles: 0"], "; ".join(lines) or text[:200] or "nothing")


def gpu_proc_gpus(known: Findings) -> str:
    """Only the one GPU is in /proc/driver/nvidia/gpus."""
    _need_proc()
    found = known.part(known.with_gpu, "gpus").split()
    return expect(found == [known.gpu["pci_bus_id"]], " ".join(found) or "nothing")


def none_container(known: Findings) -> str:
    """A container that asks for none gets the driver and no GPU: nvidia-smi says so."""
    known.need_containers()
    done = known.machine.container(SMI + _make_nodes(known), ask("none")).run()
    expect(done.status == 0, done.why())
    known.with_none = sections(done.out)
    text = known.part(known.with_none, "smi")
    listed = any(line.startswith("GPU ") for line in text.splitlines())
    return expect("No devices" in text and not listed, text[:300])


def none_denied(known: Findings) -> str:
    """In it, the GPU is refused after mknod."""
    made = parse_answers(known.part(known.with_none, "made"))
    outside = _outside(known, known.gpu_numbers)
    answer = _made(made, "asked")
    return expect(answer == "EPERM", f"{answer} (host {outside})")


def void_untouched(known: Findings) -> str:
    """NVIDIA_VISIBLE_DEVICES=void changes nothing."""
    return _untouched(known, ask("void"))


def unset_untouched(known: Findings) -> str:
    """A container that does not mention GPUs is not changed."""
    return _untouched(known, ())


def unknown_refused(known: Findings) -> str:
    """A GPU that is not there is an error of one line, and the container does not start."""
    known.need_containers()
    done = known.machine.container("echo started", ask(977)).run()
    lines = [line for line in done.err.splitlines() if "nvhook: " in line and "977" in line]
    good = done.status != 0 and "started" not in done.out and bool(lines)
    return expect(good, lines[0][-300:] if lines else done.why())


def _make_nodes(known: Findings) -> str:
    """Return a script that makes nodes inside and opens them, the GPU's own too."""
    if not known.inventory:
        return ""
    words = []
    for name, (major, minor) in (known.not_given() | {"asked": known.gpu_numbers}).items():
        words.append(f"mknod {_path(name)} {major} {minor} open {_path(name)}")
    return section("made", "/probe " + " ".join(words))


def _path(name: str) -> str:
    return "/dev/made-" + name.replace("/", "-")


def _made(answers: dict[str, str], name: str) -> str:
    """Return how opening a node ended that the container made. Raises: NotRunError."""
    made = answers.get(f"mknod {_path(name)}", "no answer")
    if made != "OK":
        raise NotRunError(f"mknod is refused inside: {made}")
    return answers.get(f"open {_path(name)}", "no answer")


def _outside(known: Findings, numbers: tuple[int, int]) -> str:
    """Return how opening such a node ends on the host.

    Raises: NotRunError if the host refuses it too, so that a refusal inside proves nothing.
    """
    path = known.machine.work / f"node-{numbers[0]}-{numbers[1]}"
    try:
        if not path.exists():
            make_node(path, numbers)
    except PermissionError as error:
        raise NotRunError("this machine lets nobody make device nodes") from error
    answer = known.machine.answers("open", str(path)).get(f"open {path}", "?")
    if answer in {"EPERM", "EACCES"}:
        raise NotRunError(f"{numbers[0]}:{numbers[1]} is refused outside as well: {answer}")
    return answer


def _need_proc() -> None:
    if not PROC_DRIVER.is_dir():
        raise NotRunError("no NVIDIA kernel driver: there is no /proc/driver/nvidia")


def _untouched(known: Findings, environment: tuple[str, ...]) -> str:
    """Compare a container with one that has no hook."""
    known.need_containers()
    done = known.machine.container(LOOK + _make_nodes(known), environment).run()
    expect(done.status == 0, done.why())
    found = sections(done.out)
    for title, (text, _) in known.plain.items():
        lines = found.get(title, ("not there", 1))[0].splitlines()
        changes = sorted(set(lines) ^ set(text.splitlines()))
        expect(not changes, f"{title} differ: {'; '.join(changes)[:300]}")
    return f"{', '.join(known.plain)}: as without a hook"
