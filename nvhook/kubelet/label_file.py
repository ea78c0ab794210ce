"""Keeps a node's labels in the file that Node Feature Discovery reads."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable

from nvhook.cdi import specs
from nvhook.config import Config
from nvhook.errors import HostError, NvhookError
from nvhook.host import nvml_facts
from nvhook.host.driver_texts import read_text
from nvhook.kubelet.node_labels import feature_file, labels
from nvhook.kubelet.scan import scan
from nvhook.kubelet.settings import LabelSettings, Settings

STANDARD_OUTPUT = "-"
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
Read = tuple[Settings, tuple[str, ...], LabelSettings]
Source = Callable[[], Read]
Say = Callable[[str], None]


def keep(source: Source, config: Config, out: Say, warn: Say) -> None:
    """Write the labels again and again, until SIGTERM or SIGINT; then the file goes.

    ``source`` is read each time; SIGHUP asks for one. What fails later than the first time, or
    where nothing has to work at once (fail_on_init_error), is told once, and the labels stay; of
    settings that are wrong later, the last good ones go on.

    Raises: NvhookError of the first time.
    """
    # Signals wait until nothing is half done.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        _keep(source, config, out, warn)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _keep(source: Source, config: Config, out: Say, warn: Say) -> None:
    told: set[str] = set()
    must_work = True
    read, problems = source(), set[str]()
    while True:
        settings, warnings, where = read
        problems.update(warnings)
        try:
            write(look(settings, where, config), where, out)
        except NvhookError as error:
            if where.oneshot or (must_work and settings.fail_on_init_error):
                raise
            problems.add(str(error))
        for problem in sorted(problems - told):
            warn(problem)
        told, must_work = problems, False
        if where.oneshot:
            return
        if _wait(where.interval) not in {None, signal.SIGHUP}:
            break
        read, problems = _again(source, read)
    if where.output_file != STANDARD_OUTPUT:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(where.output_file)


def _again(source: Source, before: Read) -> tuple[Read, set[str]]:
    """Return what is read now, or the same as before and what is wrong now."""
    try:
        return source(), set()
    except NvhookError as error:
        return before, {str(error)}


def _wait(seconds: float) -> int | None:
    """Return the signal that came, None if none did for so long."""
    if seconds == math.inf:
        return signal.sigwait(_SIGNALS)
    came = signal.sigtimedwait(_SIGNALS, seconds)
    return None if came is None else came.si_signo


def look(settings: Settings, where: LabelSettings, config: Config) -> dict[str, str]:
    """Return the labels of this node.

    Raises: HostError without a driver; RequestError, FormatError, UnsupportedError.
    """
    host = scan(settings, config)
    library = host.inventory.library("libnvidia-ml.so")
    facts = nvml_facts.ask(library.host_path) if library else nvml_facts.parse(())
    functions = f"{config.sys_root.rstrip('/')}/bus/pci/devices"
    classes = {
        gpu.pci_bus_id: _line(f"{functions}/{gpu.pci_bus_id}/class") for gpu in host.inventory.gpus
    }
    now = None if where.no_timestamp else int(time.time())
    machine = _line(where.machine_type_file) or "unknown"
    return labels(settings, host.inventory, facts, machine, classes, now)


def write(found: dict[str, str], where: LabelSettings, out: Say) -> None:
    """Write labels to where they belong; a file is replaced in one step.

    Raises: HostError where it can't be written.
    """
    text = feature_file(found)
    if where.output_file == STANDARD_OUTPUT:
        out(text.rstrip("\n"))
        return
    try:
        specs.write(where.output_file, text)
    except OSError as error:
        raise HostError(f"can't write {where.output_file}: {error.strerror}") from None


def _line(path: str) -> str:
    return (read_text(path, 4096) or "").strip()
