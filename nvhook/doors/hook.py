"""The OCI hook: ``nvhook hook prestart|createRuntime``, the container's state on standard input.

Runs in the runtime's namespaces, after the container's are made and before its root is switched.
Only these two stages: later ones run with the image's environment on some runtimes
(CVE-2025-23266).
"""

from __future__ import annotations

import os
import sys

from nvhook.errors import ConfigError, FormatError, NvhookError, UnsupportedError, one_line
from nvhook.kernel.descriptors import content
from nvhook.log import Log
from nvhook.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from nvhook.config import Config
    from nvhook.core.edits import Plan
    from nvhook.core.request import Request
    from nvhook.create.pipeline import Outcome
    from nvhook.create.recording import Recording
    from nvhook.formats.oci import ContainerConfig

STAGES = ("prestart", "createRuntime")
USAGE = "usage: nvhook hook prestart|createRuntime [--config FILE] < state.json"
DELEGATED, CDI = "--delegated", "--cdi"
_REPORT = "please report it, with the output of NVHOOK_DEBUG=1 in the hook's env"


def main(arguments: list[str]) -> NoReturn:
    """Run the hook and end the process: 0 done or not a GPU container, 1 failed, 2 usage."""
    code = run(arguments[1:])
    # Not sys.exit: tearing the interpreter down costs milliseconds of the container's start.
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run the hook and return its exit status."""
    try:
        options = _Options(arguments)
    except ValueError as error:
        print(f"nvhook: {error} (hint: {USAGE})", file=sys.stderr)
        return 2
    log = Log()
    failure: Exception
    try:
        _run(options, ["hook", *arguments], log)
    except NvhookError as error:
        failure, line = error, str(error)
    except Exception as error:  # noqa: BLE001 - the door: a bug, too, has to be one line
        failure = error
        line = one_line(f"internal error: {type(error).__name__}: {error} (hint: {_REPORT})")
    else:
        return 0
    log.error(line)
    print(f"nvhook: {line}", file=sys.stderr)
    if os.environ.get("NVHOOK_DEBUG") == "1":
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
    return 1


class _Options:
    """The command line; NVIDIA's hook spells its options with one dash.

    ``cdi`` are the capabilities of the CDI spec that gave the container its devices, ``delegated``
    says that nvhook-runtime did: both leave to the hook what a spec can't say.
    """

    __slots__ = ("cdi", "config", "delegated")

    def __init__(self, arguments: list[str]) -> None:
        self.config: str | None = None
        self.cdi: str | None = None
        self.delegated = False
        stages = []
        rest = iter(arguments)
        for argument in rest:
            name, equals, value = argument.partition("=")
            if name in ("--config", "-config", CDI):
                value = value if equals else next(rest, "")
                if not value:
                    raise ValueError(f"{name} needs a value")
                if name == CDI:
                    self.cdi = value
                else:
                    self.config = value
            elif argument == DELEGATED:
                self.delegated = True
            elif argument in ("-debug", "--debug"):
                os.environ["NVHOOK_DEBUG"] = "1"
            elif argument.startswith("-"):
                raise ValueError(f"unknown option {argument}")
            else:
                stages.append(argument)
        if len(stages) != 1 or stages[0] not in STAGES:
            found = " ".join(stages) or "none"
            raise ValueError(f"one stage is needed, prestart or createRuntime; found {found}")


def _run(options: _Options, words: list[str], log: Log) -> None:
    from nvhook.create import pipeline
    from nvhook.create.recording import Recording
    from nvhook.formats.oci import MAX_STATE, parse_config, parse_state

    state = parse_state(_read_state(MAX_STATE))
    log.bind(container=state.id)
    config_json = pipeline.read_config(f"{state.bundle}/config.json")
    container = parse_config(config_json, state.bundle)
    recording = Recording()
    settings = _settings(options, container, log)
    if settings is None:
        return
    asks, request = _request(options, container, settings, recording, log)
    if asks:
        outcome, plan = _give(options, state.pid, container, request, settings, recording, log)
        done = {
            "gpus": ",".join(device.uuid for device in outcome.devices) or "none",
            "capabilities": ",".join(outcome.request.driver_capabilities),
            "source": outcome.request.source,
            "edits": len(plan.edits),
        }
        log.info("injected", **done)
        recording.line(log, "info", "injected", **done)
    if settings.recordings:
        recording.keep(words, config_json, log)


def _settings(options: _Options, container: ContainerConfig, log: Log) -> Config | None:
    """Read the configuration; None if it is wrong and the container can't be about a GPU."""
    from nvhook import config

    try:
        settings = config.load(options.config)
    except ConfigError as error:
        from nvhook.core.rare_requests import may_ask

        if options.cdi or may_ask(container):
            raise
        log.warning(str(error))
        return None
    log.configure(settings.log_path, settings.log_level)
    return settings


def _request(
    options: _Options,
    container: ContainerConfig,
    settings: Config,
    recording: Recording,
    log: Log,
) -> tuple[bool, Request | None]:
    """Return whether something is asked for, and what; None: what belongs to its CDI devices."""
    from nvhook.core.request import from_container

    if options.cdi is not None:
        return True, None
    warnings: list[str] = []
    request = from_container(container, settings, warnings)
    for warning in warnings:
        log.warning(warning)
        recording.line(log, "warning", warning)
    if request is None:
        return False, None
    if request.cdi_devices and not options.delegated:
        raise UnsupportedError(
            f"CDI device {request.cdi_devices[0]} can't be given by a hook",
            "use nvhook-runtime, or an engine that knows CDI",
        )
    if options.delegated:
        request = replace(request, requirements=())  # nvhook-runtime has checked them
    return True, request


def _give(
    options: _Options,
    pid: int,
    container: ContainerConfig,
    request: Request | None,
    settings: Config,
    recording: Recording,
    log: Log,
) -> tuple[Outcome, Plan]:
    """Give a container its GPUs; return what was planned, and what of it was the hook's."""
    from nvhook.core.planner import rest
    from nvhook.create import executor, pipeline
    from nvhook.create.target import Target

    target = Target(pid, container.root_path)
    if request is None:
        from nvhook.create.cdi_devices import plan_for_devices

        wanted = settings.cuda_forward_compatibility
        compat = pipeline.compat_of(target.rootfs) if wanted else None
        outcome = plan_for_devices(container.devices, options.cdi or "", settings, compat)
    else:
        layout = pipeline.layout_of(target.rootfs, settings.cuda_forward_compatibility)
        outcome = pipeline.plan_for(request, settings, layout)
    plan = outcome.plan
    if options.delegated or options.cdi:
        plan = rest(plan, container.devices)
    executor.apply(plan, target, pipeline.machine(), log, recording)
    executor.keep_over_reload(executor.rules_of(outcome.plan), target.process, log, recording)
    return outcome, plan


def _read_state(limit: int) -> bytes:
    """Return what is on standard input, at most a byte more than the parser's limit."""
    data = content(0, limit + 1)
    if not data.strip():
        raise FormatError(
            "state is empty: the runtime wrote nothing on standard input",
            "container runtimes call this hook",
        )
    return data
