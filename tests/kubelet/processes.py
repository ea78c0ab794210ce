"""The processes that a test has started: those that it finds running are others'."""

import os
from pathlib import Path

_OTHERS: set[int] = set()


def _all() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


def begin() -> None:
    """Forget what is running: session-wide fixtures of other folders have processes, too."""
    _OTHERS.clear()
    _OTHERS.update(_all())


def children() -> list[int]:
    """Return the children that have come since."""
    return [pid for pid in _all() if pid not in _OTHERS]
