"""How our answers about NVIDIA cards are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

from hami_plugin.model.device import Link, symmetric
from hami_plugin.protocol.nodes import MigProfile
from hami_plugin.scheduler.engine.devices import (
    ORDER_KEY,
    Candidate,
    Context,
    DeviceState,
    Reason,
    Slice,
    charge_request,
    summary,
)
from hami_plugin.scheduler.engine.fit import collect_candidates, device_checker
from hami_plugin.scheduler.engine.policy import GO_TRUE, Policy
from hami_plugin.sdk import Range
from tests.hami import fits, values
from tests.hami import fits as linked
from tests.hami.compare import compared
from tests.hami.fits import counted
from tests.hami.parity import NO_PERCENTAGE, PLACED, Json, Parity, asks_fit, differences, pod_annotations, sound, uuids
from vendors.nvidia import rules
from vendors.nvidia.driver import link
from vendors.nvidia.host import FAMILY
from vendors.nvidia.rules import NUMA_BIND, Place, best_place, places_left, policy
from vendors.nvidia.settings import NvidiaSettings

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


MAX_TAKEN = 1000
"""More than a node has cards and instances."""

BEFORE_NUMA = (Reason.UNHEALTHY, Reason.CORDONED, Reason.TYPE_MISMATCH)
"""Cards with one of these against them are passed over before HAMi sees their NUMA node."""


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
                "D-114": (_placed_otherwise, _at_the_least_cost, ("placement", "applied", "usage_after")),
            }
        ),
    )


def _select(question: Json, place: Place = best_place) -> Json:
    found = rules.choose(values.profiles(question["mig_caps"]), _occupied(question), question["mem"], place)
    if found is None:
        return {"ok": False}
    profile, chosen = found
    return {
        "ok": True,
        "profile": profile.name,
        "memoryMB": profile.memory,
        "core": profile.cores,
        "placement": {"start": chosen.start, "size": chosen.size},
    }


def _can_place(question: Json) -> Json:
    names = question["mig_requested"]
    return {"ok": rules.can_place(values.profiles(question["mig_caps"]), _occupied(question), names)}


def _occupied(question: Json) -> tuple[Slice, ...]:
    return tuple(Slice(profile="", start=one["start"], size=one["size"]) for one in question.get("mig_occupied") or ())


def hamis_place(profile: MigProfile, _profiles: object, occupied: Sequence[Range]) -> Range | None:
    """The first free one: of 1g and 3g the highest, of others the lowest."""
    return next(iter(places_left(profile, occupied)), None)


def cost(profile: MigProfile, profiles: Sequence[MigProfile], occupied: Sequence[Range], place: Range) -> int:
    """How many slices the places have that larger profiles lose."""

    def possible(taken: Sequence[Range]) -> int:
        slices = [set(range(start, start + size)) for start, size in taken]
        places = [
            one for other in profiles for one in other.placements if (one[1], other.slices) > (place[1], profile.slices)
        ]
        return sum(
            size for start, size in places if all(taken.isdisjoint(range(start, start + size)) for taken in slices)
        )

    return possible(occupied) - possible([*occupied, place])


def _policy_of_hami() -> Policy:
    return replace(policy(NvidiaSettings()), book=partial(rules.book, place=hamis_place))


def _placed_otherwise(question: Json) -> bool:
    """HAMi's place costs larger instances more."""
    if question["fn"] == "mig_select":
        return _select(question) != _select(question, hamis_place)
    if not asks_fit(question, FAMILY) or not question.get("apply"):
        return False
    ours, his = (fits.answer(question, one, parity()) for one in (policy(NvidiaSettings()), _policy_of_hami()))
    return ours != his


def _at_the_least_cost(question: Json, ours: Json, theirs: Json) -> bool:
    """HAMi's is the first free place, ours the first that costs least."""
    if question["fn"] == "fit":
        return sound(question, ours) and fits.answered_by(question, theirs, _policy_of_hami(), parity())
    known = values.profiles(question["mig_caps"])
    profile = next(one for one in known if one.name == theirs["profile"])
    taken = [(one.start, one.size) for one in _occupied(question)]
    best = min(places_left(profile, taken), key=lambda place: cost(profile, known, taken, place))
    here = {**theirs, "placement": {"start": best[0], "size": best[1]}}
    return not compared(question, ours, here) and not compared(question, _select(question, hamis_place), theirs)


def _bound(question: Json) -> bool:
    return pod_annotations(question).get(NUMA_BIND) in GO_TRUE


def _topology(question: Json) -> bool:
    words = str(pod_annotations(question).get(ORDER_KEY, "")).split(",")
    return "topology-aware" in (word.strip() for word in words)


def _numa_bound(question: Json) -> bool:
    """A NUMA node's cards do not stand together, or not those that HAMi sees; or topology counts, which it looks at
    only in the last run.
    """
    if not (asks_fit(question, FAMILY) and _bound(question)):
        return False
    runs = [run[0].info.numa for run in _runs(question)[0]]
    order = dict.fromkeys(device.get("numa", 0) for device in reversed(question["devices"]))
    return _topology(question) or runs != [numa for numa in order if numa in runs]


