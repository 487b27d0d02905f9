"""How our answers about NVIDIA cards are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from hami_plugin.conformance import fits, linked, values
from hami_plugin.parity import (
    NO_PERCENTAGE,
    PLACED,
    Json,
    Parity,
    asks_fit,
    but_for,
    differences,
    pod_annotations,
    sound,
    uuids,
)
from hami_plugin.policy.charges import asked
from hami_plugin.policy.groups import GO_TRUE
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.states import ORDER_KEY, DeviceState, Slice
from vendors.nvidia.host import FAMILY
from vendors.nvidia.scheduling import mig
from vendors.nvidia.scheduling.pairs import even_pairs_alike, odd_pairs, pair_scores
from vendors.nvidia.scheduling.policy import NUMA_BIND, policy
from vendors.nvidia.settings import NvidiaSettings

MOST_TAKEN = 1000
"""More than a node has cards and instances."""

OTHERWISE = (Reason.NUMA, Reason.TOO_FEW)
"""What HAMi and we count otherwise when cards of several NUMA nodes would do."""


def parity() -> Parity:
    """NVIDIA's part in the comparison."""
    return Parity(
        unset_percent=101,
        answers={"mig_select": _select, "mig_can_place": _can_place, "pair_scores": pair_scores},
        differences=differences(
            {
                "D-023": (odd_pairs, even_pairs_alike, ("asymmetric", "scores")),
                "D-110": (_numa_bound, _in_one_numa_node, PLACED),
                "D-111": (_by_topology, _linked_best, PLACED),
                "D-112": (_part_of_a_cut_card, _largest_instance, PLACED),
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
    """The first NUMA node with enough cards serves; or none does, for the same other reasons. HAMi takes the first run
    of neighbours that has enough, and by topology what is linked best of the last run; or there is none.
    """
    able, wanted, runs = _pool(question), question["request"]["nums"], _runs(question)
    run = next((run for run in (runs[-1:] if _topology(question) else runs) if len(run) >= wanted), None)
    if bool(theirs["ok"]) != (run is not None) or (run and not _chosen_of(question, theirs, run, whole=False)):
        return False
    if ours["ok"]:
        return sound(question, ours) and len(able) >= question["request"]["nums"] and _chosen_of(question, ours, able)
    no_node = len(able) < question["request"]["nums"]
    return no_node and but_for(ours["reason"], *OTHERWISE) == but_for(theirs["reason"], *OTHERWISE)


def _runs(question: Json) -> list[list[str]]:
    """What could be granted, by runs of neighbours of one NUMA node, in walking order."""
    well = [device for device in reversed(question["devices"]) if device.get("health")]
    runs = [[*run][::-1] for _, run in groupby(well, key=lambda device: device.get("numa", 0))]
    taken = _all_taken if _topology(question) else _able
    return [list(taken({**question, "devices": run})) for run in runs]


def _by_topology(question: Json) -> bool:
    """Several cards are wanted whole, so that the rest counts; or HAMi, which first takes all that would do, finds
    others: each instance of a card counts as one, and each counts against a namespace's quota.
    """
    if not (asks_fit(question, FAMILY) and _topology(question)) or _bound(question):
        return False
    pool = _pool(question)
    return list(pool) != list(_all_taken(question)) or (
        question["request"]["nums"] > 1 and _taken_whole(question, pool)
    )


def _linked_best(question: Json, ours: Json, theirs: Json) -> bool:
    """HAMi's are the first of those that are linked best, and ours those that leave the best-linked rest."""
    taken = _all_taken(question)
    if bool(theirs["ok"]) != (len(taken) >= question["request"]["nums"]) or not sound(question, ours):
        return False
    his = not theirs["ok"] or _chosen_of(question, theirs, taken, whole=False)
    return his and _chosen_of(question, ours, _pool(question))


def _all_taken(question: Json) -> Sequence[str]:
    """What HAMi takes one after the other before it chooses by links."""
    demand = Parity().demand(question["request"])
    return fits.serving(question, policy(NvidiaSettings()), replace(demand, count=MOST_TAKEN))


def _able(question: Json) -> Sequence[str]:
    return fits.serving(question, policy(NvidiaSettings()), Parity().demand(question["request"]))


def _pool(question: Json) -> Sequence[str]:
    """What could be granted, in walking order: where NUMA counts, of the first NUMA node that has enough."""
    able = _able(question)
    if not _bound(question):
        return able
    nodes = dict.fromkeys(device.get("numa", 0) for device in reversed(question["devices"]))
    groups = [[uuid for uuid in able if _numa(question, uuid) == numa] for numa in nodes]
    return next((group for group in groups if len(group) >= question["request"]["nums"]), ())


def _chosen_of(question: Json, answer: Json, pool: Sequence[str], *, whole: bool = True) -> bool:
    """The first ones; under ``topology-aware`` the best linked, and of ``whole`` cards those that leave the best."""
    chosen = uuids(answer)
    if not _topology(question) or len(chosen) == len(pool):
        return chosen == list(pool[: len(chosen)])
    return linked.best_of(question, chosen, pool, whole=whole and _taken_whole(question, pool))


def _taken_whole(question: Json, pool: Sequence[str]) -> bool:
    """Of each of these cards the container takes all memory, all cores, or the only share."""
    return all(
        card.info.count == 1
        or 0 < card.info.devmem <= _memory(question, card)
        or 0 < card.info.devcore <= question["request"]["coresreq"]
        for card in values.states(question)
        if card.uuid in pool
    )


def _memory(question: Json, card: DeviceState) -> int:
    """Of a card that is cut no more than its largest instance."""
    request, total = question["request"], card.info.devmem
    percent = 0 if request["mempercentagereq"] in NO_PERCENTAGE else request["mempercentagereq"]
    largest = max((one.memory for one in card.info.mig_profiles), default=total) if mig.cut(card) else total
    return int(request["memreq"] or min(total * percent // 100, largest))


def _part_of_a_cut_card(question: Json) -> bool:
    """A percentage is asked for, and some card is cut into instances."""
    if not asks_fit(question, FAMILY):
        return False
    request = question["request"]
    percent = request["memreq"] == 0 and 0 < request["mempercentagereq"] <= 100
    return percent and any(device.get("mig_profiles") for device in question["devices"])


def _largest_instance(question: Json, ours: Json, theirs: Json) -> bool:
    """Of what may be had, with an instance of a cut card in it; or none on both sides, with enough reasons on ours."""
    of_all = replace(policy(NvidiaSettings()), charge=asked)
    if not fits.answered_by(question, theirs, of_all, parity()):
        return False
    if not ours["ok"]:
        return not theirs["ok"] and len(_pool(question)) < question["request"]["nums"]
    if not _chosen_of(question, ours, _pool(question)):
        return False
    cut = {device["id"] for device in question["devices"] if device.get("mig_profiles")}
    return sound(question, ours) and bool(cut & set(uuids(ours)))


def _numa(question: Json, uuid: str) -> int:
    return next(int(device.get("numa", 0)) for device in question["devices"] if device["id"] == uuid)
