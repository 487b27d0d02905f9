"""Of devices that would all serve: those that are linked best with each other, or the one whose loss costs least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from hami_plugin.model.links import Links

EXACT_CHOICES = 20_000
"""Up to this many choices that differ in their links, the answer is the best one: any 8 of 16 devices are 12,870.
Beyond, it is the best that growing and exchanging finds."""


def best_linked(devices: Sequence[str], count: int, links: Links, *, required: Sequence[str] = ()) -> tuple[str, ...]:
    """The ``count`` of these distinct devices, ``required`` among them, with the highest sum of pair scores.

    Of equal ones: those that leave the best-linked rest, then those that stand first in ``devices``. The answer keeps
    the order of ``devices``. ValueError when there is no such choice.
    """
    needed = [i for i, uuid in enumerate(devices) if uuid in set(required)]
    if len(needed) != len(set(required)) or not len(needed) <= count <= len(devices):
        raise ValueError(f"cannot choose {count} of {len(devices)} devices, with {len(required)} required")
    weights = [[links.score(a, b) if a != b else 0 for b in devices] for a in devices]
    free = [i for i in range(len(devices)) if i not in needed]
    taken = _take(_Task(weights=weights, needed=needed, free=free, open=count - len(needed)))
    return tuple(uuid for i, uuid in enumerate(devices) if i in needed or i in taken)


def least_linked(devices: Sequence[str], links: Links) -> str:
    """The device with the lowest sum of pair scores, the first of equals: taking it tears the fewest links."""
    if not devices:
        raise ValueError("no devices to choose from")
    return min(devices, key=lambda uuid: sum(links.score(uuid, peer) for peer in devices if peer != uuid))


@dataclass(kw_only=True, slots=True)
class _Task:
    """Which ``open`` of the ``free`` positions to take besides the ``needed`` ones.

    A choice A is worth ``scale * sum(A) + sum(rest)``, with a scale that lets the rest only break ties. Because
    ``sum(rest) = total - sum(degrees of A) + sum(A)``, that is a sum over pairs and single members of A alone.
    """

    weights: list[list[int]]
    needed: list[int]
    free: list[int]
    open: int
    pair: list[list[int]] = field(init=False)
    first: list[int] = field(init=False)

    def __post_init__(self) -> None:
        scale = sum(abs(weight) for row in self.weights for weight in row) + 1
        self.pair = [[(scale + 1) * weight for weight in row] for row in self.weights]
        # What each position adds when only the needed ones are taken.
        self.first = [sum(row[i] for i in self.needed) - sum(self.weights[p]) for p, row in enumerate(self.pair)]

    def twins(self) -> dict[int, list[int]]:
        """Free positions by the first one that has the same links to everybody else: exchanging two changes nothing."""
        classes: dict[int, list[int]] = {}
        for p in self.free:
            head = next((head for head in classes if self._alike(head, p)), p)
            classes.setdefault(head, []).append(p)
        return classes

    def _alike(self, a: int, b: int) -> bool:
        rows = zip(self.weights[a], self.weights[b], strict=True)
        return all(x == y for i, (x, y) in enumerate(rows) if i not in (a, b))


def _take(task: _Task) -> list[int]:
    classes = task.twins()
    if task.open in (0, len(task.free)) or len(classes) == 1:
        return task.free[: task.open]
    good = max((_grown(task, start) for start in classes), key=lambda choice: choice[0])
    if _number_of_choices([len(members) for members in classes.values()], task.open) > EXACT_CHOICES:
        return good[1]
    return _Search(task=task, classes=classes, value=good[0] - 1).run()


def _number_of_choices(sizes: Sequence[int], count: int) -> int:
    """In how many ways classes of these sizes yield ``count`` members, members of a class being equal."""
    ways = [1] + [0] * count
    for size in sizes:
        ways = [sum(ways[max(0, n - size) : n + 1]) for n in range(count + 1)]
    return ways[count]


def _grown(task: _Task, start: int) -> tuple[int, list[int]]:
    """Value and members of a choice that grows from ``start`` and then exchanges members while that helps."""
    inside, outside, value = [start], [p for p in task.free if p != start], task.first[start]
    gains = _plus(task.first, task.pair[start])
    while len(inside) < task.open:
        best = max(outside, key=gains.__getitem__)
        value += gains[best]
        gains = _plus(gains, task.pair[best])
        inside.append(best)
        outside.remove(best)
    while True:
        better, old, new = max((gains[b] - task.pair[a][b] - gains[a], a, b) for a in inside for b in outside)
        if better <= 0:
            return value, inside
        inside[inside.index(old)], outside[outside.index(new)] = new, old
        gains = [g - a + b for g, a, b in zip(gains, task.pair[old], task.pair[new], strict=True)]
        value += better


def _plus(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]


@dataclass(kw_only=True, slots=True)
class _Search:
    """Branch and bound in the order of positions, so that the first of equal choices is found first and stays."""

    task: _Task
    classes: dict[int, list[int]]
    value: int
    best: list[int] = field(default_factory=list)
    before: dict[int, int] = field(init=False)
    tops: dict[int, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        pair, free = self.task.pair, self.task.free
        self.before = {b: a for members in self.classes.values() for a, b in pairwise(members)}
        rows = {p: sorted((pair[p][q] for q in free if q != p), reverse=True) for p in free}
        self.tops = {p: list(accumulate(row, initial=0)) for p, row in rows.items()}

    def run(self) -> list[int]:
        self._visit(0, [], 0, self.task.first)
        return self.best

    def _visit(self, depth: int, chosen: list[int], value: int, gains: list[int]) -> None:
        missing = self.task.open - len(chosen)
        if not missing:
            if value > self.value:
                self.value, self.best = value, chosen
            return
        rest = self.task.free[depth:]
        if len(rest) < missing or self._bound(rest, missing, gains) <= 2 * (self.value - value):
            return
        p = rest[0]
        # Of twins the earlier are taken first: every other way gives an equal choice that stands later.
        if self.before.get(p) is None or self.before[p] in chosen:
            self._visit(depth + 1, [*chosen, p], value + gains[p], _plus(gains, self.task.pair[p]))
        self._visit(depth + 1, chosen, value, gains)

    def _bound(self, rest: Sequence[int], missing: int, gains: Sequence[int]) -> int:
        """Twice the most that ``missing`` of the rest can add: each pair among them counts half for both its ends."""
        return sum(sorted((2 * gains[p] + self.tops[p][missing - 1] for p in rest), reverse=True)[:missing])
