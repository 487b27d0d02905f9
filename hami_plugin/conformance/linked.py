"""Whether a choice by links is the one to be made, by trying the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb

from hami_plugin.conformance import values
from hami_plugin.parity import Json

FEW = 20_000
"""So many choices are tried one by one."""


def best_of(question: Json, chosen: Sequence[str], pool: Sequence[str], *, whole: bool) -> bool:
    """Of ``pool``, which stands in walking order, the best linked; of equals the first.

    Of ``whole`` cards first those that leave the best-linked rest; a single card is the one that the rest misses least.
    Where there are too many choices to try them, none that changes one device may be better.
    """
    count = len(chosen)
    links = values.links(question.get("pair_scores"))

    def worth(choice: Sequence[str]) -> tuple[int, int, list[int]]:
        rest = list((Counter(pool) - Counter(choice)).elements()) if whole or count == 1 else []
        return links.total(choice), links.total(rest), [-place for place in _places(choice, pool)]

    if Counter(chosen) - Counter(pool):
        return False
    if comb(len(pool), count) <= FEW:
        return worth(chosen) == max(map(worth, combinations(pool, count)))
    others = ([*chosen[:n], uuid, *chosen[n + 1 :]] for n in range(count) for uuid in set(pool) - set(chosen))
    return all(worth(other) <= worth(chosen) for other in others)


def _places(choice: Sequence[str], pool: Sequence[str]) -> list[int]:
    """Where they stand, in order: of a card that stands there several times, the first of its places."""
    wanted = Counter(choice)
    places: list[int] = []
    for place, uuid in enumerate(pool):
        if wanted[uuid]:
            wanted[uuid] -= 1
            places.append(place)
    return places
