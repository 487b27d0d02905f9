"""Every way to take devices of a few parts of a block.

A combination is a number whose digits, the first part's the lowest, are how many devices it takes of each part.
``most``: how many that can be.
"""

from __future__ import annotations

from collections.abc import Sequence


def by_count(most: Sequence[int]) -> list[list[int]]:
    """The combinations of 0, 1, 2, ... devices."""
    counts = [0]
    for each in most:
        counts = [count + n for n in range(each + 1) for count in counts]
    found: list[list[int]] = [[] for _ in range(sum(most) + 1)]
    for combination, count in enumerate(counts):
        found[count].append(combination)
    return found


def sums(links: Sequence[int], most: Sequence[int]) -> list[int]:
    """For each combination, the sum of the links, one a part, of its devices."""
    totals = [0]
    for link, each in zip(links, most, strict=True):
        before = totals
        for n in range(1, each + 1):
            more = n * link
            totals = totals + [total + more for total in before]
    return totals


def worths(tables: Sequence[Sequence[int]], links: Sequence[Sequence[int]], pair: int) -> list[int]:
    """What each is worth by itself, from what the best 0, 1, 2, ... devices of each part are, and ``pair`` a link."""
    found = [0]
    for i, table in enumerate(tables):
        linked, before = sums(links[i][:i], [len(table) - 1 for table in tables[:i]]), found
        for n, own in enumerate(table[1:], start=1):
            each = n * pair
            found = found + [own + worth + each * link for worth, link in zip(before, linked, strict=True)]
    return found
