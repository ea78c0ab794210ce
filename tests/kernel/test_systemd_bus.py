"""systemd's socket, played by a script: what it asks, and what it makes of every kind of answer."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvhook.errors import HostError
from nvhook.kernel import systemd

RULES = [("c", 195, 1, "rw"), ("b", 8, 0, "r")]
RETURN, ERROR, SIGNAL = 2, 3, 4
FIELD = b"\5\1u\0\0\0\0\0"  # REPLY_SERIAL: half a number, and what fills up to 8
MAX_REPLY = 1 << 20
Answer = Callable[[int], bytes]


class Writer:
    """Bytes of a message, aligned as they are written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)

    def number(self, value: int) -> None:
        self.align(4)
        self.data += struct.pack("<I", value)

    def text(self, value: str) -> None:
        raw = value.encode()
        self.number(len(raw))
        self.data += raw + b"\0"

    def signature(self, value: str) -> None:
        self.data += bytes([len(value)]) + value.encode() + b"\0"

    def begin_array(self, element_alignment: int) -> int:
        self.number(0)
        place = len(self.data) - 4
        self.align(element_alignment)
        return place

    def end_array(self, place: int, element_alignment: int) -> None:
        start = place + 4 + -(place + 4) % element_alignment
        self.data[place : place + 4] = struct.pack("<I", len(self.data) - start)


def message(kind: int, reply_to: int, body: bytes = b"", error: str = "", size: int = -1) -> bytes:
    head = Writer()
    length = len(body) if size < 0 else size
    head.data += struct.pack("<cBBBII", b"l", kind, 0, 1, length, 77)
    fields = head.begin_array(8)
    for code, signature, value in ((5, "u", reply_to), (4, "s", error), (8, "g", "s")):
        if value == "":
            continue
        head.align(8)
        head.data.append(code)
        head.signature(signature)
        {"u": head.number, "s": head.text, "g": head.signature}[signature](value)
    head.end_array(fields, 8)
    head.align(8)
    return bytes(head.data) + body


def variant(signature: str, *values: str) -> bytes:
    body = Writer()
    body.signature(signature)
    if signature == "s":
        body.text(values[0])
    else:
        place = body.begin_array(8)
        for value in values:
            body.align(8)
            body.text(value)
            body.text("rw")
        body.end_array(place, 8)
    return bytes(body.data)


