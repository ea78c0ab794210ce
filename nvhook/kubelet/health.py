"""Which GPUs and MIG devices can be given to containers, and why not. Pure: time is an argument.

A GPU leaves after two failed probes in a row (they come once a second), or at an Xid that is not
ignored. It is back when it has answered every probe for the hold time: 10 s, and twice as long each
time it fails again soon after it came back. Where NVML as a whole does not answer, every device
keeps its state for 30 s, and for 60 s while NVML starts: one broken library call must not empty a
node.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nvhook.core.inventory import Device, MigDevice
from nvhook.errors import assert_never
from nvhook.kubelet.reports import (
    Driver,
    Failed,
    GpuFacts,
    Link,
    Probe,
    Ready,
    Report,
    Round,
    Started,
    Xid,
)
from nvhook.kubelet.resources import gpu_uuid

# All in seconds.
HOLD = 10.0
MAX_HOLD = 600.0
STABLE = 300.0  # good for so long after it came back, its next failure is the first one again
SILENCE = 30.0
FIRST_ANSWER = 60.0  # NVML initialises idle GPUs one after the other, seconds each
UNLISTED = 3.0

BAD_PROBES = 2
GOOD_PROBES = 5


@dataclass(slots=True)
class _State:
    """Of a GPU, or of one MIG instance: bad while there is a ``reason``."""

    reason: str = ""
    bad_probes: int = 0
    good_probes: int = 0
    last_bad: float = 0.0
    hold: float = 0.0
    recovered: float = float("-inf")

    def fail(self, reason: str, now: float) -> None:
        if not self.reason:
            soon = now - self.recovered < STABLE
            self.hold = min(MAX_HOLD, 2 * self.hold) if soon else HOLD
        self.reason = reason
        self.last_bad = now
        self.good_probes = 0

    def answered(self, now: float) -> None:
        self.bad_probes = 0
        self.good_probes += 1
        if self.reason and self.good_probes >= GOOD_PROBES and now - self.last_bad >= self.hold:
            self.reason = ""
            self.recovered = now

    def failed(self, reason: str, now: float) -> None:
        self.bad_probes += 1
        if self.reason or self.bad_probes >= BAD_PROBES:
            self.fail(reason, now)


# A GPU's UUID, and of a part of it the ids of GPU and compute instance (None: all of them).
_Key = tuple[str, int | None, int | None]


class Health:
    """The health of the devices that the machine should have.

    ``ignored_xids`` are the program's own errors; None: no Xid counts.
    """

    def __init__(self, ignored_xids: frozenset[int] | None, now: float) -> None:
        self._ignored = ignored_xids
        self._devices: tuple[Device, ...] = ()
        self._states: dict[_Key, _State] = {}
        self._seen: dict[str, float] = {}  # when each GPU was last probed, well or not
        self._silent_from = now + FIRST_ANSWER
        self._starts_until = now
        self._failure = "no answer yet"

    def expect(self, devices: Iterable[Device], now: float) -> None:
        """Take these GPUs and MIG devices for those that there should be; new ones are good."""
        self._devices = tuple(devices)
        gpus = {gpu_uuid(device) for device in self._devices}
        before = {uuid for uuid, gi, _ in self._states if gi is None}
        for uuid in sorted(gpus - before):
            self._states[uuid, None, None] = _State()
            self._seen[uuid] = now
        self._states = {key: state for key, state in self._states.items() if key[0] in gpus}
        self._seen = {uuid: last for uuid, last in self._seen.items() if uuid in gpus}

    def take(self, report: Report, now: float) -> None:
        """Note what the NVML child says. Of GPUs that are not expected it may say anything."""
        match report:
            case Probe():
                self._probe(report, now)
            case Xid():
                self._xid(report, now)
            case Round():
                self._round(now)
            case Started():
                # Not where devices are bad already: each new child would make them good.
                if not self._is_silent(now):
                    self._starts_until = now + FIRST_ANSWER
            case Failed():
                self._failure = report.reason
                self._starts_until = now
            case Driver() | GpuFacts() | Link() | Ready():
                pass
            case _:
                assert_never(report)

    def is_critical(self, xid: Xid) -> bool:
        """Tell whether an Xid takes a device away."""
        return self._ignored is not None and xid.number not in self._ignored

    def unhealthy(self, now: float) -> dict[str, str]:
        """Return why not, by the UUID of every GPU and MIG device that can't be given now.

        Ask once a second, too: silence is no report.
        """
        if self._is_silent(now):
            return {each.uuid: f"NVML does not answer: {self._failure}" for each in self._devices}
        reasons = {each.uuid: self._reason(each) for each in self._devices}
        return {uuid: reason for uuid, reason in reasons.items() if reason}

    def _reason(self, device: Device) -> str:
        uuid = gpu_uuid(device)
        keys: list[_Key] = [(uuid, None, None)]
        if isinstance(device, MigDevice):
            keys += [
                (uuid, device.gpu_instance, None),
                (uuid, device.gpu_instance, device.compute_instance),
            ]
        for key in keys:
            state = self._states.get(key)
            if state is not None and state.reason:
                return state.reason
        return ""

    def _probe(self, probe: Probe, now: float) -> None:
        gpu = self._states.get((probe.uuid, None, None))
        if gpu is None:
            return
        self._seen[probe.uuid] = now
        for key, state in self._states.items():
            if key[0] != probe.uuid:
                continue
            if not probe.reason:
                state.answered(now)
            elif state is gpu:
                state.failed(probe.reason, now)
            elif state.reason:
                state.fail(state.reason, now)

    def _xid(self, xid: Xid, now: float) -> None:
        if not self.is_critical(xid):
            return
        reason = f"Xid {xid.number}"
        gpus = {uuid for uuid, gi, _ in self._states if gi is None}
        if xid.uuid is None:
            for uuid in gpus:
                self._states[uuid, None, None].fail(
                    f"{reason} of a GPU that NVML did not name", now
                )
        elif xid.uuid in gpus:
            key = (xid.uuid, xid.gpu_instance, xid.compute_instance)
            self._states.setdefault(key, _State()).fail(reason, now)

    def _is_silent(self, now: float) -> bool:
        return now > max(self._silent_from, self._starts_until)

    def _round(self, now: float) -> None:
        silent = self._is_silent(now)
        for uuid, last in self._seen.items():
            gpu = self._states[uuid, None, None]
            if silent:
                gpu.fail(f"NVML did not answer: {self._failure}", now)
            elif now - last > UNLISTED:
                gpu.fail("NVML does not list it", now)
        self._silent_from = now + SILENCE
        self._starts_until = now
