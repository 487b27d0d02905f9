"""A vendor's driver and families as the daemon may rely on them: what fails is an error, and every answer is checked.

All that vendors share calls them through here. An vendor raised an unexpected error becomes a ``VendorError``, and is
handled as any other ``HamiError``: one Allocate fails, or one vendor's annotations do. Of a driver, a device with a
usable name stays, unhealthy and with the reason; one without is a problem. An answer of the wrong type raises
``TypeError`` or ``ValueError``.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from cdi.spec import ContainerEdits
from hami_plugin.errors import DriverReason, DriverUnavailableError, HamiError, VendorError
from hami_plugin.model.device import MAX_DEVICES, Action, Device, Discovery, Fault, Link, Links, Sighting
from hami_plugin.model.placement import Grant
from hami_plugin.model.ports import NullObserver, Observer
from hami_plugin.model.usage import MAX_PROCESSES, DeviceLoad, DeviceProcess, ProcessOwner
from hami_plugin.process.concurrency import Backoff, BoundedCalls, StuckError, settable_error
from hami_plugin.process.log import logger
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.protocol.pods import one_id
from hami_plugin.sdk import (
    Driver,
    Family,
    HealthEvent,
    Injection,
    Leftovers,
    Mode,
    ModeDriver,
    NodeSide,
    Partition,
    PartitionDriver,
    PartitionSide,
    Placement,
    Profile,
    Reservation,
    Step,
    Units,
)
from hami_plugin.sdk.family import always, anywhere, nothing, nothing_missing, nothing_more, one, percent, unlabelled

log = logger(__name__)

AGAIN_S = 600.0
"""After how long the same error is logged once more."""


class VendorErrors:
    """One vendor's. ``clock`` gives monotonic seconds."""

    def __init__(
        self, vendor: str, observer: Observer | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.vendor = vendor
        self._observer = observer or NullObserver()
        self._clock = clock
        self._logged: dict[str, tuple[str, float]] = {}

    def record(self, step: str, error: Exception) -> VendorError:
        """Count it, log it with its traceback if that is new, and answer with what users may read of it."""
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        text = " ".join(text.split())[:500]
        self._observer.mistake(self.vendor, step)
        logged, when = self._logged.get(step, ("", 0.0))
        if logged != text or self._clock() - when >= AGAIN_S:
            self._logged[step] = (text, self._clock())
            log.error("vendor raised an unexpected error", vendor=self.vendor, step=step, why=text, exc_info=error)
        return VendorError(self.vendor, step, text)


MAX_SHARES = 100_000
"""Parts of one device. The kubelet reads no list of more ids than about this, of all devices together."""
MAX_CORES = 2**63 - 1
P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")
Check = Callable[..., str]
"""Is given an answer and what was asked, and says what is wrong with the answer; empty where nothing is."""


OURS = (always, anywhere, nothing, nothing_missing, nothing_more, one, one_id, percent, unlabelled)
"""What the SDK answers where a vendor says nothing: code of ours, which needs no guard."""


class Guard:
    """Makes one vendor's functions safe to call. What is part of the design, ``HamiError``, passes as it is.

    A function that is handed the host (``HostFiles``) may look at files and devices, and so may not come back: whoever
    calls one does so within ``ask``, on the vendor's thread and within a deadline. All others only count. They are
    asked for every pod that waits, and a change of threads for each would cost an Allocate many times what it takes.
    """

    def __init__(self, calls: BoundedCalls, errors: VendorErrors) -> None:
        self._calls = calls
        self._errors = errors

    async def ask(self, step: str, function: Callable[[], T]) -> T:
        """What ``function`` returns, called on the vendor's thread. ``VendorError`` when it takes too long."""
        try:
            return await self._calls.ask(function)
        except StuckError as error:
            raise self._errors.record(step, error) from error

    def prepares(self, step: str, function: Callable[P, T], check: Check) -> Callable[P, T]:
        """As ``counts``, before a container starts. A file may be missing, so ``OSError`` passes."""
        return self.counts(step, function, check, passes=OSError)

    def counts(
        self, step: str, function: Callable[P, T], check: Check, *, passes: type[Exception] = HamiError
    ) -> Callable[P, T]:
        """The function with its errors named and counted, as are answers that ``check`` finds wrong."""
        if any(function is ours for ours in OURS):
            return function

        def guarded(*given: P.args, **more: P.kwargs) -> T:
            try:
                answer = function(*given, **more)
            except (HamiError, passes):
                raise
            except BaseException as error:  # noqa: BLE001  # an exit is an error like any other
                problem = settable_error(error)
                raise self._errors.record(step, problem) from problem
            wrong = check(answer, *given, **more)
            if wrong:
                problem = ValueError(wrong)
                raise self._errors.record(step, problem) from problem
            return answer

        return guarded


def guard_family(family: Family, guard: Guard) -> Family:
    """The family, with every function guarded that counts, or prepares the host for a container.

    The description of CDI specs is not: it has a thread and a deadline of its own (``node.specs``).
    """
    resources, node = family.resources, family.node
    return replace(
        family,
        resources=replace(
            resources,
            ids=guard.counts("ids", resources.ids, _count),
            units=tuple(_units(one, guard) for one in resources.units),
        ),
        node=_node(node, guard),
    )


def _node(node: NodeSide, guard: Guard) -> NodeSide:
    return replace(
        node,
        replicas=guard.counts("replicas", node.replicas, _count),
        register=guard.counts("register", node.register, _entry),
        encode=guard.counts("encode", node.encode, partial(_kind, str)) if node.encode else None,
        announce=guard.counts("announce", node.announce, partial(_kind, Mapping)),
        labels=guard.counts("labels", node.labels, partial(_kind, Mapping)),
        inject=guard.prepares("inject", node.inject, partial(_kind, Injection)),
        lend=guard.prepares("lend", node.lend, partial(_kind, ContainerEdits)) if node.lend else None,
        limited=guard.counts("limited", node.limited, partial(_kind, bool)),
        host_problem=guard.counts("host problem", node.host_problem, partial(_kind, str)),
        leftovers=guard.counts("leftovers", node.leftovers, partial(_kind, Leftovers)),
        folders=guard.counts("folders", node.folders, partial(_kind, Path)) if node.folders else None,
        place=guard.counts("place", node.place, _place),
        every_core=guard.counts("every core", node.every_core, partial(_number, most=MAX_CORES)),
        device_edits=guard.prepares("device edits", node.device_edits, partial(_kind, ContainerEdits)),
        shared_edits=guard.prepares("shared edits", node.shared_edits, partial(_kind, ContainerEdits)),
        partitions=_partition_side(node.partitions, guard) if node.partitions else None,
        modes=replace(node.modes, wanted=guard.counts("mode", node.modes.wanted, _wish)) if node.modes else None,
    )


def _wish(answer: object, *_asked: object) -> str:
    return "" if answer in (True, False, None) else f"{answer!r:.64} is no wish for a mode"


def _partition_side(side: PartitionSide, guard: Guard) -> PartitionSide:
    return replace(
        side,
        reserved=guard.counts("partitions reserved", side.reserved, _reservations),
        wanted=guard.counts("partitions wanted", side.wanted, _reservations),
        inject=guard.prepares("inject", side.inject, partial(_kind, Injection)),
        names=guard.counts("partitions named", side.names, partial(_kind, Mapping)),
        registered=guard.counts("register", side.registered, partial(_kind, DeviceInfo)),
        allowed=guard.counts("allowed", side.allowed, partial(_kind, Sequence)),
        without=guard.counts("register", side.without, partial(_kind, DeviceInfo)),
        announce=guard.counts("announce", side.announce, partial(_kind, Mapping)),
    )


def _reservations(answer: object, *_asked: object) -> str:
    fits = isinstance(answer, list | tuple) and all(isinstance(one, Reservation) for one in answer)
    return "" if fits else f"{answer!r:.64} are no reservations"


def _units(units: Units, guard: Guard) -> Units:
    return replace(
        units,
        of_device=guard.counts("replicas", units.of_device, _count),
        of_grant=guard.counts("ids", units.of_grant, _count),
    )


def _number(answer: object, *_asked: object, most: int) -> str:
    fits = type(answer) is int and 0 <= answer <= most
    return "" if fits else f"{answer!r:.64} is no whole number from 0 to {most}"


_count = partial(_number, most=MAX_SHARES)


def _kind(kind: type, answer: object, *_asked: object) -> str:
    return "" if isinstance(answer, kind) else f"{answer!r:.64} is no {kind.__name__}"


def _place(answer: object, grant: Grant, *_asked: object) -> str:
    if not isinstance(answer, Grant) or answer.uuid != grant.uuid:
        return f"{answer!r:.200} is no grant of {grant.uuid}"
    return ""


def _entry(answer: object, device: Device, _legacy: bool) -> str:
    if not isinstance(answer, DeviceInfo):
        return f"{answer!r:.64} is no DeviceInfo"
    odd = [name for name, kind in _ENTRY.items() if type(getattr(answer, name)) is not kind]
    if odd:
        return f"of {device.uuid} the {odd[0]} is {getattr(answer, odd[0])!r:.64}"
    wrong = _count(answer.count)
    return f"of {device.uuid} the count is {wrong}" if wrong else ""


_ENTRY: Mapping[str, type] = {
    **dict.fromkeys(("id", "type", "mode", "vendor"), str),
    **dict.fromkeys(("index", "count", "devmem", "devcore", "numa"), int),
    "health": bool,
}


MAX_EVENTS = 2_000
MAX_LETTERS = 320
"""Of a device's name, which may have its node's in it, of up to 253."""
MAX_NUMBER = 2**31 - 1
IMPLAUSIBLE = "Implausible"
"""Reason of a device that its driver describes as no device can be."""
TWICE = "DuplicateUuid"

_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}")
_SHOWN = 64


