"""A node with what it has, and a pod placed there or not, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hami_plugin.model.links import NO_LINKS, Links
from hami_plugin.model.views import ContainerView, NodeView
from hami_plugin.policy.demand import Demand
from hami_plugin.policy.engine import Granted, Policy, Refused
from hami_plugin.policy.linked import Solved
from hami_plugin.policy.states import Context, DeviceState, Given, Quota

Rules = Mapping[str, Policy]
"""The families that a scheduler knows, by word."""

Demands = tuple[Mapping[str, Demand], ...]
"""What each container of a pod asks for, by family word; init containers first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What a node has of one family: the devices with what is taken of them, as registered, and their links."""

    states: tuple[DeviceState, ...]
    links: Links = NO_LINKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node, and what it has by family word.

    ``kept`` is how many ids of healthy devices the kubelet keeps for pods, by resource, where these may be more than
    the devices tell.
    """

    node: NodeView
    stocks: Mapping[str, Stock]
    kept: Mapping[str, int] = field(default_factory=dict)

    @property
    def states(self) -> tuple[DeviceState, ...]:
        """All devices of all families."""
        return tuple(state for stock in self.stocks.values() for state in stock.states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a decision depends on beside the pod and the node. ``order`` is the cluster's device order.

    On ``solved`` only depends how long it takes.
    """

    order: str = "spread"
    quota: Quota = field(default_factory=Quota)
    solved: Solved | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One container's part of one family: what the rules were told, and what they said."""

    container: ContainerView
    context: Context
    states: tuple[DeviceState, ...]
    outcome: Granted | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The pod fits. ``given`` has one piece for each container; ``after`` is what is taken then."""

    site: Site
    given: Given
    steps: tuple[Step, ...]
    after: Mapping[str, tuple[DeviceState, ...]]
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """The pod does not fit. The last step is the one that failed, if the rules were asked at all."""

    site: Site
    why: str
    steps: tuple[Step, ...] = ()
