"""The one family of this vendor: cards, or single dies, of which a container's come from as few cards as possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hami_plugin.protocol.register import decode_json
from hami_plugin.scheduler.engine.devices import Context, DeviceState, Piece
from hami_plugin.scheduler.engine.policy import by_group, when
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.registered import in_percent
from hami_plugin.scheduler.engine.scores import Decision, share_together
from hami_plugin.sdk import AnnotationKeys, Family, Resources, whole_devices
from vendors.vastai.dies import CARD, DEVICE_TYPE, STRATEGY
from vendors.vastai.node import node_side
from vendors.vastai.settings import VastaiSettings


def families(settings: VastaiSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    uuids = ("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid")
    whole = whole_devices(DEVICE_TYPE, settings.count, uuids=uuids, booked=False)
    policy = replace(
        whole,
        serves=(*whole.serves, on_an_idle_card),
        select=when(
            lambda context: by_die(context) and context.demand.count > 1,
            by_group(lambda candidate: card(candidate.state.info.custom)),
        ),
        score=dies_together,
    )
    resources, keys = Resources(count=settings.count), AnnotationKeys.of_agent("va", pods=DEVICE_TYPE)
    family = Family.registered(DEVICE_TYPE, keys, resources, policy, decode=in_percent(decode_json))
    return (replace(family, node=node_side(settings)),)


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