class CheckedDriver:
    """A ``Driver`` made of another, which ``opening`` opens at the first ``discover``.

    So an opening that fails or hangs is one of the driver's failures. Answers are read to their end here, on the
    driver's thread: a generator has run out, and whatever it raises is raised by the call.
    """

    def __init__(self, opening: Callable[[], Driver]) -> None:
        self._opening = opening
        self._driver: Driver | None = None
        self._last: Discovery | None = None
        self._complained = False
        self._unmetered: set[str] = set()

    @property
    def busy_with(self) -> str | None:
        """As the driver reports it; None where it fails to."""
        try:
            about = self._driver.busy_with if self._driver else None
            return None if about is None else require_type(str, about)
        except Exception:
            if not self._complained:
                log.exception("driver failed to report what it is busy with")
            self._complained = True
            return None

    def discover(self) -> Discovery:
        if self._driver is None:
            self._driver = self._opening()
        found = check_discovery(self._driver.discover())
        if self._last == found:  # whoever follows the devices compares them: what fails to be compared, fails here
            return self._last
        self._last = found
        return found

    def links(self) -> Links:
        return plausible_links(self._driver.links()) if self._driver else Links()

    def energy(self) -> Mapping[str, float]:
        """Joules by card; nothing where the driver counts none, or fails to. No device depends on it."""
        return self._metered("energy", _joules)

    def load(self) -> Mapping[str, DeviceLoad]:
        """How much of each device is in use; nothing where the driver does not tell, or fails to."""
        return self._metered("load", _loads)

    def _metered(self, what: str, believed: Callable[[Any], Mapping[str, T]]) -> Mapping[str, T]:
        ask = getattr(self._driver, what, None)
        if ask is None:
            return {}
        try:
            return believed(ask())
        except DriverUnavailableError:
            raise
        except Exception:
            if what not in self._unmetered:
                log.exception("driver failed to tell what its devices draw or use", what=what)
            self._unmetered.add(what)
            return {}

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        return [_event(one) for one in bounded_list(self._driver.poll(timeout), MAX_EVENTS)] if self._driver else ()

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()


