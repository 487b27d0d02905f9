"""A driver that does to its process what vendors' libraries do, as a file orders it to."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Device, Discovery, Fault, Link, Links, Sighting
from hami_plugin.sdk import HealthEvent

FAULT = Fault(reason="Warm", message="it is warm")
NAMES = ("toy-0", "toy-1")


class ToyDriver:
    """Looks at ``orders`` in each call. The order ``crash`` ends the process, ``discover crash`` in that call only."""

    def __init__(self, orders: Path, family: str = "Toy") -> None:
        self._orders = orders
        self._family = family
        self._busy: str | None = None

    @property
    def busy_with(self) -> str | None:
        return self._busy

    def discover(self) -> Discovery:
        self._obey("discover")
        sightings = [self._sighting(index, name) for index, name in enumerate(NAMES)]
        return Discovery(sightings=tuple(sightings), facts={"process": str(os.getpid())})

    def links(self) -> Links:
        self._obey("links")
        return Links(pairs={NAMES: Link(score=7, label="T")})

    def poll(self, timeout: float) -> list[HealthEvent]:
        self._obey("poll")
        time.sleep(min(timeout, 0.01))
        return [HealthEvent(uuid=NAMES[1], fault=FAULT)] if self._order() == "warm" else []

    def close(self) -> None:
        self._obey("close")
        self._orders.with_name("closed").touch()

    def _sighting(self, index: int, name: str) -> Sighting:
        return Sighting(device=Device(uuid=name, family=self._family, index=index, model="Toy One", memory=1024))

    def _order(self) -> str:
        return self._orders.read_text() if self._orders.exists() else ""

    def _obey(self, call: str) -> None:
        match self._order().removeprefix(f"{call} "):
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "wild pointer":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "exit":
                os._exit(3)
            case "hang":
                self._busy = NAMES[1]
                time.sleep(3600)
            case "print":
                sys.stdout.write("\0garbage\n" * 100)
                sys.stdout.flush()
                os.write(1, b"more of it\n")
            case "scribble":  # over every file that is open, the pipe included
                for number in sorted(int(file.name) for file in Path("/proc/self/fd").iterdir())[3:]:
                    _scribble(number)
                time.sleep(3600)
            case "half":  # a message that says that it is longer than it is
                for number in sorted(int(file.name) for file in Path("/proc/self/fd").iterdir())[3:]:
                    _scribble(number, b"\0\1\0\0half of it")
                time.sleep(3600)
            case "absent":
                raise DriverUnavailableError(DriverReason.NO_DRIVER, "no module", hint="load it")
            case "mistake":
                raise ZeroDivisionError("a mistake")


def _scribble(number: int, words: bytes = b"\0\0\0\4junk") -> None:
    try:
        with socket.socket(fileno=os.dup(number)) as pipe:
            pipe.send(words)
    except OSError:
        return
