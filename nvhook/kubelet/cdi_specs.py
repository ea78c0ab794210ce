"""CDI specs for the CDI strategies: one for each class of devices that answers may name.

/var/run/cdi is gone after a boot, and a driver may change under a spec, so ensure is called again
and again: it writes where something is not as it should be. Source: kubernetes reference, 2.3.
"""

import os
from collections.abc import Iterable

from nvhook.cdi import specs
from nvhook.config import Config
from nvhook.core.features import GDRCOPY, GDS, IMEX, MOFED
from nvhook.errors import NvhookError
from nvhook.formats.cdi_spec import (
    CdiDevice,
    CdiDeviceNode,
    CdiMount,
    ContainerEdits,
    Spec,
    minimum_version,
)
from nvhook.formats.cdi_writer import dump_json
from nvhook.kubelet.answers import CDI_VENDOR, HostFacts, features, imex_channels
from nvhook.kubelet.resources import Resource
from nvhook.kubelet.scan import own_dev_root
from nvhook.kubelet.settings import Settings
from nvhook.record import replace

DIRECTORY = "/var/run/cdi"
_ENDING = ".json"
# The one device of these is called all; of GPUs, all would be every GPU of the machine.
_WITH_ALL = frozenset({feature.name for feature in (GDRCOPY, GDS, MOFED)})


def ensure(
    settings: Settings,
    config: Config,
    facts: HostFacts,
    resources: Iterable[Resource],
    directory: str = DIRECTORY,
) -> tuple[str, ...]:
    """Write the specs that are missing or not as they should be; return what is wrong.

    The devices of ``resources`` are in them, and no others. A spec that can't be made is left as
    it was. Nothing is written where no CDI strategy is in use.

    Raises: OSError where the directory can't be written, HostError for a required IMEX channel.
    """
    if not {"cdi-annotations", "cdi-cri"}.intersection(settings.list_strategies):
        return ()
    problems = []
    here = seen_from_here(settings, config)
    devices = [device.uuid for resource in resources for device in resource.devices]
    wanted = _wanted(settings, facts, devices)
    for each in wanted:
        path = f"{directory}/{_file_name(each)}"
        try:
            spec = specs.generate(each, here)
            specs.verify(without_hooks(spec) if settings.cdi_hook_path else spec)
        except NvhookError as error:
            problems.append(f"{path}: {error}")
            continue
        specs.write(path, dump_json(as_on_host(spec, settings, config, facts)))
    _remove_others(directory, {_file_name(each) for each in wanted}, keep_gpus=not devices)
    return tuple(problems)


def seen_from_here(settings: Settings, config: Config) -> Config:
    """Return the configuration with the driver where the plugin sees it."""
    root = settings.driver_root_here or config.driver_root
    return replace(config, driver_root=root, dev_root=own_dev_root(settings, config))


def as_on_host(spec: Spec, settings: Settings, config: Config, facts: HostFacts) -> Spec:
    """Return a spec of what is seen here with the paths that the host has for it."""
    here = seen_from_here(settings, config)
    roots = [(here.dev_root, facts.dev_root)]
    if settings.driver_root_here:
        roots.append((here.driver_root, settings.driver_root))
    devices = [CdiDevice(each.name, _edits(each.edits, roots)) for each in spec.devices]
    spec = replace(spec, devices=tuple(devices), edits=_edits(spec.edits, roots))
    return replace(spec, version=minimum_version(spec))


def without_hooks(spec: Spec) -> Spec:
    """Return a spec without its hooks: those of a host can't be looked at from a container."""
    return replace(spec, edits=replace(spec.edits, hooks=()))


def _wanted(settings: Settings, facts: HostFacts, devices: list[str]) -> list[specs.Wanted]:
    modes = [(specs.GPU, ",".join(devices))] if devices else []
    channels = imex_channels(settings, facts)
    modes += [(IMEX.name, ",".join(map(str, channels)))] if channels else []
    modes += [(feature.name, "all") for feature in features(settings)]
    return [
        specs.Wanted(
            settings.cdi_hook_path or specs.launcher(),
            mode,
            names,
            strategies=("uuid", "index"),
            all_device=mode in _WITH_ALL,
            vendor=CDI_VENDOR,
            config_path=settings.hook_config or None,
        )
        for mode, names in modes
    ]


def _file_name(wanted: specs.Wanted) -> str:
    return wanted.kind.replace("/", "-") + _ENDING


def _remove_others(directory: str, wanted: set[str], keep_gpus: bool) -> None:
    """Remove specs of classes that are not offered any more.

    That of GPUs stays while there is none: containers that had one may start again.
    """
    wanted = wanted | ({f"{CDI_VENDOR}-{specs.GPU}{_ENDING}"} if keep_gpus else set())
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        if name.startswith(f"{CDI_VENDOR}-") and name.endswith(_ENDING) and name not in wanted:
            os.unlink(f"{directory}/{name}")


def _edits(edits: ContainerEdits, roots: list[tuple[str, str]]) -> ContainerEdits:
    return replace(
        edits,
        device_nodes=tuple(_node(node, roots) for node in edits.device_nodes),
        mounts=tuple(
            CdiMount(_moved(each.host_path, roots), each.container_path, each.options, each.type)
            for each in edits.mounts
        ),
    )


def _node(node: CdiDeviceNode, roots: list[tuple[str, str]]) -> CdiDeviceNode:
    path = _moved(node.host_path or node.path, roots)
    return replace(node, host_path="" if path == node.path else path)


def _moved(path: str, roots: list[tuple[str, str]]) -> str:
    """Return a path with the first root that it is below replaced."""
    for here, there in roots:
        prefix = here.rstrip("/") + "/"
        if path.startswith(prefix):
            return f"{there.rstrip('/')}/{path.removeprefix(prefix)}"
    return path
