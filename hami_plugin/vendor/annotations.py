"""Where a family's facts stand on nodes and pods: the registers, the decisions, and the lock between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hami_plugin.model.device import Snapshot
from hami_plugin.model.views import PodView
from hami_plugin.protocol.decisions import encode_devices
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.scheduler.engine.states import Given

if TYPE_CHECKING:  # a family holds these, and one of them is given the family
    from hami_plugin.vendor.family import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationKeys:
    """Where a family's facts stand on nodes and pods. Empty where the family has none."""

    allocated: str
    to_allocate: str = ""
    register: str = ""
    handshake: str = ""
    score: str = ""

    @classmethod
    def of_agent(cls, name: str, *, pods: str = "") -> AnnotationKeys:
        """The keys of most node agents that speak HAMi's protocol, with the agent's name in each.

        ``pods`` is its name on pods, where that is another one.
        """
        return cls(
            register=f"hami.io/node-{name}-register",
            handshake=f"hami.io/node-handshake-{name}",
            to_allocate=f"hami.io/{pods or name}-devices-to-allocate",
            allocated=f"hami.io/{pods or name}-devices-allocated",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRule:
    """How a scheduler takes a node for itself between its decision and the node's answer.

    ``annotation`` of the node; ``named``: its value names the pod, so that the pod may take it twice.
    """

    annotation: str = NODE_LOCK
    expires_s: float = 300.0
    named: bool = True


SHARED_LOCK = LockRule()
"""HAMi's node lock, the same for all vendors that use it."""

Announce = Callable[[Snapshot, AbstractSet[str]], Mapping[str, str | None]]
"""Annotations of a node from its devices and the UUIDs of those that containers have, None for what it says no more."""

Patch = Callable[["Family", PodView, Given], Mapping[str, str]]
"""The pod annotations that tell a node of a decision. They are asked for where the family has a part in it."""


def both_keys(family: Family, _pod: PodView, given: Given) -> Mapping[str, str]:
    """HAMi's usual two annotations, with the same text."""
    text = encode_devices(given[family.word])
    keys = (family.annotations.to_allocate, family.annotations.allocated)
    return {key: text for key in keys if key}
