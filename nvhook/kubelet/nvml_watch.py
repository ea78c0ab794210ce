"""Watch every GPU through NVML and print what happens: what a child process runs (see watch.py).

Never in the plugin's own process: NVML may hang in the driver, and after an update of the driver a
library that is loaded already is the wrong one. reports.py describes the lines.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

import prctl
import pynvml

from nvhook.host.nvml import started, text
from nvhook.kubelet import recovery
from nvhook.kubelet.reports import MIG, NONE

EVERY = 1.0  # seconds between rounds
PAUSE = 0.05  # after an event: a storm of Xids must not become one of lines
FRESH_LOOK = 300  # bad rounds of a GPU; after a reset some drivers want NVML to start anew
_WHOLE_GPU = 0xFFFFFFFF


# Errors of one GPU; any other that all GPUs give is NVML's own.
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})


class Gpu:
    """A GPU as NVML knows it.

    ``bad`` counts the rounds since it answered, ``mode`` is what was told of its MIG mode.
    """

    __slots__ = ("bad", "bus_id", "handle", "mode", "registered", "uuid")

    def __init__(self, index: int) -> None:
        """Look at the GPU with this index.

        Raises: pynvml.NVMLError.
        """
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = text(pynvml.nvmlDeviceGetUUID(self.handle))
        self.bus_id = text(pynvml.nvmlDeviceGetPciInfo(self.handle).busId)
        self.bad = 0
        self.registered = False
        self.mode: str | None = None


class Watcher:
    """One event set, and the GPUs by index."""

    def __init__(self, with_xids: bool) -> None:
        self._with_xids = with_xids
        self._gpus: dict[int, Gpu] = {}
        self._count = int(pynvml.nvmlDeviceGetCount())
        self._events: object | None = None

    def tell_machine(self) -> None:
        """Print what stays as it is."""
        tell("driver", text(pynvml.nvmlSystemGetDriverVersion()))
        self._look()
        self._tell_links()
        tell("ready")

    def run(self) -> None:
        """Print events as they come and the state of every GPU once a second.

        Returns when a GPU has not answered for so long that NVML is to start anew.
        """
        due = time.monotonic()
        while not any(gpu.bad >= FRESH_LOOK for gpu in self._gpus.values()):
            if self._with_xids:
                self._register()
            self._probe()
            # A round that took long moves the next ones: it isn't made up for.
            due = max(due + EVERY, time.monotonic())
            self._listen(due)

    def _look(self) -> list[pynvml.NVMLError]:
        """Take up GPUs that did not answer before; return the errors of those that still don't."""
        errors = []
        for index in range(self._count):
            if index in self._gpus:
                continue
            try:
                gpu = self._gpus[index] = Gpu(index)
            except pynvml.NVMLError as error:
                errors.append(error)
                continue  # one lost GPU does not hide the others
            _tell_gpu(gpu)
        return errors

    # ---- events

    def _register(self) -> None:
        """Take GPUs that answer into the event set, each once; the others' probes tell."""
        for gpu in self._gpus.values():
            if gpu.registered or gpu.bad:
                continue
            try:
                types = pynvml.nvmlDeviceGetSupportedEventTypes(gpu.handle)
                if types & pynvml.nvmlEventTypeXidCriticalError:
                    if self._events is None:
                        self._events = pynvml.nvmlEventSetCreate()
                    pynvml.nvmlDeviceRegisterEvents(
                        gpu.handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                    )
            except pynvml.NVMLError_NotSupported:
                pass  # a GPU without events
            except pynvml.NVMLError:
                continue
            gpu.registered = True

    def _drop_events(self) -> None:
        pynvml.nvmlEventSetFree(self._events)
        self._events = None
        for gpu in self._gpus.values():
            gpu.registered = False

    def _listen(self, until: float) -> None:
        """Print events until then."""
        known: set[tuple[object, ...]] = set()
        while (left := until - time.monotonic()) > 0:
            if self._events is None:
                time.sleep(left)
                continue
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, max(1, int(left * 1000)))
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError:
                # A lost GPU ends every wait at once: the next set is without it.
                self._drop_events()
                continue
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                words = (self._uuid(event.device), event.eventData, *_instances(event))
                if words not in known:
                    tell("xid", *words)
                known.add(words)
            time.sleep(PAUSE)

    def _uuid(self, handle: object) -> str:
        address = _address(handle)
        for gpu in self._gpus.values():
            if _address(gpu.handle) == address:
                return gpu.uuid
        try:
            return text(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError:
            return NONE

    # ---- probes

    def _probe(self) -> None:
        """Ask every GPU something that only it can answer, and NVML whether it is to be reset.

        Raises: pynvml.NVMLError where NVML as a whole does not answer.
        """
        errors = self._look()
        results: dict[str, object] = {}
        for gpu in self._gpus.values():
            try:
                pynvml.nvmlDeviceGetMemoryInfo(gpu.handle)
            except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
                pass  # it shares the machine's memory, or is partitioned: an answer all the same
            except pynvml.NVMLError as error:
                errors.append(error)
                results[gpu.uuid] = error
            gpu.bad = gpu.bad + 1 if gpu.uuid in results else 0
            if not gpu.bad and (reason := recovery.needed(gpu.handle)):
                results[gpu.uuid] = reason
            if not gpu.bad and _mode(gpu) != gpu.mode:
                _tell_gpu(gpu)
        if errors and self._is_whole(errors):
            raise errors[0]
        for gpu in self._gpus.values():
            tell("probe", gpu.uuid, results.get(gpu.uuid, "ok"))
        tell("round")

    def _is_whole(self, errors: list[pynvml.NVMLError]) -> bool:
        """Tell whether errors are NVML's own: every GPU gives one, and not because it is lost."""
        if len(errors) < self._count or any(error.value in _LOST for error in errors):
            return False
        if self._count > 1:
            return True
        try:
            pynvml.nvmlSystemGetDriverVersion()
        except pynvml.NVMLError:
            return True
        return False  # the only GPU fails, and the rest of NVML answers

    # ---- topology

    def _tell_links(self) -> None:
        gpus = [self._gpus[index] for index in sorted(self._gpus)]
        ends = {gpu.uuid: _link_ends(gpu, gpus) for gpu in gpus}
        for place, first in enumerate(gpus):
            for second in gpus[place + 1 :]:
                try:
                    ancestor = pynvml.nvmlDeviceGetTopologyCommonAncestor(
                        first.handle, second.handle
                    )
                except pynvml.NVMLError:
                    continue  # sysfs tells what it can
                direct = ends[first.uuid].count(second.uuid)
                # Through switches every GPU reaches every other with all its links.
                switched = min(ends[each.uuid].count(NONE) for each in (first, second))
                tell("link", first.uuid, second.uuid, ancestor, direct + switched)


def _tell_gpu(gpu: Gpu) -> None:
    gpu.mode = _mode(gpu)
    tell("gpu", gpu.uuid, gpu.bus_id, _memory(gpu), _compute(gpu), *filter(None, [gpu.mode]))


def _mode(gpu: Gpu) -> str:
    """Return MIG for a GPU in MIG mode, nothing for another one."""
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(gpu.handle)
    except pynvml.NVMLError:
        return gpu.mode or ""  # it can't, or does not answer
    return MIG if current == pynvml.NVML_DEVICE_MIG_ENABLE else ""


def _memory(gpu: Gpu) -> int:
    """Return a GPU's memory in MiB, 0 where it shares the machine's."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(gpu.handle).total) >> 20
    except pynvml.NVMLError:
        return 0


def _compute(gpu: Gpu) -> str:
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(gpu.handle)
    except pynvml.NVMLError:
        return "0.0"
    return f"{major}.{minor}"


def _link_ends(gpu: Gpu, gpus: list[Gpu]) -> list[str]:
    """Return the UUID at the other end of each active NVLink, or ``-`` for a switch's."""
    uuids = {each.bus_id: each.uuid for each in gpus}
    ends = []
    with contextlib.suppress(pynvml.NVMLError):  # no such link, and then none after it
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            if pynvml.nvmlDeviceGetNvLinkState(gpu.handle, link):
                remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu.handle, link)
                ends.append(uuids.get(text(remote.busId), NONE))
    return ends


def watch(library: str, xids: str) -> None:
    """Watch until the parent is gone or NVML no longer answers; ``xids`` is on or off."""
    prctl.set_pdeathsig(signal.SIGKILL)
    try:
        started(library)
        watcher = Watcher(xids == "on")
        watcher.tell_machine()
        watcher.run()
        tell("failed", "it starts anew for a GPU that has not answered for long")
    except pynvml.NVMLError as error:
        tell("failed", error)
    except BrokenPipeError:
        os._exit(0)  # nobody listens; closing standard output would only fail again
    except OSError as error:
        tell("failed", f"the library can't be loaded: {error}")


def tell(*words: object) -> None:
    """Print a line at once."""
    line = " ".join(str(word) for word in words)
    sys.stdout.write(" ".join(line.split()) + "\n")
    sys.stdout.flush()


def _address(handle: object) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]


def _instances(event: pynvml.c_nvmlEventData_t) -> tuple[object, object]:
    gi, ci = event.gpuInstanceId, event.computeInstanceId
    return (NONE if gi == _WHOLE_GPU else gi), (NONE if ci == _WHOLE_GPU else ci)