class Bus:
    """The script: one answer for each call, given the call's serial."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.greeting = b"OK 0123456789abcdef\r\n"
        self.answers: list[Answer] = []
        self.calls: list[bytes] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            connection.settimeout(10)
            hello = connection.recv(100)
            assert hello.startswith(b"\0AUTH EXTERNAL 30\r\n")
            connection.sendall(self.greeting)
            if not self.greeting.startswith(b"OK"):
                return
            assert connection.recv(7) == b"BEGIN\r\n"
            for serial, answer in enumerate(self.answers, 1):
                call = connection.recv(4096)
                if not call:
                    return
                self.calls.append(call)
                connection.sendall(answer(serial))


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    served = Bus(tmp_path / "socket")
    yield served
    served.listener.close()


def reply(body: bytes) -> Answer:
    return lambda serial: message(RETURN, serial, body)


def allow(bus: Bus) -> str:
    return systemd.allow("a-b.scope", RULES, str(bus.path))


def test_devices_are_put_on_the_list_of_a_unit_that_has_one(bus) -> None:
    bus.answers = [reply(variant("s", "strict")), reply(variant("a(ss)")), reply(b"")]

    assert allow(bus) == "a-b.scope: 2 devices"

    asked, _, done = bus.calls
    assert b"/org/freedesktop/systemd1/unit/a_2db_2escope\0" in asked
    assert b"org.freedesktop.systemd1.Scope\0" in asked
    for text in (b"SetUnitProperties\0", b"/dev/char/195:1\0", b"/dev/block/8:0\0", b"sba(sv)\0"):
        assert text in done


@pytest.mark.parametrize(
    ("listed", "says"), [((), "restricts no devices"), (("/dev/null",), ": 2 devices")]
)
def test_a_unit_without_a_list_stays_without(bus, listed, says) -> None:
    bus.answers = [reply(variant("s", "auto")), reply(variant("a(ss)", *listed)), reply(b"")]
    assert says in allow(bus)
    bus.thread.join(0.1)
    assert len(bus.calls) == (3 if listed else 2)


def test_devices_are_taken_off_a_list_and_the_others_stay(bus) -> None:
    listed = ("/dev/null", "/dev/char/195:1", "char-pts", "/dev/block/8:0")
    bus.answers = [reply(variant("s", "closed")), reply(variant("a(ss)", *listed)), reply(b"")]

    systemd.forget("a-b.scope", RULES, str(bus.path))

    done = bus.calls[2]
    assert done.count(b"DeviceAllow\0") == 2
    assert b"/dev/null\0" in done
    assert b"char-pts\0" in done
    assert b"195:1" not in done
    assert b"8:0" not in done


def test_a_list_that_is_not_understood_is_not_shortened(bus) -> None:
    listed = variant("a(ss)", "/dev/char/195:1", "/dev/null")
    bus.answers = [
        reply(variant("s", "closed")),
        reply(listed.replace(b"\2\0\0\0rw\0", b"\3\0\0\0rw\0")),
    ]

    with pytest.raises(HostError, match=r"about a-b\.scope is not understood"):
        systemd.forget("a-b.scope", RULES, str(bus.path))


def test_a_list_without_them_is_left_alone(bus) -> None:
    bus.answers = [reply(variant("s", "auto")), reply(variant("a(ss)", "/dev/null"))]
    systemd.forget("a-b.scope", RULES, str(bus.path))
    bus.thread.join(1)
    assert len(bus.calls) == 2


def test_a_signal_in_between_is_no_answer(bus) -> None:
    note = message(SIGNAL, 0, b"")
    bus.answers = [
        lambda serial: note + message(RETURN, serial, variant("s", "closed")) + note,
        reply(variant("a(ss)")),
        reply(b""),
    ]
    assert allow(bus) == "a-b.scope: 2 devices"


def said(text: str) -> bytes:
    body = Writer()
    body.text(text)
    return bytes(body.data)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            lambda n: message(ERROR, n, said("no such unit"), "a.b.NoSuchUnit"),
            "NoSuchUnit: no such",
        ),
        (lambda n: message(ERROR, n, b"", "a.b.Bad"), "Get failed: a.b.Bad"),
        (lambda n: b"", "closed the connection"),
        (lambda n: message(RETURN, n, b"x")[:20], "closed the connection"),
        (lambda n: b"B" + message(RETURN, n)[1:], "no answer"),
        (lambda n: message(RETURN, n, size=MAX_REPLY + 1), "no answer"),
        (lambda n: struct.pack("<cBBBIII", b"l", RETURN, 0, 1, 0, 77, 5) + FIELD, "no answer"),
        (lambda n: message(RETURN, n, b""), "not understood"),
        (lambda n: message(RETURN, n, b"\1s\0"), "not understood"),
    ],
    ids=[
        "error",
        "error-without-text",
        "nothing",
        "half",
        "big-endian",
        "too-large",
        "half-a-field",
        "empty",
        "short",
    ],
)
def test_what_is_no_answer_is_an_error(bus, answer, says) -> None:
    bus.answers = [answer]
    with pytest.raises(HostError, match=says):
        allow(bus)


def test_a_refused_login_and_an_absent_socket_are_errors(bus, tmp_path) -> None:
    bus.greeting = b"REJECTED EXTERNAL\r\n"
    with pytest.raises(HostError, match="does not let us in"):
        allow(bus)
    with pytest.raises(HostError, match="can't be reached: No such file"):
        systemd.allow("a.scope", RULES, str(tmp_path / "absent"))


def test_a_systemd_that_accepts_nobody_is_given_up(tmp_path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as first:
        full.bind(path)
        full.listen(0)
        first.connect(path)
        outcome: list[HostError] = []

        def ask() -> None:
            with pytest.raises(HostError) as caught:
                systemd.allow("a.scope", RULES, path, seconds=1)
            outcome.append(caught.value)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(5)
    assert ["can't be reached" in str(error) for error in outcome] == [True]
