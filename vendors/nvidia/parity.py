"""How our answers about NVIDIA cards are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, groupby, permutations
from math import comb

from hami_plugin.conformance import fits, values
from hami_plugin.model.links import Link, symmetric
from hami_plugin.parity import Difference, Json, Parity, sound
from hami_plugin.policy.groups import GO_TRUE
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.states import ORDER_KEY, Slice
from vendors.nvidia import mig
from vendors.nvidia.policy import NUMA_BIND, policy
from vendors.nvidia.settings import NvidiaSettings
from vendors.nvidia.topology import link

FEW = 20_000
"""So many choices are tried one by one to see that ours is the best."""

LEVELS = {
    "P2PLinkSameBoard": "INT",
    "P2PLinkSingleSwitch": "PIX",
    "P2PLinkMultiSwitch": "PXB",
    "P2PLinkHostBridge": "PHB",
    "P2PLinkSameCPU": "NODE",
    "P2PLinkCrossCPU": "SYS",
}
LANES = (
    *("SingleNVLINKLink", "TwoNVLINKLinks", "ThreeNVLINKLinks", "FourNVLINKLinks", "FiveNVLINKLinks"),
    *("SixNVLINKLinks", "SevenNVLINKLinks", "EightNVLINKLinks", "NineNVLINKLinks", "TenNVLINKLinks"),
    *("ElevenNVLINKLinks", "TwelveNVLINKLinks", "ThirteenNVLINKLinks", "FourteenNVLINKLinks", "FifteenNVLINKLinks"),
    *("SixteenNVLINKLinks", "SeventeenNVLINKLinks", "EighteenNVLINKLinks"),
)
"""HAMi's names of so many NVLinks, from one on."""


def parity() -> Parity:
    """NVIDIA's part in the comparison."""
    return Parity(
        unset_percent=101,
        answers={"mig_select": _select, "mig_can_place": _can_place, "pair_scores": _pair_scores},
        differences=(
            Difference(id="D-023", applies=_odd_pairs, right=_even_pairs_alike),
            Difference(id="D-110", applies=_numa_bound, right=_in_one_numa_node),
            Difference(id="D-111", applies=_by_topology, right=_linked_best),
            Difference(id="D-112", applies=_part_of_a_cut_card, right=_largest_instance),
        ),
    )


def _select(question: Json) -> Json:
    found = mig.choose(values.profiles(question["mig_caps"]), _occupied(question), question["mem"])
    if found is None:
        return {"ok": False}
    profile, place = found
    return {
        "ok": True,
        "profile": profile.name,
        "memoryMB": profile.memory,
        "core": profile.cores,
        "placement": {"start": place.start, "size": place.size},
    }


def _can_place(question: Json) -> Json:
    names = question["mig_requested"]
    return {"ok": mig.can_place(values.profiles(question["mig_caps"]), _occupied(question), names)}


def _occupied(question: Json) -> tuple[Slice, ...]:
    return tuple(Slice(profile="", start=one["start"], size=one["size"]) for one in question.get("mig_occupied") or ())


def _pair_scores(question: Json) -> Json:
    links = symmetric(_directed(question["links"]))
    uuids = [device["uuid"] for device in question["links"]]
    scores = [{"uuid": a, "score": {b: links.score(a, b) for b in uuids if b != a}} for a in uuids]
    return {"asymmetric": bool(links.asymmetric), "scores": scores}


def _directed(devices: Sequence[Json]) -> Mapping[tuple[str, str], Link]:
    uuids = {str(device["index"]): device["uuid"] for device in devices}
    return {(one["uuid"], uuids[peer]): _link(names) for one in devices for peer, names in one["links"].items()}


def _link(names: Sequence[str]) -> Link:
    level = next((LEVELS[name] for name in names if name in LEVELS), "")
    return link(level, sum(LANES.index(name) + 1 for name in names if name in LANES))


def _odd(question: Json) -> set[frozenset[str]]:
    """Pairs whose cards do not see the same links."""
    directed = _directed(question["links"])
    return {frozenset(pair) for pair, one in directed.items() if directed.get((pair[1], pair[0])) != one}


def _odd_pairs(question: Json) -> bool:
    return question["fn"] == "pair_scores" and bool(_odd(question))


def _even_pairs_alike(question: Json, ours: Json, theirs: Json) -> bool:
    """Each pair once in each direction: even ones as for HAMi, odd ones as the worse of their directions."""
    odd, directed = _odd(question), _directed(question["links"])
    his = {(row["uuid"], peer): score for row in theirs["scores"] for peer, score in row["score"].items()}
    mine = {(row["uuid"], peer): score for row in ours["scores"] for peer, score in row["score"].items()}
    uuids = [device["uuid"] for device in question["links"]]
    if [row["uuid"] for row in ours["scores"]] != uuids or mine.keys() != set(permutations(uuids, 2)):
        return False
    for (one, other), score in mine.items():
        sides = [directed[pair].score for pair in ((one, other), (other, one)) if pair in directed]
        if score != (min(sides) if {one, other} in odd else his.get((one, other), 0)):
            return False
    return bool(ours["asymmetric"])


