"""How our answers about NVIDIA cards are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, groupby
from math import comb

from hami_plugin.conformance import values
from hami_plugin.model.links import Links
from hami_plugin.parity import Json, Parity, asks_fit, but_for, differences, pod_annotations, sound, uuids
from hami_plugin.policy.engine import Granted, fit
from hami_plugin.policy.groups import GO_TRUE
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.states import ORDER_KEY, Context, Slice
from vendors.nvidia.host import FAMILY
from vendors.nvidia.scheduling import mig
from vendors.nvidia.scheduling.pairs import even_pairs_alike, odd_pairs, pair_scores
from vendors.nvidia.scheduling.policy import NUMA_BIND, policy
from vendors.nvidia.settings import NvidiaSettings

FEW = 20_000
"""So many choices are tried one by one to see that ours is the best."""

OTHERWISE = (Reason.NUMA, Reason.TOO_FEW)
"""What HAMi and we count otherwise when cards of several NUMA nodes would do."""


def parity() -> Parity:
    """NVIDIA's part in the comparison."""
    return Parity(
        unset_percent=101,
        answers={"mig_select": _select, "mig_can_place": _can_place, "pair_scores": pair_scores},
        differences=differences(
            {
                "D-023": (odd_pairs, even_pairs_alike),
                "D-110": (_numa_bound, _in_one_numa_node),
                "D-111": (_by_topology, _linked_best),
                "D-112": (_part_of_a_cut_card, _largest_instance),
            }
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


def _bound(question: Json) -> bool:
    return pod_annotations(question).get(NUMA_BIND) in GO_TRUE


def _topology(question: Json) -> bool:
    words = str(pod_annotations(question).get(ORDER_KEY, "")).split(",")
    return "topology-aware" in (word.strip() for word in words)


def _numa_bound(question: Json) -> bool:
    """A NUMA node's cards do not stand together, or topology counts, which HAMi looks at only in the last run."""
    if not (asks_fit(question, FAMILY) and _bound(question)):
        return False
    runs = [numa for numa, _ in groupby(question["devices"], key=lambda device: device.get("numa", 0))]
    return _topology(question) or len(runs) != len(set(runs))


def _in_one_numa_node(question: Json, ours: Json, theirs: Json) -> bool:
    """A grant within one NUMA node where HAMi finds none; or no grant either, for the same reasons but NUMA."""
    if theirs["ok"]:
        return False
    if ours["ok"]:
        return sound(question, ours) and len({_numa(question, uuid) for uuid in uuids(ours)}) == 1
    return but_for(ours["reason"], *OTHERWISE) == but_for(theirs["reason"], *OTHERWISE)


def _by_topology(question: Json) -> bool:
    return asks_fit(question, FAMILY) and _topology(question)


def _linked_best(question: Json, ours: Json, theirs: Json) -> bool:
    """Both grant, and no other choice would be linked better (one card: tear less)."""
    if not (theirs["ok"] and sound(question, ours)):
        return False
    links, chosen, his = values.links(question.get("pair_scores")), uuids(ours), uuids(theirs)
    numas = {_numa(question, uuid) for uuid in chosen}
    if _bound(question) and len(numas) != 1:
        return False
    pool = [uuid for uuid in _eligible(question) if not _bound(question) or _numa(question, uuid) in numas]
    if not set(chosen) <= set(pool):
        return False
    if len(chosen) == 1:
        return _torn(links, chosen[0], pool) == min(_torn(links, uuid, pool) for uuid in pool)
    several_of_one = len(set(chosen)) < len(chosen) or len(set(his)) < len(his)
    if several_of_one or question.get("quota_limits") or comb(len(pool), len(chosen)) > FEW:
        return bool(set(his) - set(pool)) or links.total(chosen) >= links.total(his)
    return links.total(chosen) == max(links.total(choice) for choice in combinations(pool, len(chosen)))


def _torn(links: Links, uuid: str, pool: Sequence[str]) -> int:
    return sum(links.score(uuid, peer) for peer in pool if peer != uuid)


def _eligible(question: Json) -> list[str]:
    """The cards of which each alone would be granted."""
    one = Parity().demand({**question["request"], "nums": 1})
    context = Context(
        demand=one, pod=values.pod(question["pod"]), node=values.node(question.get("node")), recall=question
    )
    rules = policy(NvidiaSettings())
    return [state.uuid for state in values.states(question) if isinstance(fit(rules, [state], context), Granted)]


def _part_of_a_cut_card(question: Json) -> bool:
    """A percentage is asked for, and some card is cut into instances."""
    if not asks_fit(question, FAMILY):
        return False
    request = question["request"]
    percent = request["memreq"] == 0 and 0 < request["mempercentagereq"] <= 100
    return percent and any(device.get("mig_profiles") for device in question["devices"])


def _largest_instance(question: Json, ours: Json, theirs: Json) -> bool:
    """A sound grant with an instance of a cut card in it; or no grant on both sides."""
    if not ours["ok"]:
        return not theirs["ok"]
    cut = {device["id"] for device in question["devices"] if device.get("mig_profiles")}
    return sound(question, ours) and bool(cut & set(uuids(ours)))


def _numa(question: Json, uuid: str) -> int:
    return next(int(device.get("numa", 0)) for device in question["devices"] if device["id"] == uuid)
