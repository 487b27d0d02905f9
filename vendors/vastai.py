"""Vastai cards, or single dies of them: a container's dies come from as few cards as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hami_plugin.config.settings import ResourceName, VendorSettings, setting
from hami_plugin.conformance import values
from hami_plugin.parity import Json, Parity, asks_fit, differences, sound
from hami_plugin.policy.charges import slot
from hami_plugin.policy.checks import standard
from hami_plugin.policy.demand import Demand
from hami_plugin.policy.engine import Policy, fit
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.registered import in_percent
from hami_plugin.policy.requests import amount, counted
from hami_plugin.policy.scores import Decision, share_together
from hami_plugin.policy.selectors import by_group, when
from hami_plugin.policy.states import Context, DeviceState, Piece
from hami_plugin.vendor import AnnotationKeys, Family, ResourceNames, Vendor
from hami_plugin.wire.nodes import decode_json

WORD = "Vastai"
STRATEGY, CARD = "DeviceStrategy", "AIC"


class VastaiSettings(VendorSettings):
    """Keys of HAMi's ``vastai`` section, with its defaults."""

    count: ResourceName = setting("resourceCountName", "vastaitech.com/va", "Number of cards, or of dies.")


def families(settings: VastaiSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    uuids = ("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid")
    policy = Policy(
        request=counted(WORD, count=amount(settings.count)),
        serves=(*standard(WORD, uuids=uuids), on_an_idle_card),
        charge=slot,
        checks=(),
        select=when(
            lambda context: by_die(context) and context.demand.count > 1,
            by_group(lambda candidate: card(candidate.state.info.custom)),
        ),
        score=dies_together,
    )
    names, keys = ResourceNames(count=settings.count), AnnotationKeys.of_agent("va", pods=WORD)
    return (Family.registered(WORD, names, keys, policy, decode=in_percent(decode_json)),)


def by_die(context: Context) -> bool:
    """The node's agent offers single dies."""
    return any((state.info.custom or {}).get(STRATEGY) == "die" for state in context.states)


def card(custom: Mapping[str, Any] | None) -> str | None:
    """The card that a die is on."""
    name = (custom or {}).get(CARD)
    return name if isinstance(name, str) else None


def on_an_idle_card(state: DeviceState, context: Context) -> Reason | None:
    """Under the order ``mutex`` nobody else has a die of the same card."""
    own = card(state.info.custom)
    if "mutex" not in context.words or own is None or not by_die(context):
        return None
    busy = any(other.slots > 0 and card(other.info.custom) == own for other in context.states)
    return Reason.EXCLUSIVE if busy else None


def dies_together(decision: Decision) -> float:
    """For each container the largest part of its dies on one card; 0 unless all are known to be dies."""
    grants = [grant for piece in decision.pieces for grant in piece]
    if any(card(grant.notes) is None or (grant.notes or {}).get(STRATEGY, "die") != "die" for grant in grants):
        return 0.0
    return sum(_together(piece) for piece in decision.pieces)


def _together(piece: Piece) -> float:
    cards = {grant.uuid: card(grant.notes) for grant in piece}
    return share_together((piece,), cards.get)


def _free_dies(question: Json) -> list[Json]:
    """Devices of the question, by die, of which each would serve; empty where there is nothing to choose."""
    if not asks_fit(question, WORD):
        return []
    states = values.states(question)
    everything = Demand(word=WORD, count=len(states) + 1)
    context = Context(demand=everything, pod=values.pod(question["pod"]), states=states)
    if not by_die(context) or not 1 < question["request"]["nums"] < len(states):
        return []
    (family,) = families(VastaiSettings())
    assert family.policy
    verdicts = fit(family.policy, states, context).verdicts
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
        and {die["uuid"] for die in ours["devices"][WORD]} <= free
        and _by_card(ours) == _by_card(theirs)
    )


def _by_card(answer: Json) -> list[int]:
    names = [card(die.get("custominfo")) for die in answer["devices"].get(WORD) or ()]
    return sorted(Counter(name for name in names if name is not None).values())


def _parity() -> Parity:
    rules = {"D-191": (_some_without_card, _as_many), "D-192": (_cards_alike, _as_many)}
    return Parity(differences=differences(rules))


VENDOR = Vendor(name="vastai", title="Vastai cards", settings=VastaiSettings, families=families, parity=_parity)
