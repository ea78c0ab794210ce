"""What a node's labels say of its GPUs, in the names of NVIDIA's GPU feature discovery. Pure.

Labels say what the device plugin offers, so that both agree. Source: kubernetes reference, 2.9.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nvhook.core.gpu_models import arch
from nvhook.core.inventory import Gpu, Inventory, MigDevice, gpus_of
from nvhook.errors import RequestError
from nvhook.host.nvml_facts import Facts, GpuFacts, MigFacts
from nvhook.kubelet.names import GPU, PREFIX, mig_name
from nvhook.kubelet.resources import Resource, build
from nvhook.kubelet.settings import Settings

MAX_VALUE = 63
_NO_VALUE = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
# The beginning of compute capabilities, the first that fits counts.
_FAMILIES = (
    ("12.", "blackwell"),
    ("10.", "blackwell"),
    ("9.", "hopper"),
    ("8.9", "ada-lovelace"),
    ("8.", "ampere"),
    ("7.5", "turing"),
    ("7.", "volta"),
    ("6.", "pascal"),
    ("5.", "maxwell"),
    ("3.", "kepler"),
    ("2.", "fermi"),
)
# A PCI function's class as /sys has it.
_MODES = {"0x030000": "graphics", "0x030200": "compute"}


def labels(
    settings: Settings,
    inventory: Inventory,
    facts: Facts,
    machine: str,
    classes: Mapping[str, str],
    timestamp: int | None = None,
) -> dict[str, str]:
    """Return a node's labels; none where it has no GPU.

    ``machine`` is what its maker calls it, ``classes`` are the PCI classes by PCI bus id,
    ``timestamp`` is in seconds since 1970. What NVML does not tell (``facts``) is left out.

    Raises: RequestError where the device plugin can't offer what is configured; where only MIG
        strategy single does not fit, the labels say so.
    """
    if not inventory.gpus:
        return {}
    found = {
        **({} if timestamp is None else {"gfd.timestamp": str(timestamp)}),
        **_versions(inventory.driver_version, facts.cuda_version or inventory.cuda_version),
        "gpu.present": "true",
        "gpu.machine": machine,
        "gpu.mode": _mode(classes[gpu.pci_bus_id] for gpu in inventory.gpus),
        "gpu.sharing-strategy": "none" if settings.sharing is None else settings.sharing.method,
        "mig.capable": _text(_can_mig(inventory, facts)),
        "mps.capable": _text(_can_mps(settings, inventory)),
    }
    if settings.mig_strategy != "none":
        found["mig.strategy"] = settings.mig_strategy
    found = {PREFIX + name: text for name, text in found.items()}
    partitioned = {uuid for uuid, known in facts.gpus.items() if known.in_mig_mode}
    try:
        resources = build(settings, inventory, {}, frozenset(partitioned))
    except RequestError:
        if settings.mig_strategy != "single":
            raise
        found |= _gpu_labels(settings, inventory.gpus, (), facts)
        found |= _invalid(inventory)
    else:
        found |= _resource_labels(settings, inventory, resources, facts)
    return {name: label_value(found[name]) for name in sorted(found)}


def feature_file(found: Mapping[str, str]) -> str:
    """Return the text of Node Feature Discovery's file for labels."""
    return "".join(f"{name}={text}\n" for name, text in found.items())


def label_value(text: str) -> str:
    """Return what Kubernetes takes for the value of a label: ``NVIDIA-A100-SXM4-40GB``."""
    return _NO_VALUE.sub("-", text.replace("+", "."))[:MAX_VALUE].strip("-_.")


def _versions(driver: str, cuda: str) -> dict[str, str]:
    major, minor, revision = [*driver.split("."), "", ""][:3]
    found = {
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": driver,
        # What they were called before.
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
    }
    if cuda:
        major, _, minor = cuda.partition(".")
        found |= {
            "cuda.runtime-version.major": major,
            "cuda.runtime-version.minor": minor,
            "cuda.runtime-version.full": cuda,
            "cuda.runtime.major": major,
            "cuda.runtime.minor": minor,
        }
    return found


