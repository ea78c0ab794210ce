"""The machine as NVML sees it: which devices are bad, and why, and how GPUs are linked."""

import time
from collections.abc import Callable, Iterable

from nvhook.core.inventory import Device, Gpu, Inventory
from nvhook.kubelet.health import Health
from nvhook.kubelet.json_log import LOG, fields
from nvhook.kubelet.metrics import Metrics
from nvhook.kubelet.preferred import Links
from nvhook.kubelet.reports import Driver, Failed, GpuFacts, Ready, Report, Xid
from nvhook.kubelet.settings import Settings
from nvhook.kubelet.topology import Topology
from nvhook.kubelet.watch import Watch


class Monitor:
    """Watches the devices that are served; ``changed`` is called when NVML has said something.

    ``gpus`` has what NVML knows of a GPU, by UUID, as soon as it has told; ``in_mig_mode`` are the
    UUIDs of those in MIG mode, as it said last.
    """

    def __init__(self, settings: Settings, metrics: Metrics, changed: Callable[[], None]) -> None:
        self.gpus: dict[str, GpuFacts] = {}
        self.in_mig_mode: frozenset[str] = frozenset()
        self._metrics = metrics
        self._changed = changed
        self._health = Health(settings.ignored_xids, time.monotonic())
        self._watch = Watch(self._take, with_xids=settings.ignored_xids is not None)
        self._watched = False
        self._topology = Topology("", ())
        self._machine: tuple[Gpu, ...] = ()
        self._failure = ""

    @property
    def links(self) -> Links:
        """How well GPUs are linked, as far as is known."""
        return self._topology.links

    async def run(self) -> None:
        """Watch, for ever."""
        await self._watch.run()

    def expect(self, inventory: Inventory | None, devices: Iterable[Device], sys_root: str) -> None:
        """Watch these devices of this host; None: the driver is gone, let go of it.

        Where the driver's NVML can't be seen, nothing is watched: every device counts as good.
        """
        watched = inventory is not None and inventory.library("libnvidia-ml.so") is not None
        if inventory is not None and not watched and self._machine != inventory.gpus:
            LOG.warning("health is not watched: the driver root has no libnvidia-ml.so")
        self._watched = watched
        self._watch.use(inventory if watched else None)
        if inventory is None:
            return
        self._health.expect(devices, time.monotonic())
        if inventory.gpus != self._machine:
            self._machine = inventory.gpus
            self._topology = Topology(sys_root, inventory.gpus)

    def unhealthy(self) -> dict[str, str]:
        """Return why not, by the UUID of each device that can't be given now."""
        return self._health.unhealthy(time.monotonic()) if self._watched else {}

    def _take(self, report: Report) -> None:
        self._health.take(report, time.monotonic())
        self._topology.take(report)
        match report:
            case Driver():
                self.gpus = {}
            case GpuFacts():
                self.gpus[report.uuid] = report
                others = self.in_mig_mode - {report.uuid}
                self.in_mig_mode = others | {report.uuid} if report.in_mig_mode else others
            case Ready():
                self._failure = ""
                LOG.info("NVML watches the GPUs", extra=fields(gpus=len(self.gpus)))
            case Xid():
                self._metrics.xid(report.uuid or "", report.number)
                critical = self._health.is_critical(report)
                LOG.log(
                    30 if critical else 20,
                    "a GPU reports an error",
                    extra=fields(uuid=report.uuid, xid=report.number, critical=critical),
                )
            case Failed():
                if report.reason != self._failure:
                    LOG.error("NVML does not answer", extra=fields(reason=report.reason))
                self._failure = report.reason
            case _:
                pass  # probes and rounds: health is told, and that is all
        self._changed()
