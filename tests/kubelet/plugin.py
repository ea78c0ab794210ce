"""The device plugin in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Plugin:
    """``nvhook device-plugin``, running; what it logs is kept."""

    def __init__(
        self,
        config: Path,
        socket: Path,
        *arguments: str,
        environment: Mapping[str, str] = {},
        before: str = "",
    ) -> None:
        """Start it; ``before`` is Python that changes a constant first."""
        program = [str(Path(sys.executable).with_name("nvhook"))]
        if before:
            program = [sys.executable, "-Ic", f"{before}; from nvhook.cli import run; run()"]
        command = [
            *program,
            "device-plugin",
            f"--config={config}",
            f"--kubelet-socket={socket}",
            "--metrics-address=127.0.0.1:0",
            *arguments,
        ]
        self.log: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                if line.startswith("{"):
                    self.log.append(json.loads(line))
                else:
                    self.noise.append(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it and return its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            return self.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.wait(20)
            raise

    def wait(self, seconds: float) -> int:
        """Return its exit status when it has ended."""
        status = self._process.wait(seconds)
        self._reader.join(10)
        return status

    def wait_for_log(self, message: str, seconds: float = 10.0, after: int = 0) -> dict[str, Any]:
        """Return the first line with this message, of those from number ``after``."""
        return until(
            lambda: next((line for line in self.log[after:] if message in line["msg"]), None),
            seconds,
            lambda: f"no {message!r} in {self.log} {self.noise}",
        )

    # ---- what it tells

    def get(self, path: str) -> tuple[int, str]:
        """Return (status, body) of a page."""
        port = self.wait_for_log("serving metrics")["port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float | None:
        """Return a metric's value, None where there is none with these labels."""
        for line in self.get("/metrics")[1].splitlines():
            head, _, value = line.rpartition(" ")
            found, _, rest = head.partition("{")
            if found == name and all(f'{key}="{labels[key]}"' in rest for key in labels):
                return float(value)
        return None

    def descriptors(self) -> list[str]:
        """Return what its open descriptors are."""
        directory = f"/proc/{self.pid}/fd"
        return sorted(_link(f"{directory}/{number}") for number in os.listdir(directory))

    def children(self) -> list[str]:
        return Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()

    def threads(self) -> int:
        return len([*Path(f"/proc/{self.pid}/task").iterdir()])

    def resident(self) -> int:
        """Return its resident memory in KiB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _link(path: str) -> str:
    try:
        return os.readlink(path).partition(":")[0]
    except FileNotFoundError:
        return "closed"


def until(
    condition: Callable[[], Any], seconds: float, complaint: Callable[[], str] = lambda: ""
) -> Any:
    """Return what a condition gives once it is true.

    Raises: TimeoutError.
    """
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > end:
            raise TimeoutError(complaint() or f"not so after {seconds} s")
        time.sleep(0.01)
    return result
