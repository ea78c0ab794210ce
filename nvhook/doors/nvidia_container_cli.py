"""nvidia-container-cli, as far as others call it: ``configure`` for ``ctr run --gpus``, list, info.

containerd's hook gives the process and the root as arguments, and nothing on standard input.
"""

from __future__ import annotations

import os
import sys

from nvhook.errors import NvhookError, RequestError, UnsupportedError, one_line
from nvhook.log import Log
from nvhook.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from nvhook.config import Config
    from nvhook.core.inventory import Inventory

USAGE = """usage: nvidia-container-cli [--debug FILE] [--root DIR] COMMAND

  configure --pid PID [--device LIST]... [--compute] [--utility] [--video] [--graphics] [--display]
            [--ngx] [--compat32] [--mig-config all] [--mig-monitor all] [--imex-channel LIST]
            [--require EXPRESSION]... [--no-cgroups] ROOTFS
                      give a container that is being created its GPUs
  list [--device LIST]... [--libraries] [--binaries] [--ipcs] [--firmwares]
                      print the driver's files; without an option all of them
  info                print the driver's version and the GPUs

nvhook under NVIDIA's name: see nvhook --help for what it can do itself."""

COMMANDS = ("configure", "list", "info")
_CAPABILITIES = ("compute", "utility", "video", "graphics", "display", "ngx", "compat32")
# Short forms of NVIDIA's; what they mean stands with the long ones.
_SHORT = {"-d": "--debug", "-k": "--load-kmods", "-n": "--no-pivot", "-u": "--user", "-r": "--root"}
_SHORT |= {"-l": "--ldcache", "-p": "--pid", "-V": "--version", "-h": "--help", "-?": "--help"}
# How nvhook works anyway, or what it has no need of.
_IGNORED_VALUES = ("--user", "--ldcache", "--ldconfig")
_IGNORED = ("--load-kmods", "--no-pivot", "--no-create-imex-channels")
_MIG_MANAGEMENT = {"--mig-config": "config", "--mig-monitor": "monitor"}
_REPEATED = ("--device", "--imex-channel", "--require")
_SINGLE = ("--debug", "--root", "--pid", "--cuda-compat-mode", *_MIG_MANAGEMENT)
_VALUES = (*_SINGLE, *_REPEATED, *_IGNORED_VALUES)
_LATER = ("--no-devbind",)
_LISTS = ("--libraries", "--binaries", "--ipcs", "--firmwares")


class Call:
    """A command line: the command, its options (the last value each) and its arguments.

    ``lists`` has every value of the options that may be repeated.
    """

    __slots__ = ("arguments", "command", "lists", "options")

    def __init__(self, words: list[str]) -> None:
        self.command = ""
        self.options: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {name: [] for name in _REPEATED}
        self.arguments: list[str] = []
        rest = iter(words)
        for word in rest:
            if not word.startswith("-"):
                if self.command:
                    self.arguments.append(word)
                else:
                    self.command = word
                continue
            name, equals, value = word.partition("=")
            name = _SHORT.get(name, name)
            if name in _VALUES and not equals:
                value = next(rest, "")
            if name in self.lists:
                self.lists[name].append(value)
            else:
                self.options[name] = value
        known = {
            *_VALUES,
            *_IGNORED,
            *_LATER,
            *_LISTS,
            "--no-cgroups",
            "--no-cntlibs",
            "--version",
            "--help",
        }
        known |= {f"--{capability}" for capability in _CAPABILITIES}
        for name in self.options:
            if name not in known:
                raise RequestError(f"unknown option {name}", "nvidia-container-cli --help")


def main(arguments: list[str]) -> NoReturn:
    """Run a command and end the process: 0 done, 1 failed, 2 usage.

    arguments: ``container_cli``, nvhook's configuration file or nothing, NVIDIA's command line.
    """
    log = Log()
    code = 0
    failure: Exception
    try:
        code = _run(arguments[1] or None, arguments[2:], log)
        sys.stdout.flush()
    except NvhookError as error:
        failure, line = error, str(error)
    except BrokenPipeError as error:
        failure, line = error, f"standard output can't be written: {error.strerror}"
    except Exception as error:  # noqa: BLE001 - the door: a bug, too, has to be one line
        failure = error
        line = one_line(f"internal error: {type(error).__name__}: {error}")
    else:
        os._exit(code)
    log.error(line)
    print(f"nvidia-container-cli: {line}", file=sys.stderr, flush=True)
    if os.environ.get("NVHOOK_DEBUG") == "1":
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
    os._exit(1)


