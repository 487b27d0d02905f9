"""Whole MetaX GPUs: MetaX's device plugin picks the cards and foretells, per node, what so many would be worth."""

from __future__ import annotations

from hami_plugin.errors import WireError
from hami_plugin.model.views import NodeView
from hami_plugin.protocol.grammar import from_json
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.scheduler.engine.policy import Policy, standard
from hami_plugin.scheduler.engine.registered import counted_in
from hami_plugin.scheduler.engine.requests import amount, counted, if_limited
from hami_plugin.scheduler.engine.scores import Decision
from hami_plugin.sdk import AnnotationKeys, Family, Resources, SchedulingRules
from vendors.metax.settings import MetaxSettings

DEVICE_TYPE = "Metax-GPU"
FORETOLD = {"binpack": "metax-tech.com/gpu.topology.losses", "spread": "metax-tech.com/gpu.topology.scores"}
"""By node policy: what the other cards would lose, and how well the granted ones would be linked."""

FULL_MARKS = 2000.0
UNKNOWN = {"binpack": 0.0, "spread": FULL_MARKS}
"""The last place: binpack takes the highest, spread the lowest."""


def family(settings: MetaxSettings) -> Family:
    """Cards without names of their own: what counts is how many are free."""
    return Family(
        device_type=DEVICE_TYPE,
        resources=Resources(count=settings.whole),
        annotations=AnnotationKeys(
            to_allocate="hami.io/metax-gpu-devices-to-allocate", allocated="hami.io/metax-gpu-devices-allocated"
        ),
        rules=SchedulingRules(
            policy=Policy(
                request=counted(DEVICE_TYPE, count=amount(settings.whole), default_cores=100),
                serves=standard(DEVICE_TYPE),
                score=foretold,
            ),
            admit=if_limited(settings.whole),
            node_devices=counted_in(settings.whole, _card),
            lock=None,
        ),
    )


def foretold(decision: Decision) -> float:
    """2000 less the node's loss (binpack) or score (spread) for as many cards as the pod gets."""
    if decision.order not in FORETOLD:
        return 0.0
    text = decision.node.annotations.get(FORETOLD[decision.order], "")
    value = forecast(text, sum(map(len, decision.pieces)))
    return UNKNOWN[decision.order] if value is None else FULL_MARKS - value


def forecast(text: str, count: int) -> int | None:
    """What ``{"1": 0, "2": 110}`` says of ``count`` cards."""
    try:
        table = from_json(text, "forecast")
    except WireError:
        return None
    value = table.get(str(count)) if isinstance(table, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _card(node: NodeView, number: int, _count: int) -> DeviceInfo:
    name = f"{node.name}-metax-{number}"
    return DeviceInfo(
        id=name, index=number, count=1, devmem=65536, devcore=100, type=DEVICE_TYPE, health=True, vendor=DEVICE_TYPE
    )
