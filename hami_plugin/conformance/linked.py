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


def best_of(question: Json, chosen: Sequence[str], pool: Sequence[str]) -> bool:
    """Of ``pool`` the best linked; of equals those that leave the best-linked rest, then those with the lowest indices.

    A single device is the one that the rest misses least. Where there are too many choices to try them, none that
    changes one device may be better.
    """
    count = len(chosen)
    links = values.links(question.get("pair_scores"))
    index = {one["id"]: one.get("index", 0) for one in question["devices"]}

    def worth(choice: Sequence[str]) -> tuple[int, int, list[int]]:
        rest = list((Counter(pool) - Counter(choice)).elements())
        return links.total(choice), links.total(rest), sorted(-index[uuid] for uuid in choice)[::-1]

    if Counter(chosen) - Counter(pool):
        return False
    if comb(len(pool), count) <= FEW:
        return worth(chosen) == max(map(worth, combinations(pool, count)))
    others = ([*chosen[:n], uuid, *chosen[n + 1 :]] for n in range(count) for uuid in set(pool) - set(chosen))
    return all(worth(other) <= worth(chosen) for other in others)
