"""How the devices are linked, by the scores that the node's annotation has."""

from __future__ import annotations

from collections.abc import Sequence

from hami_plugin.demo.stage import Stage
from hami_plugin.model.links import Link, Links
from hami_plugin.wire.scores import decode_scores

WIDTH = 6


def total(stage: Stage, uuids: Sequence[str]) -> int:
    """The sum over all pairs of these devices."""
    return _links(stage).total(uuids)


def matrix(stage: Stage) -> str:
    """A table of all pairs."""
    names = {info.id: f"GPU{info.index}" for info in stage.registered()}
    links = _links(stage)
    lines = ["".join(name.rjust(WIDTH) for name in ("", *names.values()))]
    for a, name in names.items():
        cells = ("X" if a == b else str(links.score(a, b)) for b in names)
        lines.append(name.rjust(WIDTH) + "".join(cell.rjust(WIDTH) for cell in cells))
    return "\n".join(lines)


def _links(stage: Stage) -> Links:
    text = stage.annotation(stage.family.annotations.score)
    scores = decode_scores(text) if text else {}
    pairs = {(a, b): Link(score=s, label="") for a, peers in scores.items() for b, s in peers.items() if a < b}
    return Links(pairs=pairs)
