"""How well two devices are connected: one symmetric link per pair, and what was odd about the measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One pair's connection. ``score`` is HAMi's number, ``label`` what people call it (``NV18``, ``SYS``)."""

    score: int
    label: str
    level: str = ""
    lanes: int = 0


class PairScores(Protocol):
    """What a choice of devices asks of their links."""

    def scores(self, uuids: Sequence[str]) -> tuple[int, ...]:
        """All pairs within ``uuids``: the first with each that follows, then the second, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """All pairs of one node. Keys are ``(a, b)`` with ``a < b``; a pair that is absent scores 0."""

    pairs: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    asymmetric: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()

    def between(self, a: str, b: str) -> Link | None:
        return self.pairs.get((a, b) if a < b else (b, a))

    def score(self, a: str, b: str) -> int:
        link = self.between(a, b)
        return link.score if link else 0

    def scores(self, uuids: Sequence[str]) -> tuple[int, ...]:
        """As ``PairScores`` says."""
        pairs = self.pairs
        found = [pairs.get((a, b) if a < b else (b, a)) for i, a in enumerate(uuids, 1) for b in uuids[i:]]
        return tuple([link.score if link else 0 for link in found])

    def total(self, uuids: Sequence[str]) -> int:
        """The sum over all pairs within ``uuids``."""
        return sum(self.scores(uuids))


NO_LINKS = Links()

LEVEL_SCORES = {"INT": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
LANE_SCORE = 100


def scored(level: str, lanes: int, fabric: str) -> Link:
    """HAMi's score of a pair: its level on the bus, plus 100 for each direct link of the fabric, as ``XGMI``."""
    score = LEVEL_SCORES.get(level, 0) + LANE_SCORE * lanes
    return Link(score=score, label=f"{fabric}{lanes}" if lanes else level, level=level, lanes=lanes)


def symmetric(directed: Mapping[tuple[str, str], Link], problems: Sequence[str] = ()) -> Links:
    """Fold both directions of each pair into one. The worse one counts, and the pair is named in ``asymmetric``.

    A direction that could not be measured leaves the other one, and names the pair too.
    """
    pairs: dict[tuple[str, str], Link] = {}
    odd: set[tuple[str, str]] = set()
    for (a, b), link in sorted(directed.items()):
        key = (a, b) if a < b else (b, a)
        back = directed.get((b, a))
        if back is None or back.score != link.score:
            odd.add(key)
        pairs[key] = link if back is None or link.score <= back.score else back
    return Links(pairs=pairs, asymmetric=tuple(sorted(odd)), problems=tuple(problems))
