"""Whole scheduling decisions, in the recorder's words: several nodes, pods that run already, one new pod."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hami_plugin.model.views import PodView
from hami_plugin.protocol.pods import decode_devices, encode_devices
from hami_plugin.scheduler.engine.devices import Demand, Given, Invalid, NodeInfo, Piece, PodAllocation
from hami_plugin.scheduler.engine.filter import ScoredNodes, score_nodes
from hami_plugin.scheduler.engine.fit import CycleOptions, Demands, Policies, pod_demands
from hami_plugin.scheduler.engine.node_info import device_pool, patch, scheduling_policies
from hami_plugin.sdk import Family
from tests.hami import values
from tests.hami.catalog import Catalog, Known
from tests.hami.parity import Json

MOMENT = re.compile(r"^[0-9]{10,}$")
"""Seconds or nanoseconds since 1970."""

CIRCUMSTANCES = CycleOptions(order="spread")
NODE_ORDER = "binpack"
"""As the recorder's HAMi was configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A question about a whole decision as our values."""

    question: Json
    pod: PodView
    known: Mapping[str, Known]
    node_infos: tuple[NodeInfo, ...]

    @property
    def device_type(self) -> str:
        """The family that the question is about."""
        return str(self.question["vendor"])

    @property
    def rules(self) -> Policies:
        return scheduling_policies(self.families)

    @property
    def families(self) -> Sequence[Family]:
        return [known.family for known in self.known.values()]


def situation(question: Json, catalog: Catalog) -> Situation:
    """Read the question, with all families there are."""
    known = catalog.all(question)
    running = [
        (
            one["node"],
            values.pod(one["pod"]),
            {device_type: _as_annotated(p) for device_type, p in one["devices"].items()},
        )
        for one in question.get("running") or ()
    ]
    node_infos = []
    for item in question["nodes"]:
        node = values.node(item)
        pools = {
            device_type: device_pool(
                node,
                one.family,
                [
                    PodAllocation(pod=pod, pieces=given[device_type])
                    for name, pod, given in running
                    if name == node.name and device_type in given
                ],
            )
            for device_type, one in known.items()
        }
        node_infos.append(NodeInfo(node=node, pools=pools))
    return Situation(question=question, pod=values.pod(question["pod"]), known=known, node_infos=tuple(node_infos))


def _as_annotated(recorded: Sequence[Sequence[Json]]) -> tuple[Piece, ...]:
    """What a running pod has, as far as its annotation tells it: a scheduler knows no more."""
    return decode_devices(encode_devices(values.pieces(recorded)))[:-1]


def answer(question: Json, catalog: Catalog) -> Json:
    """Our decision."""
    asked = situation(question, catalog)
    policies = asked.rules
    wanted = pod_demands(asked.pod, policies)
    choice = score_nodes(asked.pod, policies, asked.node_infos, CIRCUMSTANCES, order=NODE_ORDER)
    return {
        "requests": [] if isinstance(wanted, Invalid) else [requests(asked.known, one) for one in wanted],
        "err": "",
        **told(asked, choice),
    }


def told(asked: Situation, choice: ScoredNodes) -> Json:
    """A choice of a node, and what is written to the pod."""
    best = choice.best
    return {
        "best": best.node_info.node.name if best else "",
        "failed": {one.node_info.node.name: one.why for one in choice.failed},
        "annotations": timeless(patch(asked.families, asked.pod, best)) if best else {},
        "scores": [
            {"node": one.name, "score": one.score, "devices": devices(one.placed.given)} for one in choice.fitting
        ],
    }


def requests(known: Mapping[str, Known], wanted: Mapping[str, Demand]) -> Json:
    return {
        device_type: known[device_type].parity.request(demand, known[device_type].parity.unset_percent)
        for device_type, demand in wanted.items()
    }


def devices(given: Given) -> dict[str, Any]:
    return {
        device_type: [[values.granted(grant) for grant in piece] for piece in pieces]
        for device_type, pieces in given.items()
    }


def timeless(written: Mapping[str, str]) -> dict[str, str]:
    """The moment of the decision as the recorder writes it."""
    return {key: MOMENT.sub("<time>", text) for key, text in written.items()}


Pieces = Sequence[Sequence[Json]]


def sound_decision(question: Json, answer: Json, catalog: Catalog) -> bool:
    """Each node is judged once. Where it fits, each container has as many devices as it asks for, and there is room.

    What is written to the pod has these devices at the places of these containers. A request that means nothing fits
    nowhere.
    """
    asked = situation(question, catalog)
    wanted = pod_demands(asked.pod, asked.rules)
    if isinstance(wanted, Invalid):
        return not answer["scores"] and not answer["best"] and not answer["annotations"]
    node_infos = {node_info.node.name: node_info for node_info in asked.node_infos}
    judged = [*(one["node"] for one in answer["scores"]), *answer["failed"]]
    best = [one["devices"] for one in answer["scores"] if one["node"] == answer["best"]]
    return (
        sorted(judged) == sorted(node_infos)
        and all(
            _counted(asked, wanted, one["devices"]) and _room(asked, node_infos[one["node"]], one["devices"])
            for one in answer["scores"]
        )
        and all(_in_place(asked, given, answer["annotations"]) for given in best)
    )


def _in_place(asked: Situation, given: Mapping[str, Pieces], written: Json) -> bool:
    """One entry for each container of the pod, in its order: its own devices, or nothing. No other family has any."""
    expected: dict[str, str] = {}
    for family in asked.families:
        for key in (family.rules.annotations.to_allocate, family.rules.annotations.allocated):
            if key and family.resources.device_type in given:
                entries = ["".join(map(_as_written, piece)) for piece in given[family.resources.device_type]]
                expected[key] = "".join(f"{entry};" for entry in entries)
    keys = {
        key
        for one in asked.families
        for key in (one.rules.annotations.to_allocate, one.rules.annotations.allocated)
        if key
    }
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


def _room(asked: Situation, node_info: NodeInfo, given: Mapping[str, Pieces]) -> bool:
    """Once for what runs together, and once for each plain init container."""
    together = [number for number, container in enumerate(asked.pod.containers) if not container.alone]
    alone = [[number] for number, container in enumerate(asked.pod.containers) if container.alone]
    return all(
        _fits(node_info, [grant for number in numbers for grant in pieces[number]])
        for pieces in given.values()
        for numbers in (together, *alone)
    )


def _fits(node_info: NodeInfo, grants: Sequence[Json]) -> bool:
    slots = Counter(grant["uuid"] for grant in grants)
    memory = Counter[str]()
    for grant in grants:
        memory[grant["uuid"]] += grant["usedmem"]
    free = {state.uuid: state for state in node_info.states}
    return all(
        uuid in free
        and free[uuid].info.health
        and free[uuid].slots + slots[uuid] <= free[uuid].info.count
        and memory[uuid] <= max(free[uuid].free_memory, 0)
        for uuid in slots
    )
