"""What a vendor's driver tells, held against what any device can be: nothing else gets into the inventory.

A device with a usable name stays, unhealthy and with the reason; one without is a problem in words. An answer that is
no answer at all raises ``TypeError`` or ``ValueError``: that is a mistake in the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Action, Device, Discovery, Fault, Sighting
from hami_plugin.model.links import Link, Links

MAX_DEVICES = 1024
MAX_LETTERS = 320
"""Of a device's name, which may have its node's in it, of up to 253."""
MAX_NUMBER = 2**31 - 1
MISTAKEN = "Implausible"
"""Reason of a device that its driver describes as no device can be."""
TWICE = "DuplicateUuid"

_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}")
_SHOWN = 64

T = TypeVar("T")


def plausible(found: object) -> Discovery:
    """``found`` with what is wrong in it as faults and problems. Ends every iteration that the driver left open."""
    told = of_kind(Discovery, found)
    problems = [_words(problem) for problem in limited(told.problems)]
    sightings: dict[str, Sighting] = {}
    for one in limited(told.sightings):
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
    if problems and not sightings and told.sightings:
        raise DriverUnavailableError(DriverReason.FAILED, "; ".join(problems))
    facts = {str(key): _words(value) for key, value in dict(told.facts).items()}
    return Discovery(sightings=tuple(sightings.values()), problems=tuple(problems), facts=facts)


def plausible_links(found: object) -> Links:
    """``found`` if it is made of pairs of names, each with a link."""
    told = of_kind(Links, found)
    pairs = {_pair(pair): _link(link) for pair, link in dict(told.pairs).items()}
    return Links(
        pairs=pairs,
        asymmetric=tuple(_pair(pair) for pair in limited(told.asymmetric, MAX_DEVICES**2)),
        problems=tuple(_words(problem) for problem in limited(told.problems, MAX_DEVICES**2)),
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
    told = of_kind(Link, link)
    if not _whole(-MAX_NUMBER)(told.score):
        raise ValueError(f"a link's score is {told.score!r:.{_SHOWN}}")
    return told


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