def _in_one_numa_node(question: Json, ours: Json, theirs: Json) -> bool:
    """The first NUMA node with enough cards serves, or none does. HAMi goes by runs of neighbours."""
    if not _as_hami(question, theirs):
        return False
    able = _pool(question)
    if ours["ok"]:
        enough = len(able) >= question["request"]["nums"]
        return bool(enough and sound(question, ours) and _chosen_of(question, ours, able))
    left = sum(counted(ours["reason"]).get(reason, 0) for reason in (Reason.NUMA, Reason.TOO_FEW))
    return bool(len(able) < question["request"]["nums"] and left == sum(map(len, _groups(question))))


def _as_hami(question: Json, theirs: Json) -> bool:
    """HAMi's rule: cards are taken run by run, until one run has enough; under ``topology-aware`` all that would do of
    the last run, and of them those that are linked best. A percentage is one of a cut card's whole memory.
    """
    linked_ones, wanted = _topology(question), question["request"]["nums"]
    runs, against = _runs(question)
    taken: Sequence[Candidate] = ()
    for run in runs:
        against[Reason.NUMA] += 0 if linked_ones else len(taken)
        taken, (_, reasons) = collect_candidates(_of_all(), run, _circumstances(question))
        against.update(filter(None, reasons))
        if len(taken) >= wanted and not linked_ones:
            break
    if len(taken) < wanted:
        against[Reason.TOO_FEW] += len(taken)
        return not theirs["ok"] and bool(theirs["reason"] == summary(+against, len(question["devices"])))
    pool = [one.uuid for one in taken]
    if not theirs["ok"] or len(uuids(theirs)) != wanted or not _chosen_of(question, theirs, pool, whole=False):
        return False
    bills = {one.uuid: one.grant(FAMILY) for one in taken}
    return fits.granted(question, theirs, _of_all(), parity(), [bills[uuid] for uuid in uuids(theirs)])


def _of_all() -> Policy:
    return replace(_policy_of_hami(), charge=charge_request)


def _circumstances(question: Json) -> Context:
    demand = Parity().demand(question["request"])
    return fits.options(question, replace(demand, count=MAX_TAKEN) if _topology(question) else demand)


def _runs(question: Json) -> tuple[list[list[DeviceState]], Counter[Reason]]:
    """The cards in walking order, by runs of neighbours of one NUMA node if that counts; and the reasons against those
    that are passed over before.
    """
    context, runs, against = _circumstances(question), list[list[DeviceState]](), Counter[Reason]()
    tried = device_checker(_of_all(), context)
    for state in reversed(context.states):
        found = tried(state, ())
        if isinstance(found, Reason) and found in BEFORE_NUMA:
            against[found] += 1
        elif runs and (runs[-1][0].info.numa == state.info.numa or not _bound(question)):
            runs[-1].append(state)
        else:
            runs.append([state])
    return runs, against


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
    return _as_hami(question, theirs) and sound(question, ours) and _chosen_of(question, ours, _pool(question))


def _all_taken(question: Json) -> Sequence[str]:
    """What HAMi takes one after the other before it chooses by links."""
    demand = Parity().demand(question["request"])
    return fits.serving(question, policy(NvidiaSettings()), replace(demand, count=MAX_TAKEN))


def _able(question: Json) -> Sequence[str]:
    return fits.serving(question, policy(NvidiaSettings()), Parity().demand(question["request"]))


def _pool(question: Json) -> Sequence[str]:
    """What could be granted, in walking order: where NUMA counts, of the first NUMA node that has enough."""
    if not _bound(question):
        return _able(question)
    return next((group for group in _groups(question) if len(group) >= question["request"]["nums"]), ())


def _groups(question: Json) -> list[Sequence[str]]:
    """What could be granted of each NUMA node."""
    nodes = dict.fromkeys(device.get("numa", 0) for device in reversed(question["devices"]))
    cards = ([one for one in question["devices"] if one.get("numa", 0) == numa] for numa in nodes)
    return [_able({**question, "devices": some}) for some in cards]


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
    largest = max((one.memory for one in card.info.mig_profiles), default=total) if rules.is_cut(card) else total
    return int(request["memreq"] or min(total * percent // 100, largest))


def _part_of_a_cut_card(question: Json) -> bool:
    """A percentage is asked for, and some card is cut into instances."""
    if not asks_fit(question, FAMILY):
        return False
    request = question["request"]
    percent = request["memreq"] == 0 and 0 < request["mempercentagereq"] <= 100
    return percent and any(device.get("mig_profiles") for device in question["devices"])


def _largest_instance(question: Json, ours: Json, theirs: Json) -> bool:
    """Of what may be had, with an instance of a cut card in it or chosen by links; or none on both sides."""
    if not _as_hami(question, theirs):
        return False
    if not ours["ok"]:
        return not theirs["ok"] and len(_pool(question)) < question["request"]["nums"]
    if not _chosen_of(question, ours, _pool(question)):
        return False
    cut = {device["id"] for device in question["devices"] if device.get("mig_profiles")}
    return sound(question, ours) and (_topology(question) or bool(cut & set(uuids(ours))))