class _Checked(Generic[D]):
    """A driver that ``opening`` opens with the first call, in a process of its own if ``isolated``. Called from many
    threads.
    """

    def __init__(self, opening: Callable[[], D], errors: VendorErrors, *, isolated: bool = False) -> None:
        self._opening = partial(self._isolated, opening) if isolated else opening
        self._errors = errors
        self._turn = threading.Lock()
        self._driver: D | None = None

    def close(self) -> None:
        """End what the driver has of its own, such as a process."""
        with self._turn:
            close = getattr(self._driver, "close", None)
        if close:
            close()

    def _isolated(self, opening: Callable[[], D]) -> D:
        raise NotImplementedError

    def _checked(self, ask: Callable[[D], T], step: str) -> T:
        """``VendorError`` for what is not part of the design."""
        try:
            with self._turn:
                if self._driver is None:
                    self._driver = self._opening()
            return ask(self._driver)
        except HamiError:
            raise
        except Exception as error:
            raise self._errors.record(step, error) from error


class CheckedPartitionDriver(_Checked[PartitionDriver]):
    """A ``PartitionDriver`` made of another."""

    def _isolated(self, opening: Callable[[], PartitionDriver]) -> PartitionDriver:
        from hami_plugin.vendor_boundary.isolated_driver import (  # noqa: PLC0415  # with multiprocessing; few vendors need it
            IsolatedPartitionDriver,
        )

        return IsolatedPartitionDriver(opening)

    def profiles(self, card: str) -> tuple[Profile, ...]:
        return self._ask(
            lambda driver: tuple(require_type(Profile, one) for one in bounded_list(driver.profiles(card)))
        )

    def partitions(self, card: str = "") -> tuple[Partition, ...]:
        return self._ask(lambda driver: tuple(map(_partition, bounded_list(driver.partitions(card), MAX_SHARES))))

    def create(self, card: str, profile: str, placement: Placement, step: Step) -> Partition:
        return self._ask(lambda driver: _partition(driver.create(card, profile, placement, step)))

    def destroy(self, partition: Partition, step: Step) -> None:
        self._ask(lambda driver: driver.destroy(partition, step))

    def users(self, partition: Partition) -> Sequence[int]:
        return self._ask(lambda driver: [require_type(int, one) for one in bounded_list(driver.users(partition))])

    def _ask(self, ask: Callable[[PartitionDriver], T]) -> T:
        return self._checked(ask, "partitions")


