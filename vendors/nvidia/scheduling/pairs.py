"""HAMi's words for the links between NVIDIA cards, its scores of pairs, and where ours differ on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_plugin.model.links import Link, symmetric
from hami_plugin.parity import Json
from vendors.nvidia.topology import link

LEVELS = {
    "P2PLinkSameBoard": "INT",
    "P2PLinkSingleSwitch": "PIX",
    "P2PLinkMultiSwitch": "PXB",
    "P2PLinkHostBridge": "PHB",
    "P2PLinkSameCPU": "NODE",
    "P2PLinkCrossCPU": "SYS",
}
LANES = (
    *("Single", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve"),
    *("Thirteen", "Fourteen", "Fifteen", "Sixteen", "Seventeen", "Eighteen"),
)
"""How HAMi's names of NVLinks begin, by their number from one on: ``SingleNVLINKLink``, ``TwoNVLINKLinks``."""


def pair_scores(question: Json) -> Json:
    links = symmetric(_directed(question["links"]))
    uuids = [device["uuid"] for device in question["links"]]
    scores = [{"uuid": a, "score": {b: links.score(a, b) for b in uuids if b != a}} for a in uuids]
    return {"asymmetric": bool(links.asymmetric), "scores": scores}


def _directed(devices: Sequence[Json]) -> Mapping[tuple[str, str], Link]:
    uuids = {str(device["index"]): device["uuid"] for device in devices}
    return {(one["uuid"], uuids[peer]): _link(names) for one in devices for peer, names in one["links"].items()}


def _link(names: Sequence[str]) -> Link:
    level = next((LEVELS[name] for name in names if name in LEVELS), "")
    numbers = (name.removesuffix("s").removesuffix("NVLINKLink") for name in names)
    return link(level, sum(LANES.index(number) + 1 for number in numbers if number in LANES))


def _odd(question: Json) -> set[frozenset[str]]:
    """Pairs whose cards do not see the same links."""
    directed = _directed(question["links"])
    return {frozenset(pair) for pair, one in directed.items() if directed.get((pair[1], pair[0])) != one}


def odd_pairs(question: Json) -> bool:
    return question["fn"] == "pair_scores" and bool(_odd(question))


def even_pairs_alike(question: Json, ours: Json, theirs: Json) -> bool:
    """Other pairs score as for HAMi, odd ones as the worse of their directions."""
    odd, directed = _odd(question), _directed(question["links"])
    his = {(row["uuid"], peer): score for row in theirs["scores"] for peer, score in row["score"].items()}
    for row in ours["scores"]:
        for peer, score in row["score"].items():
            sides = [directed[pair].score for pair in ((row["uuid"], peer), (peer, row["uuid"])) if pair in directed]
            is_odd = frozenset((row["uuid"], peer)) in odd
            if score != (min(sides) if is_odd else his.get((row["uuid"], peer), 0)):
                return False
    return bool(ours["asymmetric"])
