"""Keeps a family's cards in the mode in which they can be cut, or out of it, where the vendor's settings say so.

A card is switched only while nobody has it, never inside an Allocate, and with the discovery's driver closed. The
journal has the attempt before the call; what a killed daemon has begun is read from the card. It is
level-triggered, and never takes a switch back that waits for the card's reset.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.model.device import Snapshot
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.partitions.journal import ModeAttempt, ModeJournal
from hami_plugin.process.concurrency import StuckError, Watched, WorkThread
from hami_plugin.process.log import logger
from hami_plugin.sdk.family import ModeSide
from hami_plugin.sdk.partitions import Mode, ModeDriver

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeTiming:
    """All in seconds.

    ``look``: between two looks at cards that wait. ``call``: for the driver to tell a mode. ``switch``: for a switch,
    its turn included. ``first``, ``cap``: from a failed attempt to the next one. ``settle``: from an attempt that a
    killed daemon has left to the next one.
    """

    look: float = 10.0
    call: float = 10.0
    switch: float = 90.0
    first: float = 60.0
    cap: float = 3600.0
    settle: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUsers:
    """Who has a card. ``of`` are its pods, and ``current`` is whether all of them are known."""

    of: Callable[[str], Sequence[str]]
    current: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMode:
    """A card whose mode the daemon sets, as commands show it. ``waits`` is what a switch waits for, empty for none."""

    card: str
    mode: str
    on: bool
    waits: str = ""


Aside = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]
"""Runs work while nothing else in this process has the cards open."""


def switch_delay(attempt: ModeAttempt | None, *, on: bool, now: float, timing: ModeTiming) -> float:
    """Seconds until a card may be switched (again). One that was switched the other way has not been tried."""
    if attempt is None or attempt.on is not on:
        return 0.0
    if attempt.under_way:
        wait = timing.settle
    elif attempt.failures:
        wait = min(timing.cap, timing.first * 2 ** min(attempt.failures - 1, 16))
    else:
        wait = timing.first  # it was switched, and is not in that mode any more: whoever did that is not fought with
    return min(wait, max(0.0, attempt.at + wait - now))


def switch_obstacle(mode: Mode) -> str:
    """What the card itself has against a switch; empty for nothing."""
    if not mode.capable:
        return "the card has no such mode"
    if mode.current != mode.pending:
        direction = "on" if mode.pending else "off"
        return f"it is switched {direction} at the card's next reset: reset the card, or restart the machine"
    return mode.problem


class ModeReconciler:
    """One family's. ``problem`` is empty while the journal can be written."""

    def __init__(
        self,
        resource: str,
        side: ModeSide,
        driver: ModeDriver,
        journal: ModeJournal,
        *,
        snapshot: Watched[Snapshot],
        users: CardUsers,
        aside: Aside,
        events: EventRecorder,
        ended: Callable[[], None] = lambda: None,
        timing: ModeTiming | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.resource = resource
        self.problem = ""
        self._side = side
        self._driver = driver
        self._journal = journal
        self._snapshot = snapshot
        self._users = users
        self._aside = aside
        self._events = events
        self._ended = ended
        self._timing = timing or ModeTiming()
        self._clock = clock
        self._thread = WorkThread(f"modes of {resource}")
        self._loaded = False
        self._shown: Mapping[str, CardMode] = {}
        self._reported: dict[str, str] = {}

    async def run(self) -> None:
        """Look at the cards whenever they change, and while one waits, until cancelled."""
        if not self._loaded:
            for why in await self._thread.call(self._journal.load, self._timing.call):
                log.warning("journal of modes is damaged", path=str(self._journal.path), problem=why)
            self._loaded = True
        while not self._snapshot.closed:
            seen = self._snapshot.version
            await self._turn()
            waiting = any(one.waits for one in self._shown.values())
            await self._snapshot.changed(seen, timeout=self._timing.look if waiting else None)

    async def close(self) -> None:
        """Close the journal and the driver."""
        for work, last in ((self._journal.close, False), (self._ended, True)):
            try:
                await self._thread.call(work, self._timing.call, last=last)
            except (StuckError, HamiError, OSError) as error:
                log.warning("modes left open", resource=self.resource, problem=str(error))

    def shown(self) -> Iterator[CardMode]:
        """The cards whose mode is set here."""
        yield from self._shown.values()

    async def _turn(self) -> None:
        shown: dict[str, CardMode] = {}
        for device in self._snapshot.value.devices:
            on = self._side.wanted(device)
            if on is None:
                continue
            waits = "" if device.health.offered else await self._kept(device.uuid, on=on)
            shown[device.uuid] = CardMode(card=device.uuid, mode=self._side.name, on=on, waits=waits)
        self._shown = shown
        for card in [card for card in self._reported if not (card in shown and shown[card].waits)]:
            del self._reported[card]

    async def _kept(self, card: str, *, on: bool) -> str:
        """Switch the card if it has to be and may be; what that waits for otherwise."""
        if why := self._in_the_way(card):
            return why
        try:
            mode = await self._thread.call(partial(self._driver.mode, card), self._timing.call)
        except (HamiError, StuckError) as error:
            return f"the driver does not tell the mode: {error}"
        if mode.current == mode.pending == on:
            return ""
        if why := switch_obstacle(mode):
            if mode.current != mode.pending:
                self._tell(card, "ModeWaitsForReset", why)
            return why
        last = self._journal.attempts.get(card)
        left = switch_delay(last, on=on, now=self._clock(), timing=self._timing)
        if left:
            return f"it is tried again in {left:.0f} s: {last.problem if last else ''}".rstrip(": ")
        return self._in_the_way(card) or await self._switched(card, last, on=on)

    def _in_the_way(self, card: str) -> str:
        if not self._users.current():
            return "it is not known which pods live"
        users = self._users.of(card)
        return f"pods have the card: {', '.join(users[:3])}{' and others' if len(users) > 3 else ''}" if users else ""

    async def _switched(self, card: str, last: ModeAttempt | None, *, on: bool) -> str:
        failures = last.failures if last and last.on is on else 0
        attempt = ModeAttempt(
            card=card, on=on, boot=self._journal.boot, at=self._clock(), failures=failures, under_way=True
        )
        if why := await self._noted(attempt):
            return why
        problem = ""
        try:
            async with asyncio.timeout(self._timing.switch):
                await self._aside(partial(self._driver.switch, card, on=on))
        except TimeoutError:
            problem = f"the driver has not done it within {self._timing.switch:.0f} s"
        except HamiError as error:
            problem = str(error)
        failures = failures + 1 if problem else 0
        done = replace(attempt, at=self._clock(), failures=failures, problem=problem, under_way=False)
        unwritten = await self._noted(done)
        if problem:
            self._tell(card, "ModeNotSwitched", problem)
            return problem
        where = f"{self._side.name} mode of {card} is switched {'on' if on else 'off'}"
        log.info("mode", what=where)
        self._events.node("ModeSwitched", where, warning=False)
        return unwritten

    async def _noted(self, attempt: ModeAttempt) -> str:
        """Write it down; why that failed."""
        try:
            await self._thread.call(partial(self._journal.put, attempt), self._timing.call)
        except (OSError, StuckError) as error:
            self.problem = f"the journal of modes cannot be written: {error}"
            return self.problem
        self.problem = ""
        return ""

    def _tell(self, card: str, reason: str, why: str) -> None:
        """An Event, once for as long as it is the same."""
        if self._reported.get(card) != why:
            self._reported[card] = why
            self._events.node(reason, f"{self._side.name} mode of {card}: {why}")