class CheckedModeDriver(_Checked[ModeDriver]):
    """A ``ModeDriver`` made of another."""

    def _isolated(self, opening: Callable[[], ModeDriver]) -> ModeDriver:
        from hami_plugin.vendor_boundary.isolated_driver import IsolatedModeDriver  # noqa: PLC0415  # as above

        return IsolatedModeDriver(opening)

    def mode(self, card: str) -> Mode:
        return self._checked(lambda driver: require_type(Mode, driver.mode(card)), "modes")

    def switch(self, card: str, *, on: bool) -> None:
        self._checked(lambda driver: driver.switch(card, on=on), "modes")


def _partition(reported: object) -> Partition:
    """ValueError or TypeError for what no journal can hold."""
    found = require_type(Partition, reported)
    require_type(Placement, found.placement)
    for text in (found.card, found.profile, found.uuid):
        if not _text(text):
            raise ValueError(f"a partition is named {text!r:.{_SHOWN}}")
    numbers = (found.placement.start, found.placement.size, *dict(found.ids).values())
    if not all(_whole(0)(number) for number in numbers):
        raise ValueError(f"a partition has the numbers {numbers!r:.{_SHOWN}}")
    return found


def _joules(reported: Any) -> Mapping[str, float]:
    """What is no amount of energy is left out."""
    pairs = bounded_list(dict(reported).items())
    return {
        uuid: float(amount)
        for uuid, amount in pairs
        if _text(uuid) and isinstance(amount, int | float) and math.isfinite(amount) and amount >= 0
    }


def _loads(reported: Any) -> Mapping[str, DeviceLoad]:
    """What cannot be is left out."""
    return {
        uuid: DeviceLoad(
            memory_used=_within(one.memory_used, 1 << 63),
            utilization=_within(one.utilization, 100),
            memory_utilization=_within(one.memory_utilization, 100),
            processes=None if one.processes is None else tuple(_processes(one.processes)),
        )
        for uuid, one in bounded_list(dict(reported).items())
        if _text(uuid) and isinstance(one, DeviceLoad)
    }


