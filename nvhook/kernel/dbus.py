"""Just enough D-Bus to ask systemd something: method calls on its own socket, one at a time.

The libraries for it take 20 ms and more to import, for each container of a host with systemd.
Source: D-Bus specification 0.43 (message protocol, authentication).
"""

from __future__ import annotations

import os
from _socket import (
    AF_UNIX,
    SO_RCVTIMEO,
    SO_SNDTIMEO,
    SOCK_CLOEXEC,
    SOCK_STREAM,
    SOL_SOCKET,
    socket,
)
from struct import error as struct_error
from struct import pack, unpack_from

from nvhook.errors import HostError

MAX_REPLY = 1 << 20
MAX_LINE = 512
TIMEOUT = 5  # seconds
_CALL, _RETURN, _ERROR = 1, 2, 3
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _DESTINATION, _SIGNATURE = 1, 2, 3, 4, 6, 8


class Writer:
    """Bytes of a message, aligned as they are written."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> None:
        """Pad with zeros to a multiple of size."""
        self.data += bytes(-len(self.data) % size)

    def number(self, value: int) -> None:
        """Write a uint32 or a boolean."""
        self.align(4)
        self.data += pack("<I", value)

    def text(self, value: str) -> None:
        """Write a string or an object path."""
        raw = value.encode()
        self.number(len(raw))
        self.data += raw + b"\0"

    def signature(self, value: str) -> None:
        """Write a signature."""
        self.data += bytes([len(value)]) + value.encode() + b"\0"

    def begin_array(self, element_alignment: int) -> int:
        """Write an array's length to be; return the place for end_array."""
        self.number(0)
        place = len(self.data) - 4
        self.align(element_alignment)
        return place

    def end_array(self, place: int, element_alignment: int) -> None:
        """Fill in the length of an array that began at place."""
        start = place + 4 + -(place + 4) % element_alignment
        self.data[place : place + 4] = pack("<I", len(self.data) - start)


class Connection:
    """A connection to a socket that speaks D-Bus, such as /run/systemd/private.

    Raises: HostError from every method.
    """

    __slots__ = ("_serial", "_socket", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._serial = 0
        self._socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
        try:
            for direction in (SO_RCVTIMEO, SO_SNDTIMEO):  # the latter limits connect, too
                self._socket.setsockopt(SOL_SOCKET, direction, pack("ll", TIMEOUT, 0))
            self._socket.connect(path)
            uid = str(os.geteuid()).encode().hex()
            self._socket.sendall(f"\0AUTH EXTERNAL {uid}\r\n".encode())
            answer = b""
            while not answer.endswith(b"\r\n") and len(answer) < MAX_LINE:
                answer += self._some(MAX_LINE)
            if not answer.startswith(b"OK "):
                raise HostError(f"{path} does not let us in: {answer[:80]!r}")
            self._socket.sendall(b"BEGIN\r\n")
        except OSError as error:
            self.close()
            raise HostError(f"{path} can't be reached: {error.strerror}") from error
        except HostError:
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, place: str, interface: str, member: str, signature: str, body: Writer) -> bytes:
        """Call a method of the object at place; return the body of the answer."""
        self._serial += 1
        message = Writer()
        message.data += pack("<cBBBII", b"l", _CALL, 0, 1, len(body.data), self._serial)
        fields = message.begin_array(8)
        for code, kind, value in (
            (_PATH, "o", place),
            (_INTERFACE, "s", interface),
            (_MEMBER, "s", member),
            (_DESTINATION, "s", "org.freedesktop.systemd1"),
            (_SIGNATURE, "g", signature),
        ):
            message.align(8)
            message.data.append(code)
            message.signature(kind)
            if kind == "g":
                message.signature(value)
            else:
                message.text(value)
        message.end_array(fields, 8)
        message.align(8)
        try:
            self._socket.sendall(message.data + body.data)
            while True:  # signals come in between
                answers, reply_to, error, answer = self._receive()
                if reply_to == self._serial:
                    break
        except OSError as failure:
            raise HostError(f"{self.path}: {failure.strerror}") from failure
        if answers == _ERROR:
            reason = text_at(answer, 0) if answer else ""
            raise HostError(f"{member} failed: {error}: {reason}")
        return answer

    def _receive(self) -> tuple[int, int, str, bytes]:
        """Return the kind of a message, the serial it answers, its error's name, and its body."""
        header = self._exactly(16)
        order, kind, _, _, length, _, fields = unpack_from("<cBBBIII", header)
        if order != b"l" or length + fields > MAX_REPLY:
            raise HostError(f"{self.path} sent something that is no answer")
        rest = self._exactly(fields + -fields % 8 + length)
        try:
            reply_to, error = _fields(rest[:fields])
        except (IndexError, struct_error) as failure:
            raise HostError(f"{self.path} sent something that is no answer") from failure
        return kind, reply_to, error, rest[len(rest) - length :]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self._some(size - len(data))
        return data

    def _some(self, size: int) -> bytes:
        data = self._socket.recv(size)
        if not data:
            raise HostError(f"{self.path} closed the connection")
        return data


def text_at(data: bytes, at: int) -> str:
    """Return the string that is marshalled at an offset."""
    at += -at % 4
    (length,) = unpack_from("<I", data, at)
    return data[at + 4 : at + 4 + length].decode("utf-8", "replace")


def _fields(data: bytes) -> tuple[int, str]:
    """Return what a header's fields say of a reply: the serial it answers and its error's name."""
    reply_to, error = 0, ""
    at = 0
    while at + 4 <= len(data):
        at += -at % 8
        code, size = data[at], data[at + 1]
        kind = data[at + 2 : at + 2 + size]
        at += 3 + size
        if kind == b"u":
            at += -at % 4
            if code == 5:
                (reply_to,) = unpack_from("<I", data, at)
            at += 4
        elif kind in (b"s", b"o"):
            value = text_at(data, at)
            if code == _ERROR_NAME:
                error = value
            at += -at % 4
            at += 4 + unpack_from("<I", data, at)[0] + 1
        elif kind == b"g":
            at += 1 + data[at] + 1
        else:
            break
    return reply_to, error
