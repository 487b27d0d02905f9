"""Whether a whole decision, as answered, takes nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hami_plugin.conformance.decisions import Situation
from hami_plugin.parity import Json
from hami_plugin.policy.sites import Demands, Site

Pieces = Sequence[Sequence[Json]]


def sound_decision(asked: Situation, wanted: Demands, answer: Json) -> bool:
    """Each node is judged once. Where it fits, each container has as many devices as it asks for, and there is room."""
    sites = {site.node.name: site for site in asked.sites}
    judged = [*(one["node"] for one in answer["scores"]), *answer["failed"]]
    return sorted(judged) == sorted(sites) and all(
        _counted(asked, wanted, one["devices"]) and _room(asked, sites[one["node"]], one["devices"])
        for one in answer["scores"]
    )


def _counted(asked: Situation, wanted: Demands, given: Mapping[str, Pieces]) -> bool:
    def counts(word: str) -> list[int]:
        return [want[word].count if word in want else 0 for want in wanted]

    return all(
        [len(piece) for piece in given[word]] == counts(word) if word in given else not any(counts(word))
        for word in asked.known
    )


def _room(asked: Situation, site: Site, given: Mapping[str, Pieces]) -> bool:
    """Once for what runs together, and once for each plain init container."""
    together = [number for number, container in enumerate(asked.pod.containers) if not container.alone]
    alone = [[number] for number, container in enumerate(asked.pod.containers) if container.alone]
    return all(
        _fits(site, [grant for number in numbers for grant in pieces[number]])
        for pieces in given.values()
        for numbers in (together, *alone)
    )


def _fits(site: Site, grants: Sequence[Json]) -> bool:
    slots = Counter(grant["uuid"] for grant in grants)
    memory = Counter[str]()
    for grant in grants:
        memory[grant["uuid"]] += grant["usedmem"]
    free = {state.uuid: state for state in site.states}
    return all(
        uuid in free
        and free[uuid].info.health
        and free[uuid].slots + slots[uuid] <= free[uuid].info.count
        and memory[uuid] <= max(free[uuid].free_memory, 0)
        for uuid in slots
    )
