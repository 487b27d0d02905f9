"""A vendor's driver as the daemon may rely on it: opened on its own thread, each answer read to its end and checked.

A device with a usable name stays, unhealthy and with the reason; one without is a problem in words. An answer of the
wrong type raises ``TypeError`` or ``ValueError``: that is an error in the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.log import logger
from hami_plugin.model.device import MAX_DEVICES, Action, Device, Discovery, Fault, Sighting
from hami_plugin.model.links import Link, Links
from hami_plugin.sdk import Driver, HealthEvent

log = logger(__name__)

MAX_EVENTS = 2_000
MAX_LETTERS = 320
"""Of a device's name, which may have its node's in it, of up to 253."""
MAX_NUMBER = 2**31 - 1
MISTAKEN = "Implausible"
"""Reason of a device that its driver describes as no device can be."""
TWICE = "DuplicateUuid"

_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}")
_SHOWN = 64

T = TypeVar("T")


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

    @property
    def busy_with(self) -> str | None:
        """As the driver reports it; None where it fails to."""
        try:
            about = self._driver.busy_with if self._driver else None
            return None if about is None else of_kind(str, about)
        except Exception:
            if not self._complained:
                log.exception("driver failed to report what it is busy with")
            self._complained = True
            return None

    def discover(self) -> Discovery:
        if self._driver is None:
            self._driver = self._opening()
        found = plausible(self._driver.discover())
        if self._last == found:  # whoever follows the devices compares them: what fails to be compared, fails here
            return self._last
        self._last = found
        return found

    def links(self) -> Links:
        return plausible_links(self._driver.links()) if self._driver else Links()

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        return [_event(one) for one in limited(self._driver.poll(timeout), MAX_EVENTS)] if self._driver else ()

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()


def _event(reported: object) -> HealthEvent:
    event = of_kind(HealthEvent, reported)
    if event.uuid is not None:
        of_kind(str, event.uuid)
    return replace(event, fault=plausible_fault(event.fault))


def plausible(found: object) -> Discovery:
    """``found`` with what is wrong in it as faults and problems. Ends every iteration that the driver left open."""
    answer = of_kind(Discovery, found)
    problems = [_words(problem) for problem in limited(answer.problems)]
    sightings: dict[str, Sighting] = {}
    for one in limited(answer.sightings):
        sighting = of_kind(Sighting, one)
        device = of_kind(Device, sighting.device)
        unnamed = _unnamed(device.uuid)
        if unnamed:
            problems.append(f"the driver tells of a device without a usable name: {unnamed}")
        elif device.uuid in sightings:
            fault = Fault(reason=TWICE, message=f"the driver tells of {device.uuid} twice")
            sightings[device.uuid] = replace(sightings[device.uuid], fault=fault)
        else:
            sightings[device.uuid] = _sighted(device, sighting.fault)
    if problems and not sightings and answer.sightings:
        raise DriverUnavailableError(DriverReason.FAILED, "; ".join(problems))
    facts = {str(key): _words(value) for key, value in dict(answer.facts).items()}
    return Discovery(sightings=tuple(sightings.values()), problems=tuple(problems), facts=facts)


def plausible_links(found: object) -> Links:
    """``found`` if it is made of pairs of names, each with a link."""
    answer = of_kind(Links, found)
    pairs = {_pair(pair): _link(link) for pair, link in dict(answer.pairs).items()}
    return Links(
        pairs=pairs,
        asymmetric=tuple(_pair(pair) for pair in limited(answer.asymmetric, MAX_DEVICES**2)),
        problems=tuple(_words(problem) for problem in limited(answer.problems, MAX_DEVICES**2)),
    )


def plausible_fault(fault: object) -> Fault:
    """``fault`` as metrics and Events can tell it; where it is none, a fault that says so."""
    if not isinstance(fault, Fault):
        return Fault(reason=MISTAKEN, message=f"the driver tells {fault!r:.{_SHOWN}} where a fault is expected")
    reason = fault.reason if isinstance(fault.reason, str) and _REASON.fullmatch(fault.reason) else MISTAKEN
    action = fault.action if isinstance(fault.action, Action) else Action.DRAIN
    return Fault(reason=reason, message=_words(fault.message), action=action)


def _sighted(device: Device, fault: object) -> Sighting:
    """The device with all that cannot be left out of it, and the first such thing as its fault."""
    wrong: dict[str, str] = {}
    plain: dict[str, object] = {}
    for name, (fits, instead) in _FIELDS.items():
        value = getattr(device, name)
        if not fits(value):
            wrong[name], plain[name] = f"{value!r:.{_SHOWN}}", instead
    if wrong:
        words = " and ".join(f"{name} {value}" for name, value in wrong.items())
        return Sighting(
            device=replace(device, **plain),  # type: ignore[arg-type]  # each field has its own type, as given below
            fault=Fault(reason=MISTAKEN, message=f"the driver tells of {words}"),
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
    a, b = limited(of_kind(tuple, pair))
    return of_kind(str, a), of_kind(str, b)


def _link(link: object) -> Link:
    answer = of_kind(Link, link)
    if not _whole(-MAX_NUMBER)(answer.score):
        raise ValueError(f"a link's score is {answer.score!r:.{_SHOWN}}")
    return answer


def _words(text: object) -> str:
    """One line, whatever it was."""
    return " ".join(str(text).split())[:1000]


def limited(items: Iterable[T], most: int = MAX_DEVICES) -> list[T]:
    """All of ``items``; ValueError when they are more than ``most``, or never end."""
    found = list(islice(items, most + 1))
    if len(found) > most:
        raise ValueError(f"the driver tells of more than {most} at once")
    return found


def of_kind(kind: type[T], value: object) -> T:
    """``value``, if it is a ``kind``; TypeError otherwise."""
    if not isinstance(value, kind):
        raise TypeError(f"the driver tells {value!r:.{_SHOWN}} where a {kind.__name__} is expected")
    return value