def _processes(reported: Any) -> Iterator[DeviceProcess]:
    """Without those that cannot be."""
    for listed in islice(tuple(reported), MAX_PROCESSES):
        process = require_type(DeviceProcess, listed)
        if _within(process.pid, 1 << 31):
            owner = require_type(ProcessOwner, process.owner) if process.owner else None
            yield replace(process, memory_used=_within(process.memory_used, 1 << 63), owner=owner)


def _within(amount: object, most: int) -> int | None:
    return amount if type(amount) is int and 0 <= amount <= most else None


def _event(reported: object) -> HealthEvent:
    event = require_type(HealthEvent, reported)
    if event.uuid is not None:
        require_type(str, event.uuid)
    require_type(bool, event.confirmed)
    return replace(event, fault=plausible_fault(event.fault))


def check_discovery(found: object) -> Discovery:
    """``found`` with what is wrong in it as faults and problems. Ends every iteration that the driver left open."""
    answer = require_type(Discovery, found)
    problems = [_one_line(problem) for problem in bounded_list(answer.problems)]
    sightings: dict[str, Sighting] = {}
    for listed in bounded_list(answer.sightings):
        sighting = require_type(Sighting, listed)
        device = require_type(Device, sighting.device)
        unnamed = _unnamed(device.uuid)
        if unnamed:
            problems.append(f"the driver reports a device without a usable name: {unnamed}")
        elif device.uuid in sightings:
            fault = Fault(reason=TWICE, message=f"the driver reports {device.uuid} twice")
            sightings[device.uuid] = replace(sightings[device.uuid], fault=fault)
        else:
            sightings[device.uuid] = _sighted(device, sighting.fault)
    if problems and not sightings and answer.sightings:
        raise DriverUnavailableError(DriverReason.FAILED, "; ".join(problems))
    facts = {str(key): _one_line(value) for key, value in dict(answer.facts).items()}
    divided = frozenset(require_type(str, uuid) for uuid in bounded_list(answer.divided))
    return Discovery(sightings=tuple(sightings.values()), problems=tuple(problems), facts=facts, divided=divided)


def plausible_links(found: object) -> Links:
    """``found`` if it is made of pairs of names, each with a link."""
    answer = require_type(Links, found)
    pairs = {_pair(pair): _link(link) for pair, link in dict(answer.pairs).items()}
    return Links(
        pairs=pairs,
        asymmetric=tuple(_pair(pair) for pair in bounded_list(answer.asymmetric, MAX_DEVICES**2)),
        problems=tuple(_one_line(problem) for problem in bounded_list(answer.problems, MAX_DEVICES**2)),
    )


def plausible_fault(fault: object) -> Fault:
    """``fault`` as metrics and Events can tell it; where it is none, a fault that says so."""
    if not isinstance(fault, Fault):
        return Fault(reason=IMPLAUSIBLE, message=f"the driver reports {fault!r:.{_SHOWN}} where a fault is expected")
    reason = fault.reason if isinstance(fault.reason, str) and _REASON.fullmatch(fault.reason) else IMPLAUSIBLE
    action = fault.action if isinstance(fault.action, Action) else Action.DRAIN
    return Fault(reason=reason, message=_one_line(fault.message), action=action)


def _sighted(device: Device, fault: object) -> Sighting:
    """The device with all that cannot be left out of it, and the first such thing as its fault."""
    wrong: dict[str, str] = {}
    plain: dict[str, object] = {}
    for name, (fits, instead) in _FIELDS.items():
        value = getattr(device, name)
        if not fits(value):
            wrong[name], plain[name] = f"{value!r:.{_SHOWN}}", instead
    if wrong:
        text = " and ".join(f"{name} {value}" for name, value in wrong.items())
        return Sighting(
            device=replace(device, **plain),  # type: ignore[arg-type]  # each field has its own type, as given below
            fault=Fault(reason=IMPLAUSIBLE, message=f"the driver reports {text}"),
        )
    return Sighting(device=device, fault=None if fault is None else plausible_fault(fault))


