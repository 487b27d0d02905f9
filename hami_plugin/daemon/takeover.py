"""How a node passes from one daemon to the next while both run, and back where the next one fails.

Who holds the lock of the state directory is the **incumbent**, and the only one that writes: journal, health, CDI
specs, annotations. A process that finds the lock taken discovers its devices and asks the incumbent for the node, over
a socket in that directory:

| step | successor | incumbent |
|---|---|---|
| 1 | asks, with its name and what it cannot serve | refuses, or passes the kubelet's calls on to whoever comes |
| 2 | waits | ends its own calls, stops writing, flushes, releases the lock, answers ``released`` |
| 3 | takes the lock, reads the journal, registers | keeps ListAndWatch open, so that no device goes away |
| 4 | says ``serving``, a second after it has registered | ends its streams, says ``ended``, and stands by |

The kernel frees the lock of a process that dies. So whoever is left at any step takes the lock, and serves.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.host.files import StateLock
from hami_plugin.process.concurrency import poll_condition, wait_event
from hami_plugin.process.log import logger

log = logger(__name__)

SOCKET = "takeover.sock"
MAX_BYTES = 64 << 10
"""Of a message."""
MESSAGE_S = 5.0
"""How long one side waits for what the other one can say at once."""
RELEASE_S = 30.0
"""How long a successor waits for the incumbent to end its calls."""
TAKE_S = 5.0
"""How long a successor has to take the lock that was released for it, while it lives."""
SERVE_S = 60.0
"""How long an incumbent that has released the node goes on streaming for a successor that does not say it serves."""
RETRY_S = 1.0
LOOK_S = 0.1

Problems = Mapping[str, str]
"""Why each vendor is not served; empty for one that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A successor asks for the node. ``name`` tells processes apart, across containers that all have process id 1."""

    name: str
    problems: Problems = field(default_factory=dict)


def refusal(asked: Ask, *, predecessor: str, ours: Problems) -> str:
    """Why the incumbent keeps the node; empty when it hands it over.

    A vendor that the successor's configuration does not name is not served on purpose. One that it names and cannot
    serve, while the incumbent can, would be lost.
    """
    if asked.name == predecessor:
        return f"this process has taken the node over from {predecessor}, and does not give it back while it serves"
    worse = [f"{vendor}: {why}" for vendor, why in sorted(asked.problems.items()) if why and ours.get(vendor) == ""]
    return f"{asked.name} cannot serve what is served now ({'; '.join(worse)})" if worse else ""


def parsed_ask(line: bytes) -> Ask:
    """The question in a line. ValueError when it is none."""
    message = _parsed(line)
    name, problems = message.get("name"), message.get("problems", {})
    if not isinstance(name, str) or not isinstance(problems, dict):
        raise ValueError(f"{line[:80]!r} asks for nothing")  # noqa: TRY004  # as for any other line
    return Ask(name=name[:256], problems={str(vendor): str(why)[:500] for vendor, why in problems.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverAnswer:
    """The incumbent's: its ``name``, and why it keeps the node, empty when it has released it."""

    name: str
    refused: str = ""


def parsed_answer(line: bytes) -> TakeoverAnswer:
    """The answer in a line. ValueError when it is none."""
    message = _parsed(line)
    name, refused = message.get("name"), message.get("refused")
    if not isinstance(name, str) or not isinstance(refused, str):
        raise ValueError(f"{line[:80]!r} is no answer")  # noqa: TRY004  # as for any other line
    return TakeoverAnswer(name=name[:256], refused=refused[:1000])


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("a message that is too deep") from error
    if not isinstance(message, dict):
        raise ValueError(f"{line[:80]!r} is no message")  # noqa: TRY004  # as for any other line
    return message


class Peer:
    """The other side of a takeover. Losing it ends every wait for it."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer

    async def say(self, **message: object) -> None:
        """Send a message. A peer that is gone does not hear it; the lock says so."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(MESSAGE_S):
                self._writer.write(json.dumps(message).encode() + b"\n")
                await self._writer.drain()

    async def hear(self) -> bytes:
        """The next message; nothing once the peer is gone."""
        try:
            return await self._reader.readline()
        except (OSError, ValueError):  # ValueError: longer than any message
            return b""

    def close(self) -> None:
        self._writer.close()


