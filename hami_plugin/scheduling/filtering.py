"""Which of the nodes that kube-scheduler offers a pod goes to: the extender's filter, which leaves at most one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami_plugin.model.views import NodeView, PodView
from hami_plugin.policy.nodes import node_order, standing, tried
from hami_plugin.policy.pods import demands
from hami_plugin.policy.reasons import read
from hami_plugin.policy.sites import Circumstances, Placed, Site, Unplaced
from hami_plugin.scheduling.kept import Kept
from hami_plugin.scheduling.ledger import Ledger
from hami_plugin.scheduling.sites import registered, rules
from hami_plugin.vendor import Family

UNREGISTERED = "node unregistered"
"""HAMi's reason for a node of which no device is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a scheduler knows when it is asked: the cluster's nodes by name, as registered, and who has what of them.

    ``kept`` is worth handing on from one scene to the next.
    """

    families: tuple[Family, ...]
    nodes: Mapping[str, Site]
    ledger: Ledger = field(default_factory=Ledger)
    circumstances: Circumstances = field(default_factory=Circumstances)
    node_order: str = "binpack"
    kept: Kept = field(default_factory=Kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unasked:
    """The pod asks for no device: every node will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """Where the pod goes, if anywhere, and why not to the others."""

    placed: Placed | None
    failed: Mapping[str, str]

    @property
    def summary(self) -> str:
        """On how many nodes which reason stands in the way, the most frequent first. A node may have several."""
        counts = Counter(reason for why in self.failed.values() for reason in read(why) or [why])
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{reason} on {count} of {len(self.failed)} nodes" for reason, count in ordered)


def filtered(scene: Scene, pod: PodView, names: Iterable[str]) -> Filtered | Unasked:
    """Choose among these nodes. What the pod itself has from an earlier decision is free again."""
    policies = rules(scene.families)
    wanted = demands(pod, policies)
    if isinstance(wanted, tuple) and not any(wanted):
        return Unasked()
    sites, failed = _sites(scene, pod, names)
    around = replace(scene.circumstances, solved=scene.kept.solved)
    best, better = None, standing(node_order(pod, scene.node_order))
    for one in tried(pod, policies, sites, around, order=scene.node_order):
        if isinstance(one, Unplaced):
            failed[one.site.node.name] = one.why
        elif best is None or better(one) >= better(best):
            best = one
    return Filtered(placed=best.placed if best else None, failed=failed)


def simulated(scene: Scene, pod: PodView, nodes: Sequence[NodeView]) -> Filtered | Unasked:
    """The same for nodes that need not exist, as a cluster autoscaler asks: nobody has anything of them."""
    offered = {node.name: registered(node, scene.families).site for node in nodes}
    return filtered(replace(scene, nodes=offered, ledger=Ledger(), kept=Kept(solved=scene.kept.solved)), pod, offered)


def _sites(scene: Scene, pod: PodView, names: Iterable[str]) -> tuple[list[Site], dict[str, str]]:
    sites: list[Site] = []
    failed: dict[str, str] = {}
    scene.kept.occupancy.keep(scene.nodes)
    for name in names:
        known = scene.nodes.get(name)
        if known is None or not any(stock.states for stock in known.stocks.values()):
            failed[name] = UNREGISTERED
            continue
        entries = scene.ledger.on(name, without=pod.uid)
        sites.append(scene.kept.occupancy.of(scene.families, known, entries))
    return sites, failed
