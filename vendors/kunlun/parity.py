"""How our answers about Kunlun XPUs are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from hami_plugin.conformance import values
from hami_plugin.parity import Json, Parity, asks_fit, differences, pod_annotations, sound
from hami_plugin.policy.states import DeviceState
from vendors.kunlun.family import CARD, PART, WHOLE

SELECTORS = (("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"), ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"))
MEMORY = "kunlunxin.com/vxpu-memory"
LEFT, RIGHT = frozenset(range(4)), frozenset(range(4, 8))
CROSSING = ({0, 1, 4, 5}, {2, 3, 6, 7}, {0, 2, 4, 6}, {1, 3, 5, 7}, {0, 3, 4, 7}, {1, 2, 5, 6})


def parity() -> Parity:
    """Kunlun's part in the comparison."""
    rules = {
        "D-140": (_out_of_order, _well_wired),
        "D-141": (_out_of_slots, _well_wired),
        "D-142": (_no_part, _turned_away),
    }
    return Parity(differences=differences(rules))


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
        return not possible
    return sound(question, ours) and {one["idx"] for one in ours["devices"][question["vendor"]]} in possible


def _free(question: Json) -> set[int]:
    alone = question["vendor"] == WHOLE or "mutex" in pod_annotations(question).get("hami.io/gpu-scheduler-policy", "")
    return {
        card.index
        for card in values.states(question)
        if card.info.health
        and card.slots < (1 if alone else card.info.count)
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


def _no_part(question: Json) -> bool:
    """The memory of a part is no whole number of MiB, or more than a card has."""
    if question["fn"] not in ("request", "mutate") or question["vendor"] != PART:
        return False
    container = question["container"]
    places = (container.get("requests") or {}) if question["fn"] == "request" else {}
    text = {**places, **(container.get("limits") or {})}.get(MEMORY)
    return text is not None and not (text.isdecimal() and int(text) <= CARD)


def _turned_away(question: Json, ours: Json, _theirs: Json) -> bool:
    return "err" in ours if question["fn"] == "mutate" else not ours["request"]["nums"]
