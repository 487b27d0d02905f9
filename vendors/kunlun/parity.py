"""How our answers about Kunlun XPUs are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction

from hami_plugin.conformance import values
from hami_plugin.parity import (
    ADMISSION,
    PLACED,
    REQUEST,
    Json,
    Parity,
    amount,
    asks_fit,
    differences,
    pod_annotations,
    sound,
)
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.states import DeviceState
from vendors.kunlun.family import CARD, PART, WHOLE

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


def _well_wired(question: Json, ours: Json, _theirs: Json) -> bool:
    """One of the best groups of cards that may be had; none if there is none."""
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


def _one_reason(question: Json) -> str:
    """Cards that are not this pod's, by the first of three reasons; if there are none, that no group is free."""
    cards, annotations = values.states(question), pod_annotations(question)
    others = [card for card in cards if not all(_allowed(annotations, card.uuid, *pair) for pair in SELECTORS)]
    roomy = [card for card in cards if question["vendor"] == PART and _has_room(question, card)]
    counts = {
        Reason.EXCLUSIVE: sum(card.slots > 0 for card in roomy) if _alone(question) else 0,
        Reason.UUID_MISMATCH: len(others),
        Reason.NO_SLOT: sum(card.slots >= card.info.count for card in roomy),
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
    memory = _memory(question) or Fraction()
    part = next((size for size in (CARD // 4, CARD // 2) if memory <= size), CARD)
    if question["fn"] == "mutate":
        return bool(ours.get("err")) and (theirs.get("limits") or {}).get(MEMORY) == str(part)
    part = CARD if memory.denominator > 1 else part
    return not ours["request"]["nums"] and bool(theirs["request"]["memreq"] == part)
