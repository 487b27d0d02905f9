"""A vendor's family as the daemon may rely on it: what fails is an error, and what is answered was asked for.

All that is shared by vendors calls a family through this. What the vendor's code does wrong becomes a
``VendorMistakeError``, handled where any other ``HamiError`` is: one Allocate, or one vendor's annotations fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

from cdi.edits import ContainerEdits
from hami_plugin.errors import HamiError, VendorError
from hami_plugin.host.threads import BoundedCalls, StuckError, carried
from hami_plugin.log import logger
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant
from hami_plugin.model.ports import NullObserver, Observer
from hami_plugin.protocol.decisions import one_id
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Family, Injection, Leftovers, NodeSide, Units
from hami_plugin.sdk.family import anywhere, nothing, nothing_missing, nothing_more, one, percent

log = logger(__name__)

AGAIN_S = 600.0
"""After how long the same mistake is logged once more."""


class VendorErrors:
    """One vendor's. ``clock`` gives monotonic seconds."""

    def __init__(
        self, vendor: str, observer: Observer | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.vendor = vendor
        self._observer = observer or NullObserver()
        self._clock = clock
        self._told: dict[str, tuple[str, float]] = {}

    def made(self, step: str, error: Exception) -> VendorError:
        """Count it, log it with its traceback if that is new, and answer with what users may read of it."""
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        words = " ".join(words.split())[:500]
        self._observer.mistake(self.vendor, step)
        told, when = self._told.get(step, ("", 0.0))
        if told != words or self._clock() - when >= AGAIN_S:
            self._told[step] = (words, self._clock())
            log.error("mistake of a vendor", vendor=self.vendor, step=step, why=words, exc_info=error)
        return VendorError(self.vendor, step, words)


MAX_SHARES = 100_000
"""Parts of one device. The kubelet reads no list of more ids than about this, of all devices together."""
MAX_CORES = 2**63 - 1
P = ParamSpec("P")
T = TypeVar("T")
Check = Callable[..., str]
"""Is given an answer and what was asked, and says what is wrong with the answer; empty where nothing is."""


OURS = (anywhere, nothing, nothing_missing, nothing_more, one, one_id, percent)
"""What the SDK answers where a vendor says nothing: code of ours, which needs no guard."""


class Guard:
    """Makes one vendor's functions safe to call. What is part of the design, ``HamiError``, passes as it is.

    A function that is handed the host (``HostFiles``) may look at files and devices, and so may not come back: whoever
    calls one does so within ``ask``, on the vendor's thread and within a deadline. All others only count. They are
    asked for every pod that waits, and a change of threads for each would cost an Allocate many times what it takes.
    """

    def __init__(self, calls: BoundedCalls, mistakes: VendorErrors) -> None:
        self._calls = calls
        self._mistakes = mistakes

    async def ask(self, step: str, function: Callable[[], T]) -> T:
        """What ``function`` returns, called on the vendor's thread. ``VendorMistakeError`` when it takes too long."""
        try:
            return await self._calls.ask(function)
        except StuckError as error:
            raise self._mistakes.made(step, error) from error

    def counts(self, step: str, function: Callable[P, T], check: Check) -> Callable[P, T]:
        return self._guarded(step, function, check)

    def prepares(self, step: str, function: Callable[P, T], check: Check) -> Callable[P, T]:
        """As ``counts``, before a container starts: that a file is missing is no mistake, and ``OSError`` passes."""
        return self._guarded(step, function, check, passes=OSError)

    def _guarded(
        self,
        step: str,
        function: Callable[P, T],
        check: Check,
        passes: type[Exception] = HamiError,
    ) -> Callable[P, T]:
        if any(function is ours for ours in OURS):
            return function

        def guarded(*given: P.args, **more: P.kwargs) -> T:
            try:
                answer = function(*given, **more)
            except (HamiError, passes):
                raise
            except BaseException as error:  # noqa: BLE001  # an exit is an error like any other
                problem = carried(error)
                raise self._mistakes.made(step, problem) from problem
            wrong = check(answer, *given, **more)
            if wrong:
                problem = ValueError(wrong)
                raise self._mistakes.made(step, problem) from problem
            return answer

        return guarded


def guarded(family: Family, guard: Guard) -> Family:
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
        inject=guard.prepares("inject", node.inject, partial(_kind, Injection)),
        host_problem=guard.counts("host problem", node.host_problem, partial(_kind, str)),
        leftovers=guard.counts("leftovers", node.leftovers, partial(_kind, Leftovers)),
        place=guard.counts("place", node.place, _place),
        every_core=guard.counts("every core", node.every_core, partial(_number, most=MAX_CORES)),
        device_edits=guard.prepares("device edits", node.device_edits, partial(_kind, ContainerEdits)),
        shared_edits=guard.prepares("shared edits", node.shared_edits, partial(_kind, ContainerEdits)),
    )


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
