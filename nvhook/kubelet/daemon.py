"""The device plugin's life: reads settings and host, serves what they make, watches both."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from nvhook.config import Config
from nvhook.core.inventory import Device
from nvhook.errors import ConfigError, HostError, NvhookError, RequestError
from nvhook.kubelet import answers, cdi_specs, json_log, preferred, resources, uevents
from nvhook.kubelet.http_status import HttpStatus
from nvhook.kubelet.json_log import LOG, fields
from nvhook.kubelet.metrics import Metrics
from nvhook.kubelet.monitor import Monitor
from nvhook.kubelet.mps_daemons import MpsDaemons
from nvhook.kubelet.resources import Resource
from nvhook.kubelet.scan import Host, fingerprint, scan
from nvhook.kubelet.server import Answers
from nvhook.kubelet.serving import Serving
from nvhook.kubelet.settings import Settings
from nvhook.kubelet.waiting import wait_until, work_until
from nvhook.kubelet.wire import Preference

SettingsSource = Callable[[], tuple[Settings, tuple[str, ...]]]

# In seconds.
TICK = 1.0
RESCAN = 30.0
STUCK = 300.0
LASTING = 60.0  # that sockets can't be made: then only a new container may see the directory

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
# Problems that a new version or new settings may have brought, beside those of the kubelet.
_UNREADY = ("cdi", "fit", "serving")
# Settings that only a new process takes.
_FIXED = ("kubelet_socket", "metrics_address")


def run(settings_source: SettingsSource, config: Config) -> None:
    """Be the device plugin until SIGTERM, SIGINT or SIGQUIT.

    Raises: ConfigError; where settings.fail_on_init_error HostError, RequestError and others.
    """
    json_log.configure(config.log_level, sys.stderr)
    asyncio.run(Daemon(settings_source, config).run())


class Daemon:
    """The device plugin.

    ``settings_source`` reads the settings and returns them with warnings; it is called again at
    every scan of the host, because a ConfigMap changes below a running plugin.
    """

    def __init__(self, settings_source: SettingsSource, config: Config) -> None:
        self._source = settings_source
        self._config = config
        self._settings, warnings = settings_source()
        for warning in warnings:
            LOG.warning(warning)
        self._host: Host | None = None
        self._resources: tuple[Resource, ...] = ()
        self._metrics = Metrics()
        self._scan_wanted = asyncio.Event()
        self._serving = Serving(
            self._settings.kubelet_socket,
            Answers(self._allocate, self._prefer),
            self._metrics,
            self._scan_wanted.set,
        )
        self._monitor = Monitor(self._settings, self._metrics, self._mark)
        self._mps = MpsDaemons(self._mark)
        self._unhealthy: dict[str, str] = {}
        self._scanned = time.monotonic()
        self._problems: dict[str, str] = {}
        self._noted: dict[str, float] = {}
        self._findings: tuple[str, ...] = ()
        self._in_mig_mode: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Serve until a signal says stop; SIGHUP reads settings and host again.

        Raises: what the first scan raises, where settings.fail_on_init_error; HostError where
            the kubelet's directory can't be used or the metrics can't be served.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._scan_wanted.set)
        loop.set_default_executor(ThreadPoolExecutor(1, "host"))
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._mps.stop)
            stack.push_async_callback(self._serving.stop)
            await self._first_scan()
            if self._settings.metrics_address:
                pages = {"/healthz": self._healthz, "/readyz": self._readyz}
                status = HttpStatus(self._metrics.text, pages)
                await status.start(self._settings.metrics_address)
                stack.push_async_callback(status.stop)
                LOG.info("serving metrics", extra=fields(port=status.port))
            await work_until(stop, [self._rescan(), self._monitor.run(), self._hear()])
            LOG.info("stopping")
        # gRPC's tasks end a moment after its server, and complain when they are cancelled.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=1)

    # ---- what the host has

    async def _first_scan(self) -> None:
        try:
            await self._scan()
        except NvhookError as error:
            if self._settings.fail_on_init_error:
                raise
            self._note_scan(error)
        if "serving" in self._problems:
            raise HostError(self._problems["serving"])

    async def _rescan(self) -> None:
        """Scan again when something may have changed, and from time to time."""
        seen = await asyncio.to_thread(fingerprint, self._config)
        while True:
            if not await wait_until(self._scan_wanted, TICK):
                self._mark()  # silence is no report
                now = await asyncio.to_thread(fingerprint, self._config)
                same = now == seen and self._monitor.in_mig_mode == self._in_mig_mode
                if same and time.monotonic() - self._scanned < RESCAN:
                    continue
                seen = now
            self._scan_wanted.clear()
            self._reload()
            try:
                await self._scan()
            except NvhookError as error:
                self._note_scan(error)
            self._mark()

    async def _hear(self) -> None:
        """Scan at once when the kernel tells of a GPU or the driver."""

        def changed(what: str) -> None:
            LOG.info("the kernel tells of a change", extra=fields(what=what))
            self._scan_wanted.set()

        try:
            await uevents.listen(changed)
        except OSError as error:
            LOG.warning("no kernel events: looking only", extra=fields(reason=str(error)))
            await asyncio.Event().wait()

    def _reload(self) -> None:
        try:
            settings, warnings = self._source()
        except ConfigError as error:
            self._metrics.reload("error")
            self._note("settings", error)  # the old ones stay
            return
        self._note("settings", None)
        if settings == self._settings:
            return
        self._metrics.reload("ok")
        for warning in warnings:
            LOG.warning(warning)
        for name in _FIXED:
            if getattr(settings, name) != getattr(self._settings, name):
                LOG.warning("a changed setting is taken at the next start", extra=fields(name=name))
        LOG.info("new settings")
        self._settings = settings

    async def _scan(self) -> None:
        """Read the host, and serve what it has.

        Raises: HostError, FormatError, UnsupportedError: then what was served stays, and is bad;
            RequestError where settings and host do not fit: then nothing is served.
        """
        settings = self._settings
        with self._metrics.scan():
            self._scanned = time.monotonic()
            try:
                host = await asyncio.to_thread(scan, settings, self._config)
            except NvhookError:
                self._monitor.expect(None, (), self._config.sys_root)
                raise
            try:
                self._in_mig_mode = self._monitor.in_mig_mode
                built = resources.build(settings, host.inventory, host.numa, self._in_mig_mode)
            except NvhookError:
                self._resources = ()
                await self._serve()
                raise
            # Specs and health first: the kubelet may use a device as soon as it knows it.
            self._note("cdi", await asyncio.to_thread(self._write_specs, host, built))
            self._host, self._resources = host, built
            self._monitor.expect(host.inventory, self._devices(), self._config.sys_root)
            self._note_scan(None)
            self._mark()
            await self._serve()
        found = resources.findings(settings, host.inventory, self._in_mig_mode)
        for finding in found:
            if finding not in self._findings:
                LOG.warning(finding)
        self._findings = found

    async def _serve(self) -> None:
        try:
            await self._serving.apply(self._resources)
        except (OSError, HostError) as error:
            self._note("serving", error)
        else:
            self._note("serving", None)

    def _write_specs(self, host: Host, built: tuple[Resource, ...]) -> Exception | None:
        """Write CDI specs where they are in use; return what is wrong with them."""
        directory = self._config.cdi_spec_directories[-1]
        try:
            problems = cdi_specs.ensure(self._settings, self._config, host.facts, built, directory)
        except (OSError, HostError) as error:
            return error
        return HostError("; ".join(problems)) if problems else None

    def _devices(self) -> tuple[Device, ...]:
        return tuple(each for resource in self._resources for each in resource.devices)

    # ---- health

    def _mark(self) -> None:
        """Tell the kubelet which devices are bad."""
        reasons = {**self._apply_mps(), **self._monitor.unhealthy()}
        # Without its CDI spec a device's name can't be resolved.
        why = self._problems.get("host") or self._problems.get("cdi")
        if why:
            reasons = {each.uuid: why for each in self._devices()}
        if reasons == self._unhealthy:
            return
        for uuid in reasons.keys() | self._unhealthy.keys():
            reason = reasons.get(uuid, "")
            if reason and uuid not in self._unhealthy:
                LOG.warning("unhealthy", extra=fields(uuid=uuid, reason=reason))
            elif not reason:
                LOG.info("healthy again", extra=fields(uuid=uuid))
        self._unhealthy = reasons
        self._metrics.unhealthy(reasons)
        self._serving.mark(reasons)

    def _apply_mps(self) -> dict[str, str]:
        """Start and stop MPS daemons as is needed; return which devices they can't serve."""
        if self._host is not None:
            self._mps.apply(
                self._settings.mps_root,
                self._resources,
                self._host.inventory,
                self._monitor.gpus,
            )
        return self._mps.reasons()

    def _note_scan(self, error: NvhookError | None) -> None:
        """Remember what is wrong with the host, or with the settings for it."""
        misfit = isinstance(error, RequestError)
        self._note("fit", error if misfit else None)
        self._note("host", None if misfit else error)

    def _note(self, what: str, error: Exception | None) -> None:
        """Remember and log what is wrong, once."""
        if error is None:
            self._noted.pop(what, None)
            if self._problems.pop(what, None) is not None:
                LOG.info("well again", extra=fields(what=what))
        elif self._problems.get(what) != str(error):
            self._problems[what] = str(error)
            self._noted.setdefault(what, time.monotonic())
            LOG.error(str(error), extra=fields(what=what))

    # ---- what is asked

    def _allocate(self, resource: Resource, ids: tuple[str, ...]) -> answers.Answer:
        assert self._host is not None  # where there are resources
        return answers.allocate(resource, ids, self._settings, self._host.facts)

    def _prefer(self, resource: Resource, wanted: Preference) -> tuple[str, ...]:
        return preferred.choose(
            resource,
            wanted.available,
            wanted.must_include,
            wanted.size,
            self._monitor.links,
            self._settings.shared_policy,
        )

    def _healthz(self) -> tuple[bool, Mapping[str, object]]:
        """Say what is wrong; it fails only for what a restart may mend."""
        now = time.monotonic()
        stuck = now - self._scanned > STUCK
        homeless = now - self._noted.get("serving", now) > LASTING
        content = {
            "stuck": stuck,
            "problems": self._problems,
            "unhealthy": self._unhealthy,
            "resources": {each.name: len(each.ids) for each in self._resources},
        }
        return not stuck and not homeless, content

    def _readyz(self) -> tuple[bool, Mapping[str, object]]:
        """Say whether the kubelet listens to everything that there is, and gets what it is told."""
        problems = {what: self._problems[what] for what in _UNREADY if what in self._problems}
        waiting = self._serving.problems
        return not problems and not waiting, {"problems": problems, "waiting": waiting}
