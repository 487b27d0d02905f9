"""A ``Driver`` whose every call is made in a process of its own, within a deadline, and what passes between the two.

``isolated_process`` is what runs there.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hami_plugin.errors import DriverReason, DriverUnavailableError, HamiError
from hami_plugin.model.device import Discovery, Links
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.process.log import logger
from hami_plugin.sdk import (
    HealthEvent,
    InUseError,
    Mode,
    ModeDriver,
    NoRoomError,
    Partition,
    PartitionDriver,
    Placement,
    Profile,
    Step,
    UnlistedCardsError,
)

CHILD = "hami_plugin.vendor_boundary.isolated_process"
log = logger(__name__)

NONSENSE = (pickle.UnpicklingError, AttributeError, ImportError, IndexError, ValueError)
"""What reading something raises that nobody here has written."""
CLOSE_TIMEOUT_S = 1.0
"""How long a process may take to end once it is asked to, and how long it is waited for after it is killed."""


STALL_S = 5.0
"""How long the other process may stop in the middle of a message."""


MAX_BYTES = 64 << 20
"""A longer message is none of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCall:
    """One method of the driver, with its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The call in progress asks about another device than before; about none when ``uuid`` is None."""

    uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What the call has returned."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed:
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


class _Child:
    """A running process, and the pipe to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        limit_stalls(ours, STALL_S)
        with theirs:
            paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
            self.process = subprocess.Popen(  # noqa: S603  # this program itself
                [sys.executable, "-m", CHILD, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": paths},
            )
        self.pipe = Connection(ours.detach())

    def end(self, *, at_once: bool) -> int | None:
        """Close the pipe, and kill what does not go by itself: its status. None when the kernel cannot end it yet."""
        self.pipe.close()
        for kill in (True,) if at_once else (False, True):
            if kill:
                self.process.kill()
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(CLOSE_TIMEOUT_S)
        return None


class IsolatedDriver:
    """``opening`` opens the real driver, in the other process: a function or value that can be pickled.

    A process that ends, hangs longer than ``deadline`` seconds or talks nonsense is a ``DriverUnavailableError``; the
    next ``discover`` starts another one. The caller decides how soon.
    """

    def __init__(self, opening: Callable[[], object], *, deadline: float = 60.0) -> None:
        self._opening = opening
        self._deadline = deadline
        self._child: _Child | None = None
        self._busy: str | None = None

    @property
    def busy_with(self) -> str | None:
        return self._busy

    @property
    def process(self) -> int | None:
        """The other process' id, while there is one."""
        child = self._child
        return child.process.pid if child else None

    def discover(self) -> Discovery:
        if self._child is None:
            self._start()
        found: Discovery = self._ask("discover")
        return found

    def links(self) -> Links:
        links: Links = self._ask("links")
        return links

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        events: Sequence[HealthEvent] = self._ask("poll", timeout, waits=timeout)
        return events

    def energy(self) -> Mapping[str, float]:
        """Nothing, where the real driver has no meter."""
        found: Mapping[str, float] = self._ask("energy")
        return found

    def load(self) -> Mapping[str, DeviceLoad]:
        """The same."""
        found: Mapping[str, DeviceLoad] = self._ask("load")
        return found

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call any method there. A process that is not there is started."""
        if self._child is None:
            self._start()
        return self._ask(method, *arguments, **named)

    def close(self) -> None:
        """Let the driver close, then the process end. What goes wrong now is of no consequence."""
        if self._child is not None:
            with suppress(DriverUnavailableError):
                self._ask("close", deadline=CLOSE_TIMEOUT_S)
        self._end()

    def _start(self) -> None:
        self._child = child = _Child()
        log.info("driver process started", process=child.process.pid)
        with suppress(OSError):  # it has ended already, which the first call finds out
            send(child.pipe, self._opening)

    def _ask(
        self, method: str, *arguments: Any, waits: float = 0.0, deadline: float | None = None, **named: Any
    ) -> Any:
        if self._child is None:
            raise DriverUnavailableError(DriverReason.FAILED, "the driver has no process", hint="discover starts one")
        until = time.monotonic() + (deadline or self._deadline) + waits
        call = DriverCall(method=method, arguments=arguments, named=named)
        try:
            match self._exchange(self._child.pipe, call, until):
                case Done(value=value):
                    return value
                case CallFailed(reason=reason, message=message, hint=hint):
                    raise DriverUnavailableError(reason, message, hint=hint)
                case None:
                    raise self._hung(method)
                case other:
                    raise self._confused(f"{other!r:.80} is no answer")
        except BlockingIOError as error:
            raise self._hung(method) from error
        except (EOFError, OSError) as error:
            raise self._crashed(method) from error
        except NONSENSE as error:
            raise self._confused(str(error)) from error
        finally:
            self._busy = None

    def _exchange(self, pipe: Connection, call: DriverCall, until: float) -> Any:
        """The answer to a call; None when there is none in time."""
        send(pipe, call)
        while pipe.poll(max(0.0, until - time.monotonic())):
            message = receive(pipe)
            if not isinstance(message, Busy):
                return message
            self._busy = message.uuid
        return None

    def _crashed(self, method: str) -> DriverUnavailableError:
        status = self._end()
        return DriverUnavailableError(
            DriverReason.CRASHED,
            f"the driver's process {_manner(status)} in a call of {method}{self._about()}",
            hint="it is started anew; the daemon's log has what it printed last",
        )

    def _hung(self, method: str) -> DriverUnavailableError:
        self._end(at_once=True)
        return DriverUnavailableError(
            DriverReason.HUNG,
            f"a call of {method}{self._about()} did not come back, and the driver's process was ended",
            hint="it is started anew",
        )

    def _confused(self, why: str) -> DriverUnavailableError:
        self._end(at_once=True)
        return DriverUnavailableError(
            DriverReason.CRASHED, f"the driver's process wrote nonsense: {why}", hint="it is started anew"
        )

    def _about(self) -> str:
        return f" about device {self._busy}" if self._busy else ""

    def _end(self, *, at_once: bool = False) -> int | None:
        child, self._child = self._child, None
        return child.end(at_once=at_once) if child else None


def _manner(status: int | None) -> str:
    """How a process ended, by ``subprocess``'s return code."""
    if status is None:
        return "cannot be ended"
    if status >= 0:
        return f"ended by itself with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """A ``HamiError`` of a partition or mode driver, by the name of its class."""

    kind: str
    message: str
    hint: str
    cards: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()

    @property
    def error(self) -> HamiError:
        match self.kind:
            case "InUseError":
                return InUseError(self.message, hint=self.hint)
            case "NoRoomError":
                return NoRoomError(self.message, hint=self.hint)
            case "UnlistedCardsError":
                return UnlistedCardsError(self.message, self.cards, self.partitions, hint=self.hint)
            case _:
                return HamiError(self.message, hint=self.hint)


class PartitionCalls:
    """A partition or mode driver in its own process: answers are values, and steps come with them."""

    busy_with = None

    def __init__(self, driver: PartitionDriver | ModeDriver) -> None:
        self._driver = driver

    def call(
        self, method: str, arguments: tuple[Any, ...], named: Mapping[str, Any], *, stepping: bool
    ) -> tuple[Any, list[Mapping[str, int]]]:
        steps: list[Mapping[str, int]] = []
        more = (lambda ids: steps.append(dict(ids)),) if stepping else ()
        try:
            return getattr(self._driver, method)(*arguments, *more, **named), steps
        except DriverUnavailableError:
            raise
        except HamiError as error:
            refused = _Refused(kind=type(error).__name__, message=error.message, hint=error.hint)
            if isinstance(error, UnlistedCardsError):
                refused = replace(refused, cards=error.cards, partitions=error.partitions)
            return refused, steps

    def close(self) -> None:
        """The process ends next."""


def _opened(opening: Callable[[], PartitionDriver | ModeDriver]) -> PartitionCalls:
    return PartitionCalls(opening())


class _Isolated:
    """A driver whose every call is made in a process of its own, one at a time. ``opening`` can be pickled."""

    def __init__(self, opening: Callable[[], PartitionDriver | ModeDriver], *, deadline: float) -> None:
        self._process = IsolatedDriver(partial(_opened, opening), deadline=deadline)
        self._turn = threading.Lock()

    def _call(self, method: str, *arguments: Any, step: Step | None = None, **named: Any) -> Any:
        with self._turn:
            value, steps = self._process.ask("call", method, arguments, named, stepping=step is not None)
        if step:
            for ids in steps:
                step(ids)
        if isinstance(value, _Refused):
            raise value.error
        return value

    def close(self) -> None:
        """Let the process end, once the call in progress has come back."""
        with self._turn:
            self._process.close()


class IsolatedPartitionDriver(_Isolated):
    """A ``PartitionDriver``. What has happened when the process ends in a call, the next listing shows: a step that
    is not told then is one that a daemon that is killed has not written either.
    """

    def __init__(self, opening: Callable[[], PartitionDriver], *, deadline: float = 20.0) -> None:
        super().__init__(opening, deadline=deadline)

    def profiles(self, card: str) -> tuple[Profile, ...]:
        return tuple(self._call("profiles", card))

    def partitions(self, card: str = "") -> tuple[Partition, ...]:
        return tuple(self._call("partitions", card))

    def create(self, card: str, profile: str, placement: Placement, step: Step) -> Partition:
        made: Partition = self._call("create", card, profile, placement, step=step)
        return made

    def destroy(self, partition: Partition, step: Step) -> None:
        self._call("destroy", partition, step=step)

    def users(self, partition: Partition) -> Sequence[int]:
        return list(self._call("users", partition))


class IsolatedModeDriver(_Isolated):
    """A ``ModeDriver``. No process is left between two calls: it would have the cards open that are to be idle."""

    def __init__(self, opening: Callable[[], ModeDriver], *, deadline: float = 40.0) -> None:
        super().__init__(opening, deadline=deadline)

    def mode(self, card: str) -> Mode:
        try:
            found: Mode = self._call("mode", card)
        finally:
            self.close()
        return found

    def switch(self, card: str, *, on: bool) -> None:
        try:
            self._call("switch", card, on=on)
        finally:
            self.close()
