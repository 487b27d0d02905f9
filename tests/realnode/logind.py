"""What a kubelet hears of systemd-logind on the system bus: that the machine is to be shut down, and who delays it.

No systemd runs on the real node. This is a bus with one service, and as much of D-Bus as the kubelet speaks.
"""

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from tests.realnode.node import Node

PATH = "/var/run/dbus/system_bus_socket"
MAX_DELAY_S = 120
CALL, RETURN, SIGNAL = 1, 2, 4
NO_REPLY = 1
OBJECT, INTERFACE, MEMBER, REPLY_TO, SENDER, SIGNATURE, FDS = 1, 2, 3, 5, 7, 8, 9
KINDS = {OBJECT: "o", INTERFACE: "s", MEMBER: "s", REPLY_TO: "u", SENDER: "s", SIGNATURE: "g", FDS: "u"}
"""Fields of a message's header, and the types of their values."""


@dataclass(slots=True)
class Message:
    """A message as it grows: each value stands where its type has it."""

    data: bytearray = field(default_factory=bytearray)

    def align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)

    def number(self, value: int, form: str = "I") -> None:
        self.align(struct.calcsize(form))
        self.data += struct.pack(f"<{form}", value)

    def text(self, value: str, kind: str = "s") -> None:
        """A text; a signature (``g``) has a shorter length than others."""
        self.number(len(value), "B" if kind == "g" else "I")
        self.data += value.encode() + b"\0"


def written(kind: int, fields: dict[int, str | int], body: bytes | bytearray, serial: int) -> bytes:
    head = Message()
    for code, value in fields.items():
        head.align(8)
        head.number(code, "B")
        head.text(KINDS[code], "g")
        if isinstance(value, int):
            head.number(value)
        else:
            head.text(value, KINDS[code])
    start = struct.pack("<cBBBIII", b"l", kind, NO_REPLY, 1, len(body), serial, len(head.data))
    return start + head.data + bytes(-len(head.data) % 8) + body


def member(stream: BinaryIO) -> tuple[int, str]:
    """Read a call; return its serial and the method's name. ``EOFError`` when nobody calls any more."""
    start = stream.read(16)
    if len(start) < 16:
        raise EOFError
    _, _, _, _, length, serial, fields = struct.unpack("<cBBBIII", start)
    head = stream.read(fields + -fields % 8)
    stream.read(length)
    mark = head.find(bytes((MEMBER, 1)) + b"s\0")
    (size,) = struct.unpack_from("<I", head, mark + 4)
    return serial, head[mark + 8 : mark + 8 + size].decode()


class Logind:
    """``shut_down`` tells everybody who listens; ``is_delayed`` while somebody has not let go of the shutdown."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._clients: list[socket.socket] = []
        self._delays: list[int] = []
        self._serial = 1
        self._listening = threading.Event()
        threading.Thread(target=self._accept, name="logind", daemon=True).start()

    def await_listener(self, within_s: float) -> None:
        assert self._listening.wait(within_s), "no kubelet listens to logind"

    def shut_down(self) -> None:
        """Tell that the machine is about to be shut down."""
        head = {OBJECT: "/org/freedesktop/login1", INTERFACE: "org.freedesktop.login1.Manager"}
        self._say(self._clients[-1], SIGNAL, {**head, MEMBER: "PrepareForShutdown"}, "b", struct.pack("<I", 1))

    def is_delayed(self) -> bool:
        """Whether somebody still has the writing end of a pipe of ours."""
        ended, _, _ = select.select(self._delays, [], [], 0)
        return len(ended) < len(self._delays)

    def close(self) -> None:
        for one in (self._server, *self._clients):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for delay in self._delays:
            os.close(delay)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), name="logind's client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), client.makefile("rb") as stream:
            stream.read(1)
            while (said := stream.readline().split()) != [b"BEGIN"]:
                client.sendall(_greeting(said))
            while True:
                self._answer(client, *member(stream))

    def _answer(self, client: socket.socket, serial: int, called: str) -> None:
        body = Message()
        head: dict[int, str | int] = {REPLY_TO: serial}
        match called:
            case "Hello":
                body.text(":1.1")
                self._say(client, RETURN, head, "s", body.data)
            case "Get":
                body.text("t", "g")
                body.number(MAX_DELAY_S * 1_000_000, "Q")
                self._say(client, RETURN, head, "v", body.data)
            case "Inhibit":
                ours, theirs = os.pipe()
                body.number(0)
                self._say(client, RETURN, {**head, FDS: 1}, "h", body.data, (theirs,))
                os.close(theirs)
                self._delays.append(ours)
            case _:
                self._say(client, RETURN, head, "", b"")
        if called == "AddMatch":
            self._listening.set()

    def _say(
        self,
        client: socket.socket,
        kind: int,
        head: dict[int, str | int],
        signature: str,
        body: bytes | bytearray,
        fds: tuple[int, ...] = (),
    ) -> None:
        self._serial += 1
        fields: dict[int, str | int] = {**head, SENDER: "org.freedesktop.login1"}
        if signature:
            fields[SIGNATURE] = signature
        socket.send_fds(client, [written(kind, fields, body, self._serial)], fds)


def _greeting(said: list[bytes]) -> bytes:
    match said:
        case [b"AUTH", _, *_]:
            return b"OK 0123456789abcdef0123456789abcdef\r\n"
        case [b"NEGOTIATE_UNIX_FD"]:
            return b"AGREE_UNIX_FD\r\n"
        case []:
            raise EOFError
    return b"REJECTED EXTERNAL\r\n"


@contextlib.contextmanager
def logind(node: Node) -> Iterator[Logind]:
    """Let a kubelet that starts find it."""
    path = node.path(PATH)
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        running = Logind(server)
        try:
            yield running
        finally:
            running.close()
            path.unlink()