def _is_fit(question: Json) -> bool:
    return bool(question["fn"] == "fit" and question["vendor"] == "NVIDIA")


def _bound(question: Json) -> bool:
    return (question["pod"].get("annotations") or {}).get(NUMA_BIND) in GO_TRUE


def _topology(question: Json) -> bool:
    words = str((question["pod"].get("annotations") or {}).get(ORDER_KEY, "")).split(",")
    return "topology-aware" in (word.strip() for word in words)


def _numa_bound(question: Json) -> bool:
    """A NUMA node's cards do not stand together, or topology counts, which HAMi looks at only in the last run."""
    if not (_is_fit(question) and _bound(question)):
        return False
    runs = [numa for numa, _ in groupby(question["devices"], key=lambda device: device.get("numa", 0))]
    return _topology(question) or len(runs) != len(set(runs))


def _in_one_numa_node(question: Json, ours: Json, theirs: Json) -> bool:
    """HAMi finds none. The first NUMA node with enough cards serves; or none does, for the same other reasons."""
    if theirs["ok"]:
        return False
    able = _pool(question)
    if ours["ok"]:
        return sound(question, ours) and len(able) >= question["request"]["nums"] and _chosen_of(question, ours, able)
    no_node = len(able) < question["request"]["nums"]
    return no_node and _without_numa(ours["reason"]) == _without_numa(theirs["reason"])


def _without_numa(reason: str) -> set[str]:
    counted_otherwise = (Reason.NUMA, Reason.TOO_FEW)
    return {part for part in reason.split(", ") if not part.endswith(counted_otherwise)}


def _by_topology(question: Json) -> bool:
    return _is_fit(question) and _topology(question)


def _linked_best(question: Json, ours: Json, theirs: Json) -> bool:
    """Both grant, and ours is the choice of those that could be made."""
    return bool(theirs["ok"]) and sound(question, ours) and _chosen_of(question, ours, _pool(question))


def _pool(question: Json) -> Sequence[str]:
    """What could be granted, in walking order: where NUMA counts, of the first NUMA node that has enough."""
    able = fits.serving(question, policy(NvidiaSettings()), Parity().demand(question["request"]))
    if not _bound(question):
        return able
    nodes = dict.fromkeys(device.get("numa", 0) for device in reversed(question["devices"]))
    groups = [[uuid for uuid in able if _numa(question, uuid) == numa] for numa in nodes]
    return next((group for group in groups if len(group) >= question["request"]["nums"]), ())


def _chosen_of(question: Json, ours: Json, pool: Sequence[str]) -> bool:
    """The first ones. Under ``topology-aware`` the best linked; of equals those that leave the best-linked rest.

    Of equals again those with the lowest indices. A single card is the one that the rest misses least. Where there are
    too many choices to try them, none that changes one card may be better.
    """
    chosen = _uuids(ours)
    count = len(chosen)
    if not _topology(question) or count == len(pool):
        return chosen == list(pool[:count])
    links, index = values.links(question.get("pair_scores")), {one["id"]: one["index"] for one in question["devices"]}

    def worth(choice: Sequence[str]) -> tuple[int, int, list[int]]:
        rest = list((Counter(pool) - Counter(choice)).elements())
        return links.total(choice), links.total(rest), sorted(-index[uuid] for uuid in choice)[::-1]

    if Counter(chosen) - Counter(pool):
        return False
    if comb(len(pool), count) <= FEW:
        return worth(chosen) == max(map(worth, combinations(pool, count)))
    others = ([*chosen[:n], uuid, *chosen[n + 1 :]] for n in range(count) for uuid in set(pool) - set(chosen))
    return all(worth(other) <= worth(chosen) for other in others)


def _part_of_a_cut_card(question: Json) -> bool:
    """A percentage is asked for, and some card is cut into instances."""
    if not _is_fit(question):
        return False
    request = question["request"]
    percent = request["memreq"] == 0 and 0 < request["mempercentagereq"] <= 100
    return percent and any(device.get("mig_profiles") for device in question["devices"])


def _largest_instance(question: Json, ours: Json, theirs: Json) -> bool:
    """Of what may be had, with an instance of a cut card in it; or none on both sides, with enough reasons on ours."""
    if not ours["ok"]:
        return not theirs["ok"] and len(_pool(question)) < question["request"]["nums"]
    if not _chosen_of(question, ours, _pool(question)):
        return False
    cut = {device["id"] for device in question["devices"] if device.get("mig_profiles")}
    return sound(question, ours) and bool(cut & set(_uuids(ours)))


def _uuids(answer: Json) -> list[str]:
    return [device["uuid"] for devices in answer["devices"].values() for device in devices]


def _numa(question: Json, uuid: str) -> int:
    return next(int(device.get("numa", 0)) for device in question["devices"] if device["id"] == uuid)
