"""The daemon's log: one JSON object a line on standard error, for whoever collects it."""

import json
import logging
import time
from typing import TextIO

LOG = logging.getLogger("nvhook.kubelet")
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Formatter(logging.Formatter):
    """Render a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        content: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
        }
        if record.name != LOG.name:
            content["logger"] = record.name
        content |= getattr(record, "fields", {})
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


def configure(level: str, stream: TextIO) -> None:
    """Send everything from this level up, of libraries warnings and errors, to a stream."""
    output = logging.StreamHandler(stream)
    output.setFormatter(Formatter())
    logging.basicConfig(handlers=[output], level=logging.WARNING, force=True)
    LOG.setLevel(_LEVELS[level])


def fields(**values: object) -> dict[str, object]:
    """Return the ``extra`` argument that adds fields to a line."""
    return {"fields": values}
