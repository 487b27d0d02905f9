"""What becomes of one container's part of one family, and of each device that was asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hami_plugin.model.placement import Grant
from hami_plugin.policy.demand import Demand
from hami_plugin.policy.reasons import Reason, told
from hami_plugin.policy.states import DeviceState


class Verdict(NamedTuple):
    """What became of one device: the first reason against it, or None when it would serve."""

    state: DeviceState
    reason: Reason | None


Seen = tuple[tuple[DeviceState, ...], tuple[Reason | None, ...]]
"""Verdicts that nobody has read yet, as two rows."""


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
    """No. ``reasons`` are counted over ``total`` devices; ``str`` is HAMi's text."""

    demand: Demand
    total: int
    reasons: Mapping[Reason, int]
    seen: Seen = ((), ())

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(map(Verdict, *self.seen))

    def __str__(self) -> str:
        return told(self.reasons, self.total)
