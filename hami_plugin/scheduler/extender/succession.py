"""Takes up a changed configuration while the scheduler runs: another extender is built beside the one that decides.

Once it knows the cluster, calls wait, the former one finishes what it has begun, and the new one decides as soon as it
has seen all that was decided. So no decision is made by a mixture of two configurations, and none is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from hami_plugin.config.changes import ConfigurationChange, ConfigurationSource, ReloadRefusal, Reloads, problems_of
from hami_plugin.config.load import Configuration
from hami_plugin.errors import HamiError
from hami_plugin.process.concurrency import cancel, poll_condition
from hami_plugin.process.log import logger
from hami_plugin.scheduler.extender.extender import Extender
from hami_plugin.scheduler.extender.payloads import Json

log = logger(__name__)

KNOW_S = 60.0
"""How long a new extender may take to know the cluster."""
FINISH_S = 10.0
"""How long calls wait for the former one. kube-scheduler waits 30 s for an answer."""
AGAIN_S = 30.0
"""When a change that could not be taken up for the moment is tried again."""

LIVE = frozenset({"statusPage", "hamiMetrics"})
"""Keys of the scheduler's section that are asked for at each request."""
SWAPPED = frozenset(
    {
        "replacesDefault",
        "gpuSchedulerPolicy",
        "nodeSchedulerPolicy",
        "refuseImpossible",
        "resizeByAnnotation",
        "claimVendors",
    }
)
"""Keys of the scheduler's section that a new extender is made with. The others are of the process and its ports."""


def scheduler_change(before: Configuration, after: Configuration) -> ConfigurationChange:
    """Of the scheduler's keys and the vendors'; daemons' own keys have no effect here."""
    old, new = before.effective(), after.effective()
    sections: list[Any] = [old.get("scheduler") or {}, new.get("scheduler") or {}]
    own = [key for key in sections[1] if sections[1][key] != sections[0].get(key)]
    vendors = [f"vendors.{name}" for name in _vendors(new) if _vendors(new)[name] != _vendors(old).get(name)]
    vendors += [f"vendors.{name}" for name in _vendors(old).keys() - _vendors(new).keys()]
    swapped = [*(f"scheduler.{key}" for key in own if key in SWAPPED), *vendors]
    return ConfigurationChange(
        live=tuple(
            sorted(
                [
                    *(f"scheduler.{key}" for key in own if key in LIVE),
                    *(["logLevel"] if old.get("logLevel") != new.get("logLevel") else []),
                ]
            )
        ),
        swapped=tuple(sorted(swapped)),
        restart=tuple(
            sorted(
                [
                    *(f"scheduler.{key}" for key in own if key not in SWAPPED | LIVE),
                    *(["logFormat"] if old.get("logFormat") != new.get("logFormat") else []),
                ]
            )
        ),
    )


def _vendors(effective: Mapping[str, object]) -> Mapping[str, object]:
    found = effective.get("vendors")
    return found if isinstance(found, Mapping) else {}


