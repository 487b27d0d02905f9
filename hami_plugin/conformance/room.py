"""Whether a whole decision, as answered, takes nothing twice, and is written down at the containers that it is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hami_plugin.conformance.catalog import Catalog
from hami_plugin.conformance.decisions import Situation, situation
from hami_plugin.parity import Json
from hami_plugin.scheduler.engine.pods import Demands, Site, demands
from hami_plugin.scheduler.engine.requests import Invalid

Pieces = Sequence[Sequence[Json]]


def sound_decision(question: Json, answer: Json, catalog: Catalog) -> bool:
    """Each node is judged once. Where it fits, each container has as many devices as it asks for, and there is room.

    What is written to the pod has these devices at the places of these containers. A request that means nothing fits
    nowhere.
    """
    asked = situation(question, catalog)
    wanted = demands(asked.pod, asked.rules)
    if isinstance(wanted, Invalid):
        return not answer["scores"] and not answer["best"] and not answer["annotations"]
    sites = {site.node.name: site for site in asked.sites}
    judged = [*(one["node"] for one in answer["scores"]), *answer["failed"]]
    best = [one["devices"] for one in answer["scores"] if one["node"] == answer["best"]]
    return (
        sorted(judged) == sorted(sites)
        and all(
            _counted(asked, wanted, one["devices"]) and _room(asked, sites[one["node"]], one["devices"])
            for one in answer["scores"]
        )
        and all(_in_place(asked, given, answer["annotations"]) for given in best)
    )


def _in_place(asked: Situation, given: Mapping[str, Pieces], written: Json) -> bool:
    """One entry for each container of the pod, in its order: its own devices, or nothing. No other family has any."""
    expected: dict[str, str] = {}
    for family in asked.families:
        for key in (family.annotations.to_allocate, family.annotations.allocated):
            if key and family.device_type in given:
                entries = ["".join(map(_as_written, piece)) for piece in given[family.device_type]]
                expected[key] = "".join(f"{entry};" for entry in entries)
    keys = {key for one in asked.families for key in (one.annotations.to_allocate, one.annotations.allocated) if key}
    return {key: written[key] for key in keys & written.keys()} == expected


def _as_written(grant: Json) -> str:
    return "{uuid},{type},{usedmem},{usedcores}:".format(**grant)


def _counted(asked: Situation, wanted: Demands, given: Mapping[str, Pieces]) -> bool:
    def counts(device_type: str) -> list[int]:
        return [want[device_type].count if device_type in want else 0 for want in wanted]

    return all(
        [len(piece) for piece in given[device_type]] == counts(device_type)
        if device_type in given
        else not any(counts(device_type))
        for device_type in asked.known
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