class NodeClaim:
    """What a process has of the node: the lock, and what is said about it to other processes.

    ``waiting`` is why the process does not have the node. ``predecessor`` is the process that it has taken over from,
    for as long as that one waits to be relieved.
    """

    def __init__(self, directory: Path, *, name: str = "") -> None:
        self.lock = StateLock(directory)
        self.name = name or f"{socket.gethostname()}/{os.getpid()}"
        self.waiting = "starting"
        self.predecessor: Peer | None = None
        self._directory = directory
        self._took_from = ""
        self._asked: asyncio.Queue[Peer] = asyncio.Queue(maxsize=1)

    @property
    def replaces_mute(self) -> bool:
        """Whether the lock's holder is of a version that cannot hand over. It has to end before its successor serves,
        and a rolling update ends it once the successor is ready.
        """
        return self.lock.holder()[1] == 0

    async def take(self, stop: asyncio.Event, problems: Callable[[], Problems | None]) -> bool:
        """Wait until the node is this process's. False: ``stop`` came first.

        ``problems`` answers None until the process knows what it can serve; it asks nobody before.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            while not stop.is_set():
                if self.lock.intact or self.lock.acquire():
                    self.waiting = ""
                    return True
                self._wait(f"another daemon (process {self.lock.holder()[0] or 'unknown'}) serves this node")
                known = problems()
                if known is not None and await self._ask(known):
                    self.waiting = ""
                    return True
                await wait_event(stop, within=RETRY_S if known is not None else LOOK_S)
        except OSError as error:
            raise HamiError(
                f"the state directory {self._directory} cannot be used: {error}",
                hint="set stateDir to a writable directory",
            ) from error
        return False

    async def stand_by(
        self, successor: Peer, stop: asyncio.Event, relieved: Callable[[], Coroutine[None, None, None]]
    ) -> bool:
        """Release the node, and watch the successor. True: it is gone, and the node is this process's again.
        False: ``stop`` came first.

        ``relieved`` is awaited once the successor serves, or has had its time for it.
        """
        self.waiting = f"handed over to {successor.name}"
        self.lock.release()
        await successor.say(**asdict(TakeoverAnswer(name=self.name)))
        heard = asyncio.create_task(successor.hear(), name="successor")
        loop = asyncio.get_running_loop()
        deadline, streaming = loop.time() + SERVE_S, True
        try:
            while not stop.is_set():
                late = loop.time() > deadline
                if (heard.done() or late) and self.lock.acquire():
                    log.warning("the successor is gone; serving again", successor=successor.name)
                    self.waiting = ""
                    return True
                if streaming and (late or (heard.done() and heard.result())):
                    log.info("relieved", successor=successor.name, late=late)
                    await relieved()
                    await successor.say(ended=True)
                    streaming = False
                await wait_event(stop, within=LOOK_S)
            if streaming:
                await asyncio.wait({heard}, timeout=MESSAGE_S)
        finally:
            heard.cancel()
            successor.close()
        return False

    @asynccontextmanager
    async def listening(self, ours: Callable[[], Problems]) -> AsyncIterator[None]:
        """Let successors ask, as long as the node is this process's."""

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Peer("", reader, writer)
            try:
                async with asyncio.timeout(MESSAGE_S):
                    asked = parsed_ask(await peer.hear())
            except (TimeoutError, ValueError) as error:
                log.warning("not a successor", why=str(error))
                peer.close()
                return
            peer.name = asked.name
            why = refusal(asked, predecessor=self._took_from, ours=ours())
            if not why and self._asked.full():
                why = "another successor has asked before"
            if why:
                await self.refuse(peer, why)
            else:
                self._asked.put_nowait(peer)

        path = self._directory / SOCKET
        try:
            server = await asyncio.start_unix_server(meet, path, limit=MAX_BYTES)
        except OSError as error:
            log.warning("no successor can take over while this process runs", socket=str(path), why=str(error))
            yield
            return
        path.chmod(0o600)
        try:
            yield
        finally:
            server.close()
            with suppress(OSError):
                path.unlink()
            while not self._asked.empty():
                self._asked.get_nowait().close()  # it asks whoever serves next

    async def relieve(self) -> None:
        """Tell the predecessor, if there is one, that the kubelet has this process's devices, and let it end its
        streams. One of a version that does not say so is given the time.
        """
        predecessor, self.predecessor = self.predecessor, None
        if predecessor is not None:
            await predecessor.say(serving=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(MESSAGE_S):
                    await predecessor.hear()
            predecessor.close()

    async def asked(self) -> Peer:
        """Wait for a successor that may have the node."""
        return await self._asked.get()

    async def refuse(self, successor: Peer, why: str) -> None:
        """Keep the node, for the time being: the successor asks again."""
        log.warning("successor refused", successor=successor.name, why=why)
        await successor.say(**asdict(TakeoverAnswer(name=self.name, refused=why)))
        successor.close()

    async def _ask(self, problems: Problems) -> bool:
        """Ask the incumbent. True: the node is this process's."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._directory / SOCKET, limit=MAX_BYTES)
        except OSError:
            return False  # it is starting, ending, or of a version that cannot hand over
        holder = self.lock.holder()[0] or "unknown"
        incumbent = Peer(holder, reader, writer)
        answer = TakeoverAnswer(name=holder, refused="it did not answer")
        try:
            with suppress(TimeoutError, ValueError):
                async with asyncio.timeout(RELEASE_S):
                    await incumbent.say(**asdict(Ask(name=self.name, problems=dict(problems))))
                    answer = parsed_answer(await incumbent.hear())
            if not answer.refused and await poll_condition(self.lock.acquire, within=TAKE_S):
                self.predecessor, self._took_from = incumbent, answer.name
                return True
        finally:
            if self.predecessor is not incumbent:
                incumbent.close()
        self._wait(f"another daemon (process {holder}) serves this node: {answer.refused or 'a third one was faster'}")
        return False

    def _wait(self, why: str) -> None:
        if self.waiting != why:
            log.warning("waiting", why=why, state=str(self._directory))
        self.waiting = why
