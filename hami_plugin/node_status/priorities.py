"""Containers that share a device by priority: while one of a higher priority works on it, the others are held back.

As HAMi's monitor does it, with its faults left out: priorities are the pods' own requests, devices those that the
daemon gave, and a container that is held back is let go when the daemon ends, cannot reach the API server, or no longer
does this at all. A smaller number is a higher priority.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hami_plugin.allocation.identity import HeldShare, Key
from hami_plugin.errors import HamiError
from hami_plugin.model.usage import ContainerUsage, Pace, UsageState
from hami_plugin.model.views import PodView
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.process.log import logger

log = logger(__name__)

OnDisk = Callable[[Callable[[], bool]], Awaitable[bool]]
LOWEST = 15
DEFAULT = 1
"""Of a container that asks for none, as HAMi-core has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A container that has devices, and whether it works on them."""

    key: Key
    devices: Collection[str]
    priority: int
    active: bool


def paces(runners: Sequence[Runner]) -> Mapping[Key, Pace]:
    """Who waits for whom. Devices of one UUID are one device, whoever has it."""
    working: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for one in runners:
        for uuid in one.devices if one.active else ():
            working[uuid][one.priority] += 1
    return {one.key: _pace(one, [working[uuid] for uuid in one.devices if uuid in working]) for one in runners}


def _pace(one: Runner, working: Iterable[Counter[int]]) -> Pace:
    pace = Pace.FREE
    for counted in working:
        if min(counted) < one.priority:
            return Pace.HELD_BACK
        if counted[one.priority] > 1:
            pace = Pace.LIMITED
    return pace


def priority_of(pod: PodView | None, container: str, resource: str) -> int | None:
    """What a container asks for, from 0 to 15; None where its pod is not known."""
    view = pod.container(container) if pod else None
    if view is None:
        return None
    if not resource or (resource not in view.limits and resource not in view.requests):
        return DEFAULT
    return max(0, min(view.amount(resource), LOWEST))


class Priorities:
    """Decides after each reading of the containers' usage. ``held_back`` are those that wait now.

    ``write`` sets one container's pace. ``marker`` is a file that says that somebody may be held back: a daemon that
    was killed leaves it to the next one, which lets everybody go if it is not to decide itself (``wanted``).
    ``on_disk`` makes a call that may hang.
    """

    def __init__(
        self,
        pod: Callable[[str], PodView | None],
        write: Callable[[FamilySource, HeldShare, Pace], Awaitable[None]],
        marker: Path,
        *,
        on_disk: OnDisk,
        wanted: bool,
    ) -> None:
        self.held_back: Mapping[Key, HeldShare] = {}
        self._pod = pod
        self._write = write
        self._marker = marker
        self._on_disk = on_disk
        self._wanted = wanted
        self._marked: bool | None = None
        self._decided: dict[Key, tuple[FamilySource, HeldShare]] = {}

    async def turn(
        self, readings: Iterable[tuple[FamilySource, HeldShare, ContainerUsage]], *, connected: bool
    ) -> None:
        """``connected``: what pods there are is known."""
        if self._marked is None:
            with suppress(OSError):
                self._marked = await self._on_disk(self._marker.exists)
        paced = [one for one in readings if one[0].family.node.pace]
        there = [(source, held, usage) for source, held, usage in paced if usage.state is UsageState.OK]
        if not self._wanted or not connected:
            if self._decided or self._marked:
                whole = all(usage.state is not UsageState.UNREADABLE for _source, _held, usage in paced)
                await self._release([(source, held) for source, held, _usage in there], whole=whole)
            return
        runners = [
            Runner(
                key=held.key,
                devices=frozenset(grant.uuid for grant in held.grants),
                priority=priority,
                active=usage.active,
            )
            for source, held, usage in there
            if (priority := priority_of(self._pod(held.uid), held.container, source.family.resources.priority))
            is not None
        ]
        if runners:
            await self._mark(True)
        decided = paces(runners)
        self._decided = {held.key: (source, held) for source, held, _usage in there if held.key in decided}
        for key, (source, held) in self._decided.items():
            await self._set(source, held, decided[key])
        self.held_back = {key: self._decided[key][1] for key, pace in decided.items() if pace is Pace.HELD_BACK}

    async def release(self) -> None:
        """Nobody decides any more."""
        if self._decided:
            await self._release(list(self._decided.values()), whole=True)

    async def _release(self, everybody: Sequence[tuple[FamilySource, HeldShare]], *, whole: bool) -> None:
        """``whole``: there are no others, whom nobody can read at the moment."""
        done = [await self._set(source, held, Pace.RELEASED) for source, held in everybody]
        self._decided, self.held_back = {}, {}
        if whole and all(done):
            await self._mark(False)

    async def _mark(self, held: bool) -> None:
        if self._marked is not held:
            change = partial(self._marker.touch, 0o600) if held else partial(self._marker.unlink, missing_ok=True)
            with suppress(OSError):  # the next turn tries again
                await self._on_disk(lambda: bool(change()))
                self._marked = held

    async def _set(self, source: FamilySource, held: HeldShare, pace: Pace) -> bool:
        if (pace is Pace.HELD_BACK) != (held.key in self.held_back):
            log.info(
                "container waits for others" if pace is Pace.HELD_BACK else "container goes on",
                pod=f"{held.namespace}/{held.pod}",
                container=held.container,
            )
        try:
            await self._write(source, held, pace)
        except HamiError as error:
            log.warning("priority not set", pod=f"{held.namespace}/{held.pod}", why=str(error))
            return False
        return True
