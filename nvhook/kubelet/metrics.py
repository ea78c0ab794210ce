"""What Prometheus is told."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

from nvhook import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 10)
_SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The plugin's metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("nvhook", "The running version.", registry=registry).info({"version": __version__})
        self._devices = Gauge(
            "nvhook_devices",
            "Devices, replicas counted one by one, as the kubelet is told of them.",
            ("resource", "health"),
            registry=registry,
        )
        self._reasons = Gauge(
            "nvhook_unhealthy",
            "1 for each GPU or MIG device that is unhealthy.",
            ("uuid", "reason"),
            registry=registry,
        )
        self._streams = Gauge(
            "nvhook_kubelet_streams",
            "Kubelets that listen to a resource: 1 where all is well.",
            ("resource",),
            registry=registry,
        )
        self._requests = Histogram(
            "nvhook_request_seconds",
            "How long the kubelet's requests took.",
            ("resource", "method", "outcome"),
            buckets=_FAST,
            registry=registry,
        )
        self._registrations = Histogram(
            "nvhook_registration_seconds",
            "How long registrations with the kubelet took.",
            ("resource", "outcome"),
            buckets=_FAST,
            registry=registry,
        )
        self._scans = Histogram(
            "nvhook_scan_seconds",
            "How long it took to read what the host has.",
            ("outcome",),
            buckets=_SLOW,
            registry=registry,
        )
        self._xids = Counter("nvhook_xids", "Xid errors seen.", ("uuid", "xid"), registry=registry)
        self._reloads = Counter(
            "nvhook_reloads", "Times the settings were read.", ("outcome",), registry=registry
        )

    def text(self) -> bytes:
        """Return what a scrape gets."""
        return generate_latest(self._registry)

    def devices(self, resource: str, healthy: int, unhealthy: int) -> None:
        """Set how many devices a resource has."""
        self._devices.labels(resource, "healthy").set(healthy)
        self._devices.labels(resource, "unhealthy").set(unhealthy)

    def streams(self, resource: str, count: int) -> None:
        """Set how many kubelets listen to a resource."""
        self._streams.labels(resource).set(count)

    def forget(self, resource: str) -> None:
        """Drop the gauges of a resource that is no more."""
        for health in ("healthy", "unhealthy"):
            self._devices.remove(resource, health)
        self._streams.remove(resource)

    def unhealthy(self, reasons: Mapping[str, str]) -> None:
        """Set which devices are unhealthy, and why."""
        self._reasons.clear()
        for uuid, reason in reasons.items():
            self._reasons.labels(uuid, reason).set(1)

    def xid(self, uuid: str, xid: int) -> None:
        """Count an Xid error."""
        self._xids.labels(uuid, str(xid)).inc()

    def reload(self, outcome: str) -> None:
        """Count a reading of the settings."""
        self._reloads.labels(outcome).inc()

    @contextmanager
    def request(self, resource: str, method: str) -> Iterator[None]:
        """Measure a request of the kubelet's."""
        with _measured(self._requests, resource, method):
            yield

    @contextmanager
    def registration(self, resource: str) -> Iterator[None]:
        """Measure a registration."""
        with _measured(self._registrations, resource):
            yield

    @contextmanager
    def scan(self) -> Iterator[None]:
        """Measure a reading of the host."""
        with _measured(self._scans):
            yield


@contextmanager
def _measured(histogram: Histogram, *labels: str) -> Iterator[None]:
    started = time.perf_counter()
    outcome = "error"
    try:
        yield
        outcome = "ok"
    finally:
        histogram.labels(*labels, outcome).observe(time.perf_counter() - started)