def _run(config_path: str | None, words: list[str], log: Log) -> int:
    from nvhook import config as configuration
    from nvhook.create import pipeline

    call = Call(words)
    if "--help" in call.options or "--version" in call.options:
        from nvhook import __version__

        print(USAGE if "--help" in call.options else f"nvidia-container-cli: nvhook {__version__}")
        return 0
    if call.command not in COMMANDS:
        print(USAGE, file=sys.stderr, flush=True)
        return 2
    settings = configuration.load(config_path)
    changes: dict[str, object] = {"log_path": call.options.get("--debug", settings.log_path)}
    if "--root" in call.options:
        changes["driver_root"] = call.options["--root"].rstrip("/") or "/"
    if "--no-cgroups" in call.options:
        changes["device_rules"] = False
    if "--no-cntlibs" in call.options or call.options.get("--cuda-compat-mode") == "disabled":
        changes["cuda_forward_compatibility"] = False
    settings = replace(settings, **changes)
    log.configure(settings.log_path, settings.log_level)
    if call.command == "configure":
        _configure(call, settings, log)
    elif call.command == "list":
        _list(call, pipeline.inventory(settings))
    else:
        _info(pipeline.inventory(settings))
    return 0


def _configure(call: Call, settings: Config, log: Log) -> None:
    from nvhook.core.request import Request, parse_capabilities, parse_devices
    from nvhook.create import executor, pipeline
    from nvhook.create.target import Target

    for name in _LATER:
        if name in call.options:
            raise UnsupportedError(f"{name} is not supported yet", "leave it out")
    pid = call.options.get("--pid", "")
    if not (pid.isascii() and pid.isdigit()):
        raise RequestError("--pid must name the container's process", "nvidia-container-cli --help")
    if len(call.arguments) != 1 or not call.arguments[0].startswith("/"):
        raise RequestError("one absolute ROOTFS is needed", "nvidia-container-cli --help")
    wanted = [name for name in _CAPABILITIES if f"--{name}" in call.options]
    capabilities = parse_capabilities(",".join(wanted), settings.supported_driver_capabilities)
    devices = parse_devices(",".join(call.lists["--device"]), "--device") or ()
    channels = parse_devices(",".join(call.lists["--imex-channel"]), "--imex-channel") or ()
    manages_mig = []
    for option, capability in _MIG_MANAGEMENT.items():
        if option in call.options:
            if call.options[option] != "all":
                raise RequestError(f"{option} can only be all", "nvidia-container-cli --help")
            manages_mig.append(capability)
    log.bind(pid=pid)
    target = Target(int(pid), call.arguments[0])
    request = Request(
        devices,
        capabilities if wanted else (),
        "--device",
        manages_mig=tuple(manages_mig),
        requirements=tuple([("--require", text) for text in call.lists["--require"]]),
        imex_channels=channels,
    )
    layout = pipeline.layout_of(target.rootfs, settings.cuda_forward_compatibility)
    outcome = pipeline.plan_for(request, settings, layout)
    executor.apply(outcome.plan, target, pipeline.machine(), log)
    executor.keep_over_reload(executor.rules_of(outcome.plan), target.process, log)
    log.info(
        "injected",
        gpus=",".join(device.uuid for device in outcome.devices) or "none",
        capabilities=",".join(request.driver_capabilities),
        source="nvidia-container-cli",
    )


def _list(call: Call, inventory: Inventory) -> None:
    asked_devices = call.lists["--device"]
    everything = not asked_devices and not any(name in call.options for name in _LISTS)
    if everything or asked_devices:
        _list_nodes(",".join(asked_devices) or "all", inventory)
    groups = {"--binaries": "binary", "--ipcs": "socket", "--firmwares": "firmware"}
    for option, group in groups.items():
        if everything or option in call.options:
            for file in inventory.files:
                if file.group == group:
                    print(file.path)
    if everything or "--libraries" in call.options:
        for library in inventory.libraries:
            if library.bits == 64 or "--compat32" in call.options:
                print(library.path)


def _list_nodes(devices: str, inventory: Inventory) -> None:
    from nvhook.core.catalog import CONTROL_NODES
    from nvhook.core.mig_plans import node_names
    from nvhook.core.request import parse_devices
    from nvhook.core.selection import select

    selected = select(parse_devices(devices, "--device") or (), inventory)
    names = {*CONTROL_NODES}
    for device in selected:
        names.update(node_names(device))
    if inventory.platform and selected:  # all nodes are for all GPUs
        names = {node.name for node in inventory.nodes}
    for node in inventory.nodes:
        if node.name in names:
            print(f"/dev/{node.name}")


def _info(inventory: Inventory) -> None:
    print(f"NVRM version:   {inventory.driver_version}")
    print(f"CUDA version:   {inventory.cuda_version}")
    for gpu in inventory.gpus:
        print(f"\nDevice Index:   {gpu.index}")
        print(f"Device Minor:   {gpu.minor}")
        print(f"Model:          {gpu.model}")
        print(f"GPU UUID:       {gpu.uuid}")
        print(f"Bus Location:   {gpu.pci_bus_id}")
