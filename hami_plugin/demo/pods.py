"""The pods of the demonstration, as manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.fit import PodFit, fit_pod
from hami_plugin.scheduler.engine.node_info import read_node, scheduling_policies
from hami_plugin.scheduler.engine.requests import Admitted
from hami_plugin.sdk import Family, Resources
from hami_plugin.simulation.scheduler import POLICY, TOPOLOGY_AWARE


def container(
    name: str, resources: Resources | None = None, *, count: int = 1, memory: int = 0, cores: int = 0
) -> dict[str, Any]:
    """A container that requests ``count`` devices, each with ``memory`` units and ``cores``; no devices without
    ``resources``.
    """
    if resources is None:
        return {"name": name, "image": "example"}
    return _asking(name, {resources.count: count, resources.memory: memory, resources.cores: cores})


def pod(name: str, containers: Sequence[Mapping[str, Any]], *, topology: bool = False) -> dict[str, Any]:
    """A pod in the namespace ``demo``."""
    annotations = {POLICY: TOPOLOGY_AWARE} if topology else {}
    return {
        "metadata": {"name": name, "namespace": "demo", "annotations": annotations},
        "spec": {"containers": [dict(item) for item in containers], "schedulerName": "hami-scheduler"},
    }


def part(family: Family, node: NodeView, name: str, *, memory: int, cores: int) -> dict[str, Any] | None:
    """A container with a share of a device: ``memory`` MiB and ``cores`` percent, or the closest supported request.

    None if the family has no shares. What is a share depends on what its rules grant on an idle ``node``.
    """
    ways = _ways(family, memory, cores)
    return next((_asking(name, asked) for asked in ways if _grants_part(family, node, asked)), None)


def _ways(family: Family, memory: int, cores: int) -> Iterator[dict[str, int]]:
    """Possible requests, the most specific first."""
    names = family.resources
    units = -(-memory // family.resources.memory_factor)
    power = 1 << (units - 1).bit_length()  # some families share in fixed sizes only
    wishes = (
        {names.count: 1, names.memory: units, names.cores: cores},
        {names.count: 1, names.memory: units},
        {names.count: 1, names.memory: power},
        {names.count: 1, names.memory_percent: cores},
        {names.count: 1, names.cores: cores},
        {names.cores: 1},
    )
    return (wish for wish in wishes if "" not in wish)


def _grants_part(family: Family, node: NodeView, asked: Mapping[str, int]) -> bool:
    limits = {resource: str(amount) for resource, amount in asked.items()}
    view = ContainerView(name="main", limits=limits, requests=limits)
    verdict = family.rules.admit(view, PodView(uid="", namespace="demo", name="part"))
    if not isinstance(verdict, Admitted):
        return False
    view = ContainerView(name="main", limits={**limits, **verdict.limits}, requests={**limits, **verdict.requests})
    asking = PodView(uid="", namespace="demo", name="part", containers=(view,))
    placed = fit_pod(asking, scheduling_policies([family]), read_node(node, [family], ()).node_info)
    if not isinstance(placed, PodFit):
        return False
    devices = {info.id: info for info in family.rules.node_devices(node)}
    grants = placed.given.get(family.device_type, ((),))[0]
    return any(
        0 < grant.memory < devices[grant.uuid].devmem or 0 < grant.cores < devices[grant.uuid].devcore
        for grant in grants
    )


def _asking(name: str, amounts: Mapping[str, int]) -> dict[str, Any]:
    limits = {resource: str(amount) for resource, amount in amounts.items() if resource and amount}
    return {"name": name, "image": "example", "resources": {"limits": limits}}
