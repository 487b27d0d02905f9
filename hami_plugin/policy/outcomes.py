"""What becomes of one container's part of one family, and of each device that was asked for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hami_plugin.model.placement import Grant
from hami_plugin.policy.demand import Demand
from hami_plugin.policy.reasons import Reason, detailed, told
from hami_plugin.policy.states import DeviceState


class Verdict(NamedTuple):
    """What became of one device: the first reason against it, or None when it would serve."""

    state: DeviceState
    reason: Reason | None


Seen = tuple[tuple[DeviceState, ...], tuple[Reason | None, ...]]
"""Verdicts that nobody has read yet, as two rows."""


Detail = Callable[[DeviceState, Reason], str]
"""One word about a device that a reason against it leaves out, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """One grant for each device, or part of one, in the order of selection."""

    grants: tuple[Grant, ...]
    seen: Seen = ((), ())

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(map(Verdict, *self.seen))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No. ``reasons`` are counted over ``total`` devices; ``str`` is HAMi's text.

    ``detail`` is the family's word behind a reason, where a reason alone leaves something out.
    """

    demand: Demand
    total: int
    reasons: Mapping[Reason, int]
    seen: Seen = ((), ())
    detail: Detail | None = None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(map(Verdict, *self.seen))

    @property
    def detailed(self) -> str:
        """HAMi's text with the family's word in brackets behind a reason: each device counts under its own."""
        if self.detail is None:
            return str(self)
        counts: Counter[str] = Counter(self.reasons)
        for state, reason in zip(*self.seen, strict=True):
            said = self.detail(state, reason) if reason and counts[reason] else ""
            if reason and said:
                counts[reason] -= 1
                counts[detailed(reason, said)] += 1
        return told(+counts, self.total)

    def __str__(self) -> str:
        return told(self.reasons, self.total)
