"""How our answers about Kunlun XPUs are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction

from hami_plugin.model.placement import Grant
from hami_plugin.scheduler.engine.devices import DeviceState, Reason
from tests.hami import fits, values
from tests.hami.parity import (
    ADMISSION,
    PLACED,
    REQUEST,
    Json,
    Parity,
    amount,
    asks_fit,
    differences,
    no_request,
    pod_annotations,
    sound,
)
from vendors.kunlun.rules import CARD, PART, WHOLE, families
from vendors.kunlun.settings import KunlunSettings

SELECTORS = (("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"), ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"))
MEMORY = "kunlunxin.com/vxpu-memory"
LEFT, RIGHT = frozenset(range(4)), frozenset(range(4, 8))
CROSSING = ({0, 1, 4, 5}, {2, 3, 6, 7}, {0, 2, 4, 6}, {1, 3, 5, 7}, {0, 3, 4, 7}, {1, 2, 5, 6})


def parity() -> Parity:
    """Kunlun's part in the comparison."""
    rules = {
        "D-140": (_out_of_order, _well_wired, PLACED),
        "D-141": (_out_of_slots, _well_wired, PLACED),
        "D-142": (_no_part, _turned_away, (*REQUEST, *ADMISSION)),
    }
    return Parity(one_reason=True, differences=differences(rules))


def _out_of_order(question: Json) -> bool:
    """A card does not stand in the list where its index says."""
    return asks_fit(question, WHOLE, PART) and any(
        place != one.index for place, one in enumerate(values.states(question))
    )


def _out_of_slots(question: Json) -> bool:
    """A card has room for a part, but its slots are all in use."""
    if not (asks_fit(question, PART)):
        return False
    return any(card.slots >= card.info.count and _has_room(question, card) for card in values.states(question))


def _has_room(question: Json, card: DeviceState) -> bool:
    size = question["request"]["memreq"]
    alike = not card.slots or card.memory // card.slots == size
    return bool(card.info.health and alike and size <= card.free_memory)


def _well_wired(question: Json, ours: Json, theirs: Json) -> bool:
    """One of the best groups of cards that may be had, or none if there is none; where HAMi goes by places."""
    if not _by_place(question, theirs):
        return False
    possible = list(_possible(_free(question), question["request"]["nums"]))
    if not ours["ok"]:
        return not possible and ours["reason"] == _one_reason(question)
    return sound(question, ours) and {one["idx"] for one in ours["devices"][question["vendor"]]} in possible


def _free(question: Json) -> set[int]:
    return {
        card.index
        for card in values.states(question)
        if card.info.health
        and card.slots < (1 if _alone(question) else card.info.count)
        and (question["vendor"] == WHOLE or _has_room(question, card))
        and all(_allowed(pod_annotations(question), card.uuid, *pair) for pair in SELECTORS)
    }


def _allowed(said: Mapping[str, str], uuid: str, use: str, avoid: str) -> bool:
    wanted, unwanted = ([name.strip() for name in said.get(key, "").split(",")] for key in (use, avoid))
    return (wanted == [""] or uuid in wanted) and uuid not in unwanted


def _possible(free: set[int], count: int) -> Iterator[AbstractSet[int]]:
    """Groups of a wing if there are any, of the wing that should be used up first; else those across both wings."""
    if count == 8 and free >= LEFT | RIGHT:
        yield LEFT | RIGHT
    order = {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}.get(count, ())
    in_wings = [wing & free for left in order for wing in (LEFT, RIGHT) if len(wing & free) == left]
    if in_wings:
        yield set(sorted(in_wings[0])[:count])
    elif count == 2:
        yield from ({card, card + 4} for card in free if card + 4 in free)
    elif count == 4:
        yield from (group for group in CROSSING if group <= free)


