"""What passes between the daemon and a driver's own process: calls one way, answers the other."""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from hami_plugin.errors import DriverReason

MAX_BYTES = 64 << 20
"""A longer message is none of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One method of the driver, with its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The call in progress asks about another device than before; about none when ``uuid`` is None."""

    uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What the call has returned."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """A ``DriverUnavailableError``; exceptions with arguments of their own do not pickle."""

    reason: DriverReason
    message: str
    hint: str = ""


def limit_stalls(end: socket.socket, seconds: float) -> None:
    """Let reading and writing fail by ``BlockingIOError`` where the other end stops for so long in mid-message."""
    whole, part = divmod(seconds, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        end.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(whole), int(part * 1_000_000)))


def send(pipe: Connection, message: object) -> None:
    """Write one message. OSError when nobody reads any more."""
    pipe.send_bytes(pickle.dumps(message))


def receive(pipe: Connection) -> Any:
    """Read one message. OSError, with EOFError among them, or any error of ``pickle`` when it is none."""
    return pickle.loads(pipe.recv_bytes(MAX_BYTES))  # noqa: S301  # both ends are the same program and the same user
