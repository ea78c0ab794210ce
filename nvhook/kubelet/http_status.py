"""Answers /metrics, /healthz and /readyz: as much HTTP as a probe and a scrape need."""

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus

from nvhook.errors import HostError
from nvhook.kubelet import metrics

MAX_REQUEST = 1 << 14
TIMEOUT = 10.0  # seconds
Page = Callable[[], tuple[bool, Mapping[str, object]]]


class HttpStatus:
    """An HTTP server; ``pages`` give (all is well, what to tell) by path."""

    def __init__(self, scrape: Callable[[], bytes], pages: Mapping[str, Page]) -> None:
        self._scrape = scrape
        self._pages = pages
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> None:
        """Listen on ``HOST:PORT``, ``[HOST]:PORT`` or, everywhere, ``:PORT``.

        Raises: HostError.
        """
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]") or None, int(port), limit=MAX_REQUEST
            )
        except OSError as error:
            raise HostError(f"can't listen on {address}: {error}") from None

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT)
            method, _, rest = head.decode("latin-1").partition(" ")
            target = rest.partition(" ")[0].partition("?")[0]
            status, kind, body = self._answer(method, target)
            lines = [
                f"HTTP/1.1 {status.value} {status.phrase}",
                f"Content-Type: {kind}",
                f"Content-Length: {len(body)}",
                "Connection: close",
            ]
            writer.write("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
            if method != "HEAD":
                writer.write(body)
            await asyncio.wait_for(writer.drain(), TIMEOUT)
        except (
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.TimeoutError,
            ConnectionError,
        ):
            pass  # a port scan, or a client that is gone
        finally:
            writer.close()

    def _answer(self, method: str, target: str) -> tuple[HTTPStatus, str, bytes]:
        if method not in {"GET", "HEAD"}:
            return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"GET only\n"
        if target == "/metrics":
            return HTTPStatus.OK, metrics.CONTENT_TYPE, self._scrape()
        page = self._pages.get(target)
        if page is None:
            known = ", ".join(["/metrics", *self._pages])
            return HTTPStatus.NOT_FOUND, "text/plain", f"try {known}\n".encode()
        good, content = page()
        body = json.dumps(content, indent=1).encode() + b"\n"
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", body
