"""Of devices that would all serve: those that are linked best with each other, and leave the others linked best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hami_plugin.model.links import Links
from hami_plugin.policy.blocks import blocks
from hami_plugin.policy.bounded import improved
from hami_plugin.policy.structure import best_of_blocks
from hami_plugin.policy.worth import Worth, worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``score`` is the sum of their pair scores. ``proven``: no choice is better, and no equal one comes first."""

    devices: tuple[str, ...]
    score: int
    proven: bool


def choose(devices: Sequence[str], count: int, links: Links, *, required: Sequence[str] = ()) -> Choice:
    """The ``count`` of these distinct devices, ``required`` among them, with the highest sum of pair scores.

    Of equal ones: those that leave the best-linked rest, then those that stand first in ``devices``. One device has no
    pairs, so it is the one whose links to the others are worth least. The answer keeps the order of ``devices``.
    ValueError when there is no such choice.

    Exact on every machine that is built of boards, switches and sockets, whatever is in use: how well a part's devices
    are linked to the others depends only on how many of them are taken, so the best ones of each number do (``blocks``,
    ``structure``). Where no two are alike, every choice from up to 20 devices is looked at (``halves``). Beyond, it is
    never worse than growing from every device and exchanging (``growing``), and what that leaves of some 10 ms goes
    into looking at whatever could still be better (``bounded``): ``proven`` when that came to its end.
    """
    needed = [i for i, uuid in enumerate(devices) if uuid in set(required)]
    if len(needed) != len(set(required)) or not len(needed) <= count <= len(devices):
        raise ValueError(f"cannot choose {count} of {len(devices)} devices, with {len(required)} required")
    scores = _scores(devices, links)
    free = [i for i in range(len(devices)) if i not in needed]
    chosen, proven = _best(worth(scores, free, needed), count - len(needed))
    taken = sorted([*needed, *(free[p] for p in chosen)])
    score = sum(scores[a][b] for i, a in enumerate(taken) for b in taken[i + 1 :])
    return Choice(devices=tuple(devices[i] for i in taken), score=score, proven=proven)


def best_linked(devices: Sequence[str], count: int, links: Links, *, required: Sequence[str] = ()) -> tuple[str, ...]:
    """The devices of ``choose``."""
    return choose(devices, count, links, required=required).devices


def _scores(devices: Sequence[str], links: Links) -> list[list[int]]:
    scores = [[0] * len(devices) for _ in devices]
    for i, a in enumerate(devices):
        for j, b in enumerate(devices[:i]):
            scores[i][j] = scores[j][i] = links.score(a, b)
    return scores


def _best(free: Worth, count: int) -> tuple[Sequence[int], bool]:
    """Positions, and whether they are proven the best."""
    if count in (0, free.size):
        return range(count), True
    if count == 1:
        return [max(range(free.size), key=free.alone.__getitem__)], True
    tree = blocks(free.links)
    best = best_of_blocks(tree, free, count)
    if best is not None:
        return free.named(best), True
    best, proven = improved(tree, free, count)
    return free.named(best), proven
