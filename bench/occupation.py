"""A cluster of alike nodes, parts of which random pods have: what a scheduler knows that keeps watches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.selection import links_of, profile
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.nodes import DeviceInfo, encode_json, score_annotation
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.scheduler.engine.node_info import PodIndex
from hami_plugin.sdk import Family, load_vendor, vendor_names

DEVICE_TYPE = "NVIDIA"
COUNT, MEMORY, CORES, ORDER = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpucores",
    "hami.io/gpu-scheduler-policy",
)
WHOLE = 81920
PARTS = (4096, 8192, 16384, 24576)
"""MiB of a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes as the API server has them, every family that there is, and who has what."""

    nodes: Sequence[NodeView]
    families: tuple[Family, ...]
    ledger: PodIndex


def cluster(machine: str, size: int, chance: random.Random) -> Cluster:
    """``size`` nodes of a packaged machine. Of ten cards about two are whole pods', and five are shared."""
    families = tuple(
        family
        for vendor in map(load_vendor, vendor_names())
        for family in vendor.families(vendor.settings.model_validate({}))
    )
    family = next(family for family in families if family.resources.device_type == DEVICE_TYPE)
    scores = profile(machine)
    nodes = [node_view_of(f"node-{number:04}", family, scores) for number in range(size)]
    ledger = PodIndex()
    for node in nodes:
        for pod in _pods(node.name, family, len(scores), chance):
            ledger.see(pod, families)
    return Cluster(nodes=nodes, families=families, ledger=ledger)


def nvidia() -> Family:
    """The family of whole and shared NVIDIA cards, as it is without any setting."""
    vendor = load_vendor("nvidia")
    families = vendor.families(vendor.settings.model_validate({}))
    return next(family for family in families if family.resources.device_type == DEVICE_TYPE)


def asking(uid: str, count: int, annotations: Mapping[str, str]) -> PodView:
    """A pod that is to be scheduled: so many cards, a part of each."""
    return PodView(
        uid=uid,
        namespace="bench",
        name=uid,
        annotations=annotations,
        containers=(_container(count, 8000, 20),),
    )


def node_view_of(name: str, family: Family, scores: Sequence[Sequence[int]]) -> NodeView:
    uuids = _uuids(name, len(scores))
    cards = [
        DeviceInfo(
            id=uuid,
            index=index,
            count=10,
            devmem=WHOLE,
            devcore=100,
            type="NVIDIA-H100",
            numa=index * 2 // len(uuids),
            mode="hami-core",
            health=True,
        )
        for index, uuid in enumerate(uuids)
    ]
    linked = score_annotation(links_of(uuids, scores), uuids)
    assert linked is not None
    keys = family.rules.annotations
    return NodeView(name=name, annotations={keys.register: encode_json(cards), keys.score: linked})


def _uuids(node: str, count: int) -> list[str]:
    return [f"GPU-{node}-5150-4ccd-8a11-{index:012x}" for index in range(count)]


def _pods(node: str, family: Family, cards: int, chance: random.Random) -> Iterator[PodView]:
    """First pods with whole cards, several of them linked ones; then pods with a part of one of the others."""
    free = _uuids(node, cards)
    chance.shuffle(free)
    for number in range(chance.choice((0, 0, 1, 2, cards // 2))):
        taken, free = free[:2], free[2:]
        yield _running(f"{node}-whole-{number}", node, family, [part(uuid, WHOLE, 100) for uuid in taken])
    for card, uuid in enumerate(free):
        for share in range(chance.choice((0, 0, 1, 1, 2, 3))):
            grant = part(uuid, chance.choice(PARTS), chance.choice((0, 10, 25)))
            yield _running(f"{node}-part-{card}-{share}", node, family, [grant])


def part(uuid: str, memory: int, cores: int) -> Grant:
    return Grant(uuid=uuid, device_type=DEVICE_TYPE, memory=memory, cores=cores)


def _running(name: str, node: str, family: Family, piece: Sequence[Grant]) -> PodView:
    return PodView(
        uid=name,
        namespace="bench",
        name=name,
        node=node,
        phase="Running",
        annotations={ASSIGNED_NODE: node, family.rules.annotations.allocated: encode_devices([tuple(piece)])},
        containers=(_container(len(piece), piece[0].memory, piece[0].cores),),
    )


def _container(count: int, memory: int, cores: int) -> ContainerView:
    limits = {COUNT: str(count), MEMORY: str(memory), CORES: str(cores)}
    return ContainerView(name="main", limits=limits)
