"""Keep an NVML child running and hand on what it reports.

A child that fails, hangs or ends is replaced, at first after a second, then after up to 30 seconds:
whatever NVML does, it costs next to nothing.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable

from nvhook.core.inventory import Inventory
from nvhook.kubelet.backoff import Backoff
from nvhook.kubelet.children import Child, kill
from nvhook.kubelet.reports import Failed, Report, Round, Started, parse

# All in seconds.
HEARTBEAT = 15.0
START = 60.0  # until the first report: NVML initialises idle GPUs one after the other
STEADY = 30.0  # a child that lived so long is replaced at once again

MAX_LINE = 4096

# Isolated (-I) and without site (-S) the child is bare: it gets the module path as arguments.
_CHILD = (
    "import sys; library, xids, sys.path[:] = sys.argv[1], sys.argv[2], sys.argv[3:]; "
    "from nvhook.kubelet import nvml_watch; nvml_watch.watch(library, xids)"
)


class Watch:
    """The NVML child of a machine.

    ``report`` is called in the event loop, with every report of every child.
    """

    def __init__(self, report: Callable[[Report], None], with_xids: bool = True) -> None:
        self._report = report
        self._with_xids = with_xids
        self._library = ""
        self._machine: object = None
        self._backoff = Backoff()
        self._changed = asyncio.Event()

    def use(self, inventory: Inventory | None) -> None:
        """Watch this machine; a new child starts at once if it is not the one before.

        None, or a machine without an NVML library, stops the child: a driver can't be unloaded
        while NVML is in use.
        """
        library = None if inventory is None else inventory.library("libnvidia-ml.so")
        if inventory is None or library is None:
            self._library, self._machine = "", None
        else:
            gpus = tuple((gpu.uuid, gpu.pci_bus_id) for gpu in inventory.gpus)
            machine = (library.host_path, inventory.driver_version, gpus)
            if machine == self._machine:
                return
            self._library, self._machine = library.host_path, machine
        self.restart()

    def restart(self) -> None:
        """Replace the child now."""
        self._backoff.reset()
        self._changed.set()

    async def run(self) -> None:
        """Run children until cancelled; none is left behind."""
        while True:
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            child = asyncio.ensure_future(self._run_child(self._library))
            try:
                await asyncio.wait({child, changed}, return_when=asyncio.FIRST_COMPLETED)
                if child.done():
                    child.result()  # a bug of ours, or of the one who takes reports, isn't hidden
                    await asyncio.wait({changed}, timeout=self._backoff.pause())
            finally:
                child.cancel()
                changed.cancel()
                await asyncio.wait({child, changed})

    async def _run_child(self, library: str) -> None:
        """Run one child to its end, which is reported unless it did so itself."""
        if not library:
            await asyncio.Event().wait()  # until another library is to be used
        path = [entry for entry in sys.path if entry.startswith("/")]
        arguments = [library, "on" if self._with_xids else "off", *path]
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CHILD, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        except OSError as error:
            self._report(Failed(f"no child can be started: {error.strerror}"))
            return
        self._report(Started())
        lines = asyncio.StreamReader(MAX_LINE)
        pipe: asyncio.BaseTransport | None = None
        try:
            pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(lines), child.stdout
            )
            reason = await self._read(lines, child)
        finally:
            if pipe is not None:
                pipe.close()
            await kill(child)
        if reason is not None:
            self._report(Failed(reason))

    async def _read(self, lines: asyncio.StreamReader, child: Child) -> str | None:
        """Hand on what a child says; return why it is of no more use, None if it said so itself.

        A silent child is killed, which ends its lines.
        """
        loop = asyncio.get_running_loop()
        started, patience, reason = loop.time(), START, "it ended"
        while True:
            watchdog = loop.call_later(patience, child.kill)
            try:
                line = (await lines.readline()).decode("utf-8", "replace")
            except ValueError:
                return f"a line of more than {MAX_LINE} bytes"
            finally:
                watchdog.cancel()
            if not line:
                silent = loop.time() >= watchdog.when()
                return f"no answer for {patience:.0f} s" if silent else reason
            report = parse(line)
            if report is None:
                reason = line.strip() or reason
                continue
            self._report(report)
            if isinstance(report, Failed):
                return None
            if isinstance(report, Round):
                patience = HEARTBEAT
                if loop.time() - started > STEADY:
                    self._backoff.reset()