def _resource_labels(
    settings: Settings, inventory: Inventory, resources: Sequence[Resource], facts: Facts
) -> dict[str, str]:
    devices = [device for resource in resources for device in resource.devices]
    parts = [device for device in devices if isinstance(device, MigDevice)]
    found = _gpu_labels(settings, gpus_of(devices), resources, facts)
    if settings.mig_strategy == "single" and parts:
        found |= _part_labels(GPU, parts, resources, facts)
    elif settings.mig_strategy == "mixed":
        for profile in dict.fromkeys(part.profile for part in parts):
            alike = [part for part in parts if part.profile == profile]
            found |= _part_labels(mig_name(profile), alike, resources, facts)
    return found


def _gpu_labels(
    settings: Settings, gpus: Sequence[Gpu], resources: Sequence[Resource], facts: Facts
) -> dict[str, str]:
    """Return what GPUs are: of several models, the one that most have, or the first."""
    if not gpus:
        return {f"{GPU}.count": "0"}
    ((model, count),) = Counter(gpu.model for gpu in gpus).most_common(1)
    whole = {
        device.uuid
        for resource in resources
        for device in resource.devices
        if isinstance(device, Gpu)
    }
    alike = [gpu for gpu in gpus if gpu.model == model]
    # One that is not partitioned tells whether the model is shared.
    first = next((gpu for gpu in alike if gpu.uuid in whole), alike[0])
    replicas, suffix = _sharing(first.uuid, GPU, resources)
    known = facts.gpus.get(first.uuid, GpuFacts(0, 0, 0, False))
    compute = f"{known.major}.{known.minor}" if known.major else arch(model)
    found = {
        "product": model.replace(" ", "-") + suffix,
        "count": str(count),
        "replicas": str(replicas),
        **({"memory": str(known.memory)} if known.memory else {}),
    }
    if compute:
        major, _, minor = compute.partition(".")
        found |= {"compute.major": major, "compute.minor": minor}
        names = [name for beginning, name in _FAMILIES if compute.startswith(beginning)]
        found |= {"family": names[0] if names else "undefined"}
    return {f"{GPU}.{name}": text for name, text in found.items()}


def _part_labels(
    prefix: str, parts: Sequence[MigDevice], resources: Sequence[Resource], facts: Facts
) -> dict[str, str]:
    first = parts[0]
    replicas, suffix = _sharing(first.uuid, prefix, resources)
    found = {
        "product": f"{first.gpu.model.replace(' ', '-')}-MIG-{first.profile}{suffix}",
        "count": str(len(parts)),
        "replicas": str(replicas),
    }
    known = facts.mig_devices.get(first.uuid)
    if known is not None:
        found |= {name: str(number) for name, number in _attributes(known).items()}
    return {f"{prefix}.{name}": text for name, text in found.items()}


def _attributes(known: MigFacts) -> dict[str, int]:
    return {
        "memory": known.memory,
        "multiprocessors": known.multiprocessors,
        "slices.gi": known.gpu_slices,
        "slices.ci": known.compute_slices,
        "engines.copy": known.copy_engines,
        "engines.decoder": known.decoders,
        "engines.encoder": known.encoders,
        "engines.jpeg": known.jpeg_engines,
        "engines.ofa": known.ofa_engines,
    }


def _sharing(uuid: str, name: str, resources: Sequence[Resource]) -> tuple[int, str]:
    """Return how often a device is handed out, 0 for none, and what its product's name gets."""
    for resource in resources:
        if any(device.uuid == uuid for device in resource.devices):
            replicas = resource.replicas.get(uuid)
            if replicas is None:
                return 1, ""
            # A resource that is called something else says by that that it is shared.
            return replicas, "-SHARED" if resource.name == name else ""
    return 0, ""


def _invalid(inventory: Inventory) -> dict[str, str]:
    model = inventory.gpus[0].model.replace(" ", "-")
    found = {"product": f"{model}-MIG-INVALID", "count": "0", "replicas": "0", "memory": "0"}
    return {f"{GPU}.{name}": text for name, text in found.items()}


def _can_mig(inventory: Inventory, facts: Facts) -> bool:
    told = any(facts.gpus[gpu.uuid].can_mig for gpu in inventory.gpus if gpu.uuid in facts.gpus)
    return told or bool(inventory.mig_devices)


def _can_mps(settings: Settings, inventory: Inventory) -> bool:
    shared = settings.sharing is not None and settings.sharing.method == "mps"
    return shared and not inventory.mig_devices


def _mode(classes: Iterable[str]) -> str:
    found = {_MODES.get(each, "unknown") for each in classes}
    return found.pop() if len(found) == 1 else "unknown"


def _text(value: bool) -> str:
    return "true" if value else "false"
