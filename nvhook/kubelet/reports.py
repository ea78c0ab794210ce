"""What the NVML child tells, one line each: the lines, and what they mean. Pure.

That a child has been started is no line of its own.

====================================  =============================================================
``driver VERSION``                    NVML has started
``gpu UUID BUS-ID MIB MAJOR.MINOR``   a GPU: its memory in MiB (0: unknown), its compute capability,
                                      then ``mig`` if it is in MIG mode; again when that changes
``link UUID UUID ANCESTOR NVLINKS``   two GPUs: NVML's level of their common ancestor (10: one PCIe
                                      switch ... 50: nothing but the machine), NVLinks between them
``ready``                             all of that is told
``xid UUID NUMBER GI CI``             an Xid; UUID is ``-`` where NVML names no GPU, GI and CI where
                                      it is not one of a MIG instance
``probe UUID ok`` / ``... REASON``    a GPU answered or did not
``round``                             every GPU was asked
``failed REASON``                     NVML as a whole does not answer; the last line
====================================  =============================================================
"""

from dataclasses import dataclass

from nvhook.errors import FormatError
from nvhook.formats.gpu_information import normalize_bus_id

NONE = "-"
MIG = "mig"


@dataclass(frozen=True, slots=True)
class Started:
    """A child has been started; NVML may take long to."""


@dataclass(frozen=True, slots=True)
class Driver:
    """NVML has started; ``version`` is the driver's."""

    version: str


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What only NVML knows of a GPU; ``memory`` in MiB, 0 where it shares the machine's.

    ``compute`` is the compute capability, (0, 0) where unknown; ``in_mig_mode``: its MIG devices
    can be used, if it has any, but not the GPU as a whole.
    """

    uuid: str
    pci_bus_id: str
    memory: int
    compute: tuple[int, int]
    in_mig_mode: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """How two GPUs are linked: NVML's level of their common ancestor, and NVLinks between them."""

    first: str
    second: str
    ancestor: int
    nvlinks: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Every GPU and link has been told."""


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported; without a UUID it may be any GPU's.

    ``gpu_instance`` and ``compute_instance`` are ids of MIG instances, None for a whole GPU.
    """

    uuid: str | None
    number: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a GPU answers; ``reason`` is empty where it does."""

    uuid: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """Every GPU has been asked: the child's heartbeat."""


@dataclass(frozen=True, slots=True)
class Failed:
    """NVML as a whole does not answer."""

    reason: str


Report = Started | Driver | GpuFacts | Link | Ready | Xid | Probe | Round | Failed


def parse(line: str) -> Report | None:
    """Return what a line tells, None where it is not one of ours: a driver may print, too."""
    kind, _, rest = line.strip().partition(" ")
    words = rest.split()
    try:
        return _parse(kind, words, rest)
    except (ValueError, IndexError, FormatError):
        return None


def _parse(kind: str, words: list[str], rest: str) -> Report | None:
    match kind:
        case "round":
            return Round()
        case "probe":
            reason = " ".join(words[1:])
            return Probe(words[0], "" if reason == "ok" else reason or "unknown error")
        case "xid":
            uuid = None if words[0] == NONE else words[0]
            return Xid(uuid, int(words[1]), _instance(words[2]), _instance(words[3]))
        case "gpu":
            major, minor = words[3].split(".")
            compute = int(major), int(minor)
            mig = words[4:] == [MIG]
            return GpuFacts(words[0], normalize_bus_id(words[1]), int(words[2]), compute, mig)
        case "link":
            return Link(words[0], words[1], int(words[2]), int(words[3]))
        case "driver":
            return Driver(words[0])
        case "ready":
            return Ready()
        case "failed":
            return Failed(rest or "unknown error")
        case _:
            return None


def _instance(word: str) -> int | None:
    return None if word == NONE else int(word)
