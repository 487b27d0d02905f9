"""Where our choice of dies differs from HAMi's on purpose."""

from __future__ import annotations

from collections import Counter

from hami_plugin.scheduler.engine.devices import Context, Demand
from hami_plugin.scheduler.engine.fit import fit
from tests.hami import values
from tests.hami.parity import CHOICE, Json, Parity, asks_fit, differences, sound
from vendors.vastai import DEVICE_TYPE, VastaiSettings, by_die, card, families


def _free_dies(question: Json) -> list[Json]:
    """Devices of the question, by die, of which each would serve; empty where there is nothing to choose."""
    if not asks_fit(question, DEVICE_TYPE):
        return []
    states = values.states(question)
    everything = Demand(device_type=DEVICE_TYPE, count=len(states) + 1)
    context = Context(demand=everything, pod=values.pod(question["pod"]), states=states)
    if not by_die(context) or not 1 < question["request"]["nums"] < len(states):
        return []
    (family,) = families(VastaiSettings())
    assert family.rules.policy
    verdicts = fit(family.rules.policy, states, context).verdicts
    serving = {verdict.state.uuid for verdict in verdicts if verdict.reason is None}
    return [device for device in question["devices"] if device["id"] in serving]


def _some_without_card(question: Json) -> bool:
    """More dies are free than are asked for, and of some the card is not known."""
    free = _free_dies(question)
    return (
        bool(free)
        and len(free) > question["request"]["nums"]
        and any(card(die.get("custominfo")) is None for die in free)
    )


def _cards_alike(question: Json) -> bool:
    """More dies are free than are asked for, and two cards have as many of them."""
    free = _free_dies(question)
    sizes = Counter(name for name in (card(die.get("custominfo")) for die in free) if name is not None).values()
    return bool(free) and len(free) > question["request"]["nums"] and len(set(sizes)) < len(sizes)


def _as_many(question: Json, ours: Json, theirs: Json) -> bool:
    """As many free dies as asked for, from as few cards as HAMi's; dies of unknown cards aside."""
    free = {die["id"] for die in _free_dies(question)}
    return (
        bool(theirs["ok"])
        and sound(question, ours)
        and {die["uuid"] for die in ours["devices"][DEVICE_TYPE]} <= free
        and _by_card(ours) == _by_card(theirs)
    )


def _by_card(answer: Json) -> list[int]:
    names = [card(die.get("custominfo")) for die in answer["devices"].get(DEVICE_TYPE) or ()]
    return sorted(Counter(name for name in names if name is not None).values())


def parity() -> Parity:
    """Two rules for the choice of dies."""
    rules = {"D-191": (_some_without_card, _as_many, CHOICE), "D-192": (_cards_alike, _as_many, CHOICE)}
    return Parity(differences=differences(rules))