class Decisions:
    """Answers kube-scheduler and the API server by the extender of the moment."""

    def __init__(self, extender: Extender) -> None:
        self._current = extender
        self._open = asyncio.Event()
        self._open.set()
        self._running = 0
        self._lives: dict[Extender, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()

    @property
    def extender(self) -> Extender:
        """The one that decides now."""
        return self._current

    async def filter(self, request: Json) -> Json:
        """As ``Extender.filter``."""
        return await self._asked(lambda current: current.filter(request))

    async def bind(self, request: Json) -> Json:
        """As ``Extender.bind``."""
        return await self._asked(lambda current: current.bind(request))

    async def review(self, request: Json) -> Json:
        """As ``Extender.review``. It decides nothing about devices, so it need not wait."""
        return await self._current.review(request)

    async def _asked(self, ask: Callable[[Extender], Awaitable[Json]]) -> Json:
        await self._open.wait()
        self._running += 1
        try:
            return await ask(self._current)
        finally:
            self._running -= 1

    def problems(self) -> tuple[str, ...]:
        """As ``Extender.problems``."""
        return self._current.problems()

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``: then what was begun is finished. Raises what an extender that decides raises."""
        self._begin(self._current)
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            while not stop.is_set():
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait(), name="changed")
                ended = {task for _stop, task in self._lives.values()}
                done, _ = await asyncio.wait({stopped, changed, *ended}, return_when=asyncio.FIRST_COMPLETED)
                await cancel(changed)
                for extender, (own, task) in list(self._lives.items()):
                    if task in done:
                        del self._lives[extender]
                        task.result()
                        if not own.is_set():
                            return
        finally:
            await cancel(stopped)
            for own, _task in self._lives.values():
                own.set()
            for _own, task in self._lives.values():
                await task
            self._lives.clear()

    def _begin(self, extender: Extender) -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(extender.run(stop), name="extender")
        self._lives[extender] = (stop, task)
        self._changed.set()

    def _end(self, extender: Extender) -> None:
        if life := self._lives.get(extender):
            life[0].set()

    async def replace(self, extender: Extender) -> str:
        """Decide by another one from now on. Answers why not; then the former one still decides."""
        self._begin(extender)
        if not await poll_condition(lambda: not extender.problems(), within=KNOW_S):
            self._end(extender)
            return f"the cluster was not known within {KNOW_S:g} s: {'; '.join(extender.problems())}"
        former = self._current
        self._open.clear()
        try:
            done = await poll_condition(lambda: not self._running and former.settled, within=FINISH_S)
            done = done and await poll_condition(lambda: extender.knows(former), within=FINISH_S)
            if not done:
                self._end(extender)
                return f"what was begun was not finished within {FINISH_S:g} s"
            self._current = extender
        finally:
            self._open.set()
        self._end(former)
        return ""


class SchedulerReloader:
    """Compares the files with what is in force every few seconds, and swaps or refuses."""

    def __init__(
        self,
        source: ConfigurationSource,
        configuration: Configuration,
        decisions: Decisions,
        make: Callable[[Configuration], Extender],
        *,
        every: float,
    ) -> None:
        self.configuration = configuration
        self.reloads = Reloads()
        self._source = source
        self._decisions = decisions
        self._make = make
        self._every = every
        self._woken = asyncio.Event()
        self._judged = ""
        self._due: float | None = None

    def again(self) -> None:
        """Judge the files anew, even if they are the same."""
        self._judged = ""
        self._woken.set()

    async def run(self) -> NoReturn:
        """For ever."""
        self._judged = await asyncio.to_thread(self._source.digest)
        while True:
            try:
                async with asyncio.timeout(self._every):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            await self._look()

    async def _look(self) -> None:
        digest = await asyncio.to_thread(self._source.digest)
        now = asyncio.get_running_loop().time()
        if digest == self._judged and (self._due is None or now < self._due):
            return
        self._due = None
        try:
            wanted = await asyncio.to_thread(self._source.read)
            if await asyncio.to_thread(self._source.digest) != digest:
                return  # it changed while it was read; the next look tells
            self._judged = digest
            refused, why = await self._judge(wanted)
        except HamiError as error:
            self._judged = digest
            refused, why = ReloadRefusal.INVALID, problems_of(error)
        if refused is None:
            self.reloads.reason = self.reloads.problem = ""
            return
        if refused is ReloadRefusal.BUSY:
            self._due = now + AGAIN_S
        self.reloads.reason, self.reloads.problem = refused.value, why
        self.reloads.refusals[refused] += 1
        log.warning("configuration refused", reason=refused.value, why=why, generation=self.reloads.generation)

    async def _judge(self, wanted: Configuration) -> tuple[ReloadRefusal | None, str]:
        found = scheduler_change(self.configuration, wanted)
        if found.restart:
            keys = ", ".join(found.restart)
            return (
                ReloadRefusal.RESTART,
                f"needs a restart of the scheduler: {keys}; nothing of this change is in force",
            )
        if found.swapped and (why := await self._decisions.replace(self._make(wanted))):
            return ReloadRefusal.BUSY, why
        self.configuration = wanted
        if not (found.swapped or found.live):
            return None, ""
        if "logLevel" in found.live:
            self._source.level(wanted.settings.log_level)
        self.reloads.generation += 1
        keys = ", ".join((*found.live, *found.swapped))
        log.info("configuration taken up", generation=self.reloads.generation, changed=keys)
        return None, ""