def _whole(low: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and low <= value <= MAX_NUMBER


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_LETTERS and value.isprintable()


def _maybe(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


_FIELDS: Mapping[str, tuple[Callable[[object], bool], object]] = {
    "family": (_text, ""),
    "index": (_whole(0), MAX_NUMBER),
    "model": (_text, ""),
    "memory": (_whole(0), 0),
    "cores": (_whole(0), 0),
    "minor": (_maybe(_whole(0)), None),
    "pci": (_text, ""),
    "numa": (_maybe(_whole(-1)), None),
    "mode": (_text, ""),
    "place": (_text, ""),
    "part": (_whole(0), MAX_NUMBER),
}


def _unnamed(uuid: object) -> str:
    """Why this cannot stand in annotations, ids and environment variables; empty when it can.

    Both of HAMi's formats separate by comma, colon and semicolon, and have no way to write one of these in a name.
    """
    if not isinstance(uuid, str) or not 0 < len(uuid) <= MAX_LETTERS:
        return f"{uuid!r:.{_SHOWN}} is no text of 1 to {MAX_LETTERS} characters"
    odd = [char for char in uuid if not char.isprintable() or char.isspace() or char in ",:;"]
    return f"{uuid!r:.{_SHOWN}} contains {odd[0]!r}" if odd else ""


def _pair(pair: object) -> tuple[str, str]:
    a, b = bounded_list(require_type(tuple, pair))
    return require_type(str, a), require_type(str, b)


def _link(link: object) -> Link:
    answer = require_type(Link, link)
    if not _whole(-MAX_NUMBER)(answer.score):
        raise ValueError(f"a link's score is {answer.score!r:.{_SHOWN}}")
    return answer


def _one_line(text: object) -> str:
    """One line, whatever it was."""
    return " ".join(str(text).split())[:1000]


def bounded_list(items: Iterable[T], most: int = MAX_DEVICES) -> list[T]:
    """All of ``items``; ValueError when they are more than ``most``, or never end."""
    found = list(islice(items, most + 1))
    if len(found) > most:
        raise ValueError(f"the driver reports more than {most} at once")
    return found


def require_type(kind: type[T], value: object) -> T:
    """``value``, if it is a ``kind``; TypeError otherwise."""
    if not isinstance(value, kind):
        raise TypeError(f"the driver reports {value!r:.{_SHOWN}} where a {kind.__name__} is expected")
    return value


class VendorSupervisor:
    """One vendor's. A loop that has run for ``backoff.cap`` seconds since it failed has recovered."""

    def __init__(self, errors: VendorErrors, backoff: Backoff | None = None) -> None:
        self._errors = errors
        self._backoff = backoff or Backoff(first=1.0, cap=30.0)
        self._wrong: dict[str, str] = {}

    @property
    def vendor(self) -> str:
        return self._errors.vendor

    @property
    def wrong(self) -> Mapping[str, str]:
        """Loops that have failed lately, with the reason."""
        return self._wrong

    def note(self, name: str, why: str) -> None:
        """Something of the vendor's that cannot begin again is wrong, for as long as the process lives."""
        self._wrong[name] = why

    async def keep(
        self,
        name: str,
        step: str,
        run: Callable[[], Coroutine[None, None, None]],
        crashed: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """Run until ``run`` returns. When it raises, call ``crashed`` with the reason, and begin anew after a while."""
        loop = asyncio.get_running_loop()
        delays = self._backoff.delays()
        while True:
            began = loop.time()
            well = loop.call_later(self._backoff.cap, self._wrong.pop, name, None)
            try:
                await run()
            except Exception as error:  # noqa: BLE001  # the line between one vendor and all others
                if loop.time() - began > self._backoff.cap:
                    delays = self._backoff.delays()
                self._wrong[name] = why = self._reason(name, step, error)
                self._notify(crashed, why)
            else:
                return
            finally:
                well.cancel()
            await asyncio.sleep(next(delays))

    def _reason(self, name: str, step: str, error: Exception) -> str:
        if not isinstance(error, HamiError):
            return self._errors.record(step, error).message
        if self._wrong.get(name) != str(error):
            log.warning("not served", vendor=self.vendor, what=name, why=str(error))
        return str(error)

    def _notify(self, crashed: Callable[[str], None], why: str) -> None:
        try:
            crashed(why)
        except HamiError as error:
            log.warning("vendor's devices not marked unhealthy", vendor=self.vendor, why=str(error))
        except Exception as error:  # noqa: BLE001  # the vendor's own objects may fail to be compared
            self._errors.record("withdrawal", error)
