"""Keeps one vendor's inventory true: discovers devices, polls for events, and starts over when the driver fails."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.inventory.inventory import HealthChange, Inventory
from hami_plugin.model.device import Action, Device, Fault, Health
from hami_plugin.model.ports import Observer
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import Backoff, StuckError, WorkThread
from hami_plugin.process.log import logger
from hami_plugin.sdk import Driver, EnergyMeter, HealthEvent, LoadMeter
from hami_plugin.vendor_boundary.guard import VendorErrors

log = logger(__name__)

T = TypeVar("T")

_LOG_KEYS = frozenset({"self", "event", "vendor", "devices"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryTiming:
    """Times in seconds. ``poll`` bounds how long the driver may wait for events in one call.

    ``min_poll_interval`` is the least between two such calls that bring nothing new: a driver that does not wait spins
    nobody. A call that takes longer than ``timeout`` makes its device suspect, longer than ``hang`` unhealthy.
    ``aside`` is how long work may take that the driver is closed for.
    """

    poll: float = 1.0
    min_poll_interval: float = 0.05
    rescan: float = 30.0
    probe: float = 5.0
    links: float = 600.0
    energy: float = 10.0
    load: float = 5.0
    timeout: float = 5.0
    hang: float = 30.0
    close_timeout: float = 2.0
    aside: float = 40.0


class DiscoveryLoop:
    """One driver, one thread, one inventory."""

    def __init__(
        self,
        vendor: str,
        driver: Driver,
        inventory: Inventory,
        *,
        timing: DiscoveryTiming,
        observer: Observer,
        events: EventRecorder,
        faulty: Callable[[Device, Fault, str], None] = lambda _device, _fault, _outlook: None,
        remember: Callable[[], None] = lambda: None,
        metered: Callable[[Mapping[str, float]], None] | None = None,
        loaded: Callable[[Mapping[str, DeviceLoad]], None] | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.vendor = vendor
        self.beat = time.monotonic()
        self._driver = driver
        self._inventory = inventory
        self._timing = timing
        self._observer = observer
        self._events = events
        self._errors = VendorErrors(vendor, observer)
        self._remember = remember
        self._faulty = faulty
        self._metered = metered
        self._metered_at = float("-inf")
        self._loaded = loaded
        self._loaded_at = float("-inf")
        self._backoff = backoff or Backoff(first=1.0, cap=30.0)
        self._thread = WorkThread(f"{vendor}-driver")
        self._linked: tuple[frozenset[str], float] = (frozenset(), float("-inf"))
        self._aside: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()

    async def aside(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the driver's thread while the driver is closed, so that this process has no card open.

        The driver is asked for its devices at once afterwards. While it does not answer, the work waits; whoever
        stops waiting before its turn calls it off.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._aside.append((work, answer))
        return await answer

    async def run(self) -> None:
        """Discover and poll for ever. Every expected failure ends in the snapshot, with its reason."""
        delays = self._backoff.delays()
        while True:
            self.beat = began = time.monotonic()
            try:
                await self._serve()
            except DriverUnavailableError as error:
                # It worked until now, so this is the first of its failures. One that crashes has to work for longer
                # than the longest wait: a process that dies at each second call would be started again and again.
                steady = error.reason is not DriverReason.CRASHED or time.monotonic() - began > self._backoff.cap
                if self._inventory.found.ready and steady:
                    delays = self._backoff.delays()
                self._unavailable(error.reason, str(error))
            await asyncio.sleep(next(delays))

    def crashed(self, why: str) -> None:
        """``run`` has raised: nobody watches the driver, so nothing is offered until it runs again."""
        self._unavailable(DriverReason.FAILED, why)

    async def close(self) -> None:
        """Close the driver on its own thread, if that still answers: its last call. What goes wrong stops nobody."""
        try:
            await self._thread.call(self._driver.close, self._timing.close_timeout, last=True)
        except (StuckError, DriverUnavailableError):
            log.warning("driver left open: it does not answer", vendor=self.vendor)
        except Exception as error:  # noqa: BLE001  # the other vendors' drivers are to be closed too
            self._errors.record("driver", error)

    async def _serve(self) -> None:
        """From one discovery to the next, until the driver fails."""
        while True:
            await self._discover()
            discovered = time.monotonic()
            while True:
                self.beat = time.monotonic()
                if self._aside:
                    await self._step_aside()
                    break
                due = self._timing.probe if self._inventory.unwell else self._timing.rescan
                left = due - (time.monotonic() - discovered)
                if left <= 0:
                    break
                asked, wait = time.monotonic(), min(self._timing.poll, left)
                events = await self._call(partial(self._driver.poll, wait), waits=wait)
                if self._take(events):
                    break
                await self._meter()
                await asyncio.sleep(max(0.0, min(self._timing.min_poll_interval, wait) - (time.monotonic() - asked)))

    async def _step_aside(self) -> None:
        """Do what was asked for with the driver closed. What it raises is the caller's."""
        await self._call(self._driver.close)
        while self._aside:
            work, answer = self._aside.popleft()
            if answer.done():
                continue
            value, problem = await self._call(partial(_outcome, work), grace=self._timing.aside)
            if answer.done():
                continue
            if problem:
                answer.set_exception(problem)
            else:
                answer.set_result(value)

    async def _discover(self) -> None:
        if not self._inventory.found.ready:
            self._inventory.reloaded()
        discovery = await self._call(self._driver.discover)
        for problem in discovery.problems:
            log.warning("device without a name", vendor=self.vendor, problem=problem)
        await self._meter()
        await self._measure(frozenset(s.device.uuid for s in discovery.sightings if s.fault is None))
        was_ready = self._inventory.found.ready
        self._report(self._inventory.discovered(discovery, time.monotonic()))
        if not was_ready:
            facts = {key: value for key, value in discovery.facts.items() if key not in _LOG_KEYS}
            log.info("driver ready", vendor=self.vendor, devices=len(discovery.sightings), **facts)

    async def _meter(self) -> None:
        """Read now and then what the devices have drawn, and how much of them is in use, if anybody wants to know and
        the driver can tell.
        """
        driver, now = self._driver, time.monotonic()
        due = now - self._metered_at >= min(self._timing.energy, self._timing.rescan)
        if self._metered and due and isinstance(driver, EnergyMeter):
            self._metered_at = now
            self._metered(await self._call(driver.energy))
        if self._loaded and now - self._loaded_at >= self._timing.load and isinstance(driver, LoadMeter):
            self._loaded_at = now
            self._loaded(await self._call(driver.load))

    async def _measure(self, answering: frozenset[str]) -> None:
        """Measure the links when the set of answering devices has changed, and every now and then."""
        devices, when = self._linked
        if devices == answering and time.monotonic() - when < self._timing.links:
            return
        links = await self._call(self._driver.links)
        self._linked = (answering, time.monotonic())
        self._inventory.linked(links, answering)
        for a, b in links.asymmetric:
            log.warning("asymmetric link", vendor=self.vendor, a=a, b=b)
            self._events.node(
                "AsymmetricP2PLink", f"the link between {a} and {b} differs by direction; the worse counts"
            )
        for problem in links.problems:
            log.warning("link not measured", vendor=self.vendor, problem=problem)

    def _take(self, events: Sequence[HealthEvent]) -> bool:
        """Fold events in; True when a discovery should follow at once. A driver may repeat itself a thousand times."""
        now = time.monotonic()
        changes: list[HealthChange] = []
        for event in dict.fromkeys(events):
            news = self._inventory.event(event, now)
            write = log.info if news else log.debug
            write("driver event", vendor=self.vendor, device=event.uuid or "all", why=event.fault.message)
            changes += news
            if event.uuid and event.fault.action is Action.IGNORE:
                self._note(event.uuid, event.fault)
        if events:
            self._report(changes)
        return bool(changes)

    async def _call(self, function: Callable[[], T], *, waits: float = 0.0, grace: float = 0.0) -> T:
        """Run one driver call, however long it takes; an overdue one makes its device doubtful, then unhealthy.

        One that ``waits`` on purpose is first checked after that: a wait without events wakes the loop once. ``grace``
        is what the call may take besides.
        """
        answer = self._thread.start(function)
        begin = time.monotonic()
        since = begin + grace
        about, overdue = self._driver.busy_with, False
        every = max(1.25 * waits, min(1.0, self._timing.timeout))
        try:
            while not answer.done():
                self.beat = now = time.monotonic()
                if about != self._driver.busy_with:  # one call looks at many devices; each has its own time
                    about, since = self._driver.busy_with, now
                if now - since > self._timing.timeout:
                    self._doubt(about, now - since, first=not overdue)
                    overdue = True
                await asyncio.wait([answer], timeout=every)
            if overdue:
                log.info("driver answers again", vendor=self.vendor, seconds=round(time.monotonic() - begin, 1))
            return self._result(answer)
        finally:
            answer.cancel()  # when nobody waits any more, nobody asks for a late error either

    def _result(self, answer: asyncio.Future[T]) -> T:
        """What a driver's call came to. A mistake in one vendor's driver must not end the others."""
        try:
            return answer.result()
        except DriverUnavailableError:
            raise
        except Exception as error:
            self._errors.record("driver", error)
            raise DriverUnavailableError(DriverReason.FAILED, f"{type(error).__name__}: {error}") from error

    def _doubt(self, uuid: str | None, seconds: float, *, first: bool) -> None:
        """A call does not come back. The device it is about is suspect, then unhealthy; the others keep their state."""
        if first:
            log.warning("driver call overdue", vendor=self.vendor, device=uuid or "none", seconds=round(seconds, 1))
        if uuid is None or not self._inventory.found.ready:  # nothing is offered that could be doubted
            if seconds > self._timing.hang:
                about = f" about device {uuid}" if uuid else ""
                self._unavailable(DriverReason.HUNG, f"the driver does not answer{about}")
            return
        fault = Fault(reason=DriverReason.HUNG, message="the driver does not answer for this device")
        for device in self._inventory.found.of_card(uuid):
            if device.health is Health.HEALTHY or (device.health is Health.SUSPECT and seconds > self._timing.hang):
                self._report(self._inventory.doubted(device.uuid, fault, time.monotonic()))

    def _unavailable(self, reason: str, message: str) -> None:
        snapshot = self._inventory.found
        changed = (snapshot.ready, snapshot.reason, snapshot.message) != (False, reason, message)
        self._report(self._inventory.unavailable(reason, message, time.monotonic()))
        if changed:
            log.warning("driver unavailable", vendor=self.vendor, reason=reason, why=message)
            self._events.node(reason, f"{self.vendor}: {message}")

    def _note(self, uuid: str, fault: Fault | None = None) -> None:
        """A device has failed by what its state says, or an application on it has."""
        if known := self._inventory.condition(uuid):
            device, condition = known
            if wrong := fault or condition.fault:
                self._faulty(device, wrong, self._inventory.outlook(uuid, time.monotonic()))

    def _report(self, changes: list[HealthChange]) -> None:
        """Log what changed, write the node's Events, and note what a restart must remember."""
        for change in changes:
            device = change.device
            if change.before is None and device.health is Health.HEALTHY:
                continue
            subject = f"{device.family} device {device.number} ({device.uuid}) is {device.health}"
            why = f"{device.reason} {device.message}".strip()
            log.info("device health", device=device.uuid, health=device.health.value, why=why)
            if device.health is Health.UNHEALTHY and change.before in (Health.HEALTHY, Health.SUSPECT):
                self._note(device.uuid)
            if device.health is not Health.SUSPECT:
                reason = device.reason or "DeviceHealthy"
                self._events.node(
                    reason, f"{subject}: {why}" if why else subject, warning=device.health is not Health.HEALTHY
                )
        self._remember()
        self._observer.snapshot(self.vendor, self._inventory.shown)


def _outcome(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What it returns, or raises."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001  # raised again where the work was asked for
        return None, error
