"""The nodes as a watch tells of them: what each can offer now, and what it is to be asked."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hami_plugin.aio import Watched
from hami_plugin.log import logger
from hami_plugin.model.views import Feed, NodeView, revision
from hami_plugin.protocol.keys import BIND_LOCK
from hami_plugin.scheduler.engine.handshake import Trust, trusted
from hami_plugin.scheduler.engine.pods import Site
from hami_plugin.scheduler.engine.satisfiable import Sizes, largest, sizes
from hami_plugin.scheduler.engine.survey import registered
from hami_plugin.vendor import Family

log = logger(__name__)

Clock = Callable[[], datetime]
"""The present time, with its zone."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """One node. ``site`` has all that it registered, whether its daemons live or not, and ``sizes`` what is largest."""

    live: Watched[NodeView | None]
    facts: Hashable = None
    site: Site
    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    trust: Trust = field(default_factory=lambda: Trust(offered=frozenset()))


class Nodes:
    """Every node. A node's devices are read once for each change of what they are written in."""

    def __init__(self, families: Sequence[Family], now: Clock) -> None:
        self._families = {family.word: family for family in families}
        self._volatile = frozenset(
            key
            for family in families
            for key in (family.annotations.handshake, family.rules.lock.annotation if family.rules.lock else "")
        )
        self._volatile |= {BIND_LOCK}
        self._now = now
        self._known: dict[str, _Known] = {}
        self._sites: dict[str, Site] = {}
        self._largest: Mapping[str, Sizes] | None = None
        self.listed = Watched(False)
        self.feed: Feed[NodeView] = Feed(replace=self._replace, update=self.deliver, delete=self._delete)

    @property
    def sites(self) -> Mapping[str, Site]:
        """What each node offers: its devices whose daemon is believed to live, as if nobody had anything of them."""
        return self._sites

    @property
    def largest(self) -> Mapping[str, Sizes]:
        """What is largest of all that nodes have registered, also while their daemons are away, by family word."""
        if self._largest is None:
            self._largest = largest(known.sizes for known in self._known.values())
        return self._largest

    def live(self, name: str) -> Watched[NodeView | None]:
        """The node at each change; a closed one for a node that nobody knows."""
        if known := self._known.get(name):
            return known.live
        nobody: Watched[NodeView | None] = Watched(None)
        nobody.close()
        return nobody

    def answered(self, node: NodeView) -> None:
        """Take the answer to a call of ours. That of a node which the watch does not know, or knows to be another by
        now, is dropped: nothing would ever tell that it is gone.
        """
        known = self._known.get(node.name)
        if known and known.live.value and known.live.value.uid == node.uid:
            self.deliver(node)

    def deliver(self, node: NodeView) -> None:
        """Take a view from the watch. An older one of the same node is dropped."""
        known = self._known.get(node.name)
        seen = known.live.value if known else None
        if seen and seen.uid == node.uid and revision(node.resource_version) < revision(seen.resource_version):
            return
        self._see(node)

    def judge(self) -> Mapping[str, Mapping[str, str | None]]:
        """Time has passed: judge every node again. What is to be written to which node, if anything."""
        for known in self._known.values():
            if known.live.value:
                self._trust(known, known.live.value, known.live.value)
        return {name: known.trust.write for name, known in self._known.items() if known.trust.write}

    def _replace(self, nodes: Sequence[NodeView]) -> None:
        for name in self._known.keys() - {node.name for node in nodes}:
            self._forget(name)
        for node in nodes:
            self._see(node)
        self.listed.set(True)

    def _delete(self, node: NodeView) -> None:
        self._forget(node.name)

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        self._sites.pop(name, None)
        self._largest = None
        if known:
            known.live.set(None)
            known.live.close()

    def _see(self, node: NodeView) -> None:
        known = self._known.get(node.name)
        facts = self._facts(node)
        if known is None:
            known = _Known(live=Watched(None), site=Site(node=node, stocks={}))
            self._known[node.name] = known
        before = known.live.value
        if before is not None and before.uid != node.uid:
            before = None
        if known.facts != facts:
            known.facts, known.site = facts, self._read(node)
            before_sizes, known.sizes = known.sizes, sizes(known.site, self._families.values())
            if known.sizes != before_sizes:
                self._largest = None
            self._sites.pop(node.name, None)
        known.live.set(node)
        self._trust(known, node, before)

    def _read(self, node: NodeView) -> Site:
        surveyed = registered(node, self._families.values())
        for problem in surveyed.problems:
            log.warning("devices of a node cannot be read", node=node.name, problem=problem)
        stocks = {word: stock for word, stock in surveyed.site.stocks.items() if stock.states}
        return replace(surveyed.site, stocks=stocks)

    def _trust(self, known: _Known, node: NodeView, before: NodeView | None) -> None:
        """Judge the node's daemons, and offer what is theirs. The offer stays the same object while it is the same."""
        there = {word: self._families[word] for word in known.site.stocks}
        now = self._now().astimezone().replace(tzinfo=None)  # the wire has the writer's local time
        trust = trusted(node, there, now, before=before, silent=known.trust.silent)
        if trust.silent != known.trust.silent:
            log.info("a node's daemons fell silent, or are heard again", node=node.name, silent=sorted(trust.silent))
        if node.name not in self._sites or trust.offered != known.trust.offered:
            stocks = {word: stock for word, stock in known.site.stocks.items() if word in trust.offered}
            self._sites[node.name] = replace(known.site, stocks=stocks)
        known.trust = trust

    def _facts(self, node: NodeView) -> Hashable:
        annotations = {key: text for key, text in node.annotations.items() if key not in self._volatile}
        return tuple(frozenset(texts.items()) for texts in (annotations, node.labels, node.capacity, node.allocatable))
