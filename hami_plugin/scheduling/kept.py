"""What a scheduler need not work out again for the next pod, as long as nothing that it depends on has changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import is_

from hami_plugin.policy.linked import Solved
from hami_plugin.policy.sites import Site
from hami_plugin.scheduling.ledger import Entry
from hami_plugin.scheduling.sites import occupied
from hami_plugin.vendor import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class _Occupied:
    """A node with what these entries have of it. Whatever it was made of is compared by identity."""

    families: tuple[Family, ...]
    site: Site
    entries: Sequence[Entry]
    result: Site

    def still(self, families: tuple[Family, ...], site: Site, entries: Sequence[Entry]) -> bool:
        same = self.site is site and self.families is families and len(self.entries) == len(entries)
        return same and all(map(is_, self.entries, entries))


class Occupancy:
    """Nodes with what pods have of them. A node is worked out anew when it or one of its entries is another object:
    whoever keeps nodes and the ledger puts new values in the place of old ones, and changes none.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Occupied] = {}

    def of(self, families: tuple[Family, ...], site: Site, entries: Sequence[Entry]) -> Site:
        """The node, less what the entries have of it."""
        name = site.node.name
        known = self._known.get(name)
        if known is None or not known.still(families, site, entries):
            result = occupied(site, families, [one.held for one in entries])
            known = self._known[name] = _Occupied(families=families, site=site, entries=entries, result=result)
        return known.result

    def keep(self, names: Collection[str]) -> None:
        """Forget all other nodes, once they are the most."""
        if len(self._known) > 2 * len(names):
            self._known = {name: known for name, known in self._known.items() if name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One is handed from question to question. Nothing in it changes an answer; without it everything takes longer."""

    occupancy: Occupancy = field(default_factory=Occupancy)
    solved: Solved = field(default_factory=Solved)
