"""Measured figures and their limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number. ``limit`` None: for information only. ``floor``: the limit is a minimum."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None
    floor: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.floor else self.value <= self.limit

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "PASS" if self.holds else "FAIL"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict or "INFO"}

    def __str__(self) -> str:
        bound = "" if self.limit is None else f"{'at least' if self.floor else 'at most'} {_number(self.limit)}"
        value = f"{_number(self.value)} {self.unit}".rstrip()
        return f"{self.verdict:4}  {self.name:44} {value:>12}   {bound:15}  {self.note}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Times in milliseconds."""

    count: int
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        ordered = sorted(seconds)
        p50, p90, p99 = (1000 * percentile(ordered, share) for share in (0.50, 0.90, 0.99))
        return cls(count=len(ordered), p50=p50, p90=p90, p99=p99, most=1000 * ordered[-1])

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f}, p90 {self.p90:.2f}, p99 {self.p99:.2f}, max {self.most:.2f} ms of {self.count}"


def percentile(ordered: Sequence[float], share: float) -> float:
    """The percentile: the smallest value that at least ``share`` of all do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)


def ratio(own: Sequence[float], bare: Sequence[float]) -> float:
    """The median of one measurement over the baseline taken beside it.

    A machine's speed changes within seconds: what is divided must have been measured in the same moment.
    """
    return median([value / base for value, base in zip(own, bare, strict=True)])


def cpu_beside(work: Callable[[], object], baseline: Callable[[], object], rounds: int) -> tuple[list[float], ...]:
    """CPU seconds of ``work`` and of ``baseline``, which take turns."""
    pairs = [(cpu_of(work), cpu_of(baseline)) for _ in range(rounds)]
    return [own for own, _ in pairs], [bare for _, bare in pairs]


def cpu_of(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"
