"""A vendor's family as the daemon may rely on it: what fails is an error, and what is answered was asked for.

All that is shared by vendors calls a family through this. What the vendor's code does wrong becomes a
``VendorMistakeError``, handled where any other ``HamiError`` is: one Allocate, or one vendor's annotations fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

from cdi.edits import ContainerEdits
from hami_plugin.errors import HamiError
from hami_plugin.host.bounded import BoundedCalls
from hami_plugin.host.drivers import StuckError
from hami_plugin.host.threads import carried
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant
from hami_plugin.node.mistakes import Mistakes
from hami_plugin.vendor import Family, Injection, Units
from hami_plugin.vendor.defaults import nothing_more
from hami_plugin.wire.nodes import DeviceInfo

MOST_SHARES = 100_000
"""Parts of one device. The kubelet reads no list of more ids than about this, of all devices together."""
MOST_CORES = 2**63 - 1
_PREPARING = frozenset({"inject", "device edits", "shared edits"})
_AT_THE_HOST = _PREPARING | {"host problem"}
"""What may look at files or devices, and so may not come back. The others only count, and are asked for every pod that
waits: a change of threads for each would cost an Allocate many times what it takes.
"""

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """Makes one vendor's functions safe to call. What is part of the design, ``HamiError``, passes as it is."""

    def __init__(self, calls: BoundedCalls, mistakes: Mistakes) -> None:
        self._calls = calls
        self._mistakes = mistakes

    def ask(self, step: str, function: Callable[[], T]) -> T:
        """What ``function`` returns. ``VendorMistakeError`` when it fails otherwise than by a ``HamiError``.

        Where a vendor prepares the host for a container, a file that is missing is no mistake: ``OSError`` passes.
        """
        try:
            return self._calls.ask(function) if step in _AT_THE_HOST else _here(function)
        except HamiError:
            raise
        except Exception as error:
            if step in _PREPARING and isinstance(error, OSError) and not isinstance(error, StuckError):
                raise
            raise self._mistakes.made(step, error) from error

    def __call__(self, step: str, function: Callable[P, T], check: Callable[..., str]) -> Callable[P, T]:
        """``function``, guarded. ``check`` is given its answer and its arguments, and says what is wrong with it."""

        def guarded(*given: P.args, **more: P.kwargs) -> T:
            answer = self.ask(step, partial(function, *given, **more))
            wrong = check(answer, *given, **more)
            if wrong:
                problem = ValueError(wrong)
                raise self._mistakes.made(step, problem) from problem
            return answer

        return guarded


def _here(function: Callable[[], T]) -> T:
    """What ``function`` returns. An exit is an error like any other."""
    try:
        return function()
    except Exception:
        raise
    except BaseException as error:
        raise carried(error) from error


def guarded(family: Family, guard: Guard) -> Family:
    """The family, with every function that is asked on the event loop guarded.

    The description of CDI specs is not: it has a thread and a deadline of its own (``node.specs``).
    """
    announce = family.announce
    return replace(
        family,
        replicas=guard("replicas", family.replicas, _count),
        register=guard("register", family.register, _entry),
        encode=guard("encode", family.encode, partial(_kind, str)) if family.encode else None,
        announce=announce if announce is nothing_more else guard("announce", announce, partial(_kind, Mapping)),
        inject=guard("inject", family.inject, partial(_kind, Injection)),
        host_problem=guard("host problem", family.host_problem, partial(_kind, str)),
        place=guard("place", family.place, _place),
        every_core=guard("every core", family.every_core, partial(_number, most=MOST_CORES)),
        ids=guard("ids", family.ids, _count),
        device_edits=guard("device edits", family.device_edits, partial(_kind, ContainerEdits)),
        shared_edits=guard("shared edits", family.shared_edits, partial(_kind, ContainerEdits)),
        units=tuple(_units(one, guard) for one in family.units),
    )


def _units(units: Units, guard: Guard) -> Units:
    return replace(
        units,
        of_device=guard("replicas", units.of_device, _count),
        of_grant=guard("ids", units.of_grant, _count),
    )


def _number(answer: object, *_asked: object, most: int) -> str:
    fits = type(answer) is int and 0 <= answer <= most
    return "" if fits else f"{answer!r:.64} is no whole number from 0 to {most}"


def _count(answer: object, *_asked: object) -> str:
    return _number(answer, most=MOST_SHARES)


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
