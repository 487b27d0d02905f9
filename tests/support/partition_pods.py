"""Pods with partitions in an invented language: one annotation says what is decided, another what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cdi.spec import ContainerEdits
from hami_plugin.errors import WireError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.placement import Assignment
from hami_plugin.model.views import PodView
from hami_plugin.sdk import Injection, Partition, PartitionSide, Placement, Reservation
from tests.support.partitions import Cards, FakePartitionDriver

DECIDED, NAMED = "toy.io/parts", "toy.io/parts-made"


def decided(*parts: tuple[str, int, str, str, int, int]) -> dict[str, str]:
    """The annotation for parts, each a container, its number there, card, profile, start and size."""
    return {DECIDED: json.dumps(parts)}


def reserved(pod: PodView) -> Sequence[Reservation]:
    try:
        parts = json.loads(pod.annotations.get(DECIDED, "[]"))
        named = json.loads(pod.annotations.get(NAMED, "{}"))
    except ValueError as error:
        raise WireError(f"{DECIDED}: {error}") from error
    return [
        Reservation(
            container=container,
            device=device,
            card=card,
            profile=profile,
            placement=Placement(start=start, size=size),
            **named.get(f"{container}/{device}", {}),
        )
        for container, device, card, profile, start, size in parts
    ]


def wanted(assignment: Assignment) -> Sequence[Reservation]:
    return [one for one in reserved(assignment.pod) if one.container == assignment.container.name]


def inject(_assignment: Assignment, made: Sequence[Partition], _host: HostFiles) -> Injection:
    return Injection(edits=ContainerEdits(env={"TOY_PARTS": ",".join(one.uuid for one in made)}))


def names(_pod: PodView, pairs: Sequence[tuple[Reservation, Partition]]) -> Mapping[str, str]:
    told = {f"{one.container}/{one.device}": {"uuid": part.uuid, "ids": dict(part.ids)} for one, part in pairs}
    return {NAMED: json.dumps(told, sort_keys=True)}


def side(cards: Cards, **changes: bool) -> PartitionSide:
    return PartitionSide(
        open=lambda _host: FakePartitionDriver(cards),
        reserved=reserved,
        wanted=wanted,
        inject=inject,
        names=names,
        **changes,
    )