def _by_place(question: Json, theirs: Json) -> bool:
    """HAMi's rule: the wings are counted by place, the links between them by index, and slots not at all."""
    cards = values.states(question)
    able = [place for place, card in enumerate(cards) if _serves_hami(question, card)]
    chosen = _wired([card.index for card in cards], able, question["request"]["nums"])
    if not chosen:
        return not theirs["ok"] and theirs["reason"] == _one_reason(question, slots=False)
    whole, request = question["vendor"] == WHOLE, question["request"]
    memory, cores = (CARD, 100) if whole else (request["memreq"], request["coresreq"])
    uuids = {card.index: card.uuid for card in cards}
    grants = [
        Grant(uuid=uuids.get(index, ""), device_type=question["vendor"], memory=memory, cores=cores, index=index)
        for index in chosen
    ]
    policy = next(
        one.rules.policy for one in families(KunlunSettings()) if one.resources.device_type == question["vendor"]
    )
    return policy is not None and fits.granted(question, theirs, policy, Parity(), grants)


def _serves_hami(question: Json, card: DeviceState) -> bool:
    used = card.slots > 0
    fits = (not used or not _alone(question)) and (question["vendor"] == WHOLE or _has_room(question, card))
    own = all(_allowed(pod_annotations(question), card.uuid, *pair) for pair in SELECTORS)
    return card.info.health and fits and own


def _wired(index: Sequence[int], able: Sequence[int], count: int) -> Sequence[int]:
    """The indices that HAMi takes of the cards at these places; empty for none."""
    if count == 8 and len(able) == 8:
        return range(8)
    for left in {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}.get(count, ()):
        for wing in ([place for place in able if place < 4], [place for place in able if place >= 4]):
            if len(wing) == left:
                return [index[place] for place in wing[:count]]
    free = [index[place] for place in able]
    if count == 2:
        return next(([one, other] for one in free for other in free if abs(one - other) == 4), [])
    groups = [group for group in CROSSING if group <= set(free)] if count == 4 and len(free) in (4, 5, 6) else []
    if len(free) == 6:
        groups = [group for group in groups if _linked(set(free) - group)] or groups[-1:]
    return sorted(groups[0]) if groups else []


def _linked(pair: AbstractSet[int]) -> bool:
    return pair <= LEFT or pair <= RIGHT or max(pair) - min(pair) == 4


def _one_reason(question: Json, *, slots: bool = True) -> str:
    """Cards that are not this pod's, by the first of three reasons; if there are none, that no group is free.

    HAMi does not look at ``slots``.
    """
    cards, annotations = values.states(question), pod_annotations(question)
    others = [card for card in cards if not all(_allowed(annotations, card.uuid, *pair) for pair in SELECTORS)]
    roomy = [card for card in cards if question["vendor"] == PART and _has_room(question, card)]
    counts = {
        Reason.EXCLUSIVE: sum(card.slots > 0 for card in roomy) if _alone(question) else 0,
        Reason.UUID_MISMATCH: len(others),
        Reason.NO_SLOT: sum(card.slots >= card.info.count for card in roomy) if slots else 0,
    }
    reason = next((reason for reason, count in counts.items() if count), Reason.NUMA)
    return f"{counts.get(reason, 1)}/{len(cards)} {reason}"


def _alone(question: Json) -> bool:
    """Each card is for one container."""
    order = (question["pod"].get("annotations") or {}).get("hami.io/gpu-scheduler-policy", "")
    return question["vendor"] == WHOLE or "mutex" in order


def _no_part(question: Json) -> bool:
    """The memory of a part is no whole number of MiB, less than none, or more than a card has."""
    memory = _memory(question)
    return memory is not None and not (memory.denominator == 1 and 0 <= memory <= CARD)


def _memory(question: Json) -> Fraction | None:
    """How much memory of a part a container asks for; None if it does not, or the question is another one."""
    if question["fn"] not in ("request", "mutate") or question["vendor"] != PART:
        return None
    container = question["container"]
    places = (container.get("requests") or {}) if question["fn"] == "request" else {}
    return amount({**places, **(container.get("limits") or {})}.get(MEMORY, ""))


def _turned_away(question: Json, ours: Json, theirs: Json) -> bool:
    """HAMi makes of it the next larger part; a card of what is too much, and of what a request cannot say."""
    if question["fn"] == "request":
        return no_request(question, ours, theirs)
    memory = _memory(question) or Fraction()
    part = next((size for size in (CARD // 4, CARD // 2) if memory <= size), CARD)
    return bool(ours.get("err")) and (theirs.get("limits") or {}).get(MEMORY) == str(part)
