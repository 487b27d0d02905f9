"""The pods of the demonstration, as manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.policy.admission import Admitted
from hami_plugin.simulation.scheduler import POLICY, TOPOLOGY_AWARE
from hami_plugin.vendor import Family, ResourceNames


def container(
    name: str, resources: ResourceNames | None = None, *, count: int = 1, memory: int = 0, cores: int = 0
) -> dict[str, Any]:
    """A container that asks for ``count`` devices with ``memory`` MiB and ``cores`` percent of each; none without."""
    if resources is None:
        return {"name": name, "image": "example"}
    limits = {resources.count: str(count), resources.memory: str(memory), resources.cores: str(cores)}
    wanted = {key: value for key, value in limits.items() if key and value != "0"}
    return {"name": name, "image": "example", "resources": {"limits": wanted}}


def admitted(family: Family, name: str, *, count: int = 1, memory: int, cores: int) -> dict[str, Any]:
    """A container as admission stores it. What the family does not serve together is left out: cores, then memory."""
    made: dict[str, Any] = {}
    for mib, percent in ((memory, cores), (memory, 0), (0, 0)):
        units = -(-mib // family.memory_factor)
        made = container(name, family.resources, count=count, memory=units, cores=percent)
        limits: dict[str, str] = made["resources"]["limits"]
        asked = ContainerView(name=name, limits=limits, requests=limits)
        verdict = family.admit(asked, PodView(uid="", namespace="demo", name=name))
        if isinstance(verdict, Admitted):
            limits.update(verdict.limits)
            break
    return made


def pod(name: str, containers: Sequence[Mapping[str, Any]], *, topology: bool = False) -> dict[str, Any]:
    """A pod in the namespace ``demo``."""
    annotations = {POLICY: TOPOLOGY_AWARE} if topology else {}
    return {
        "metadata": {"name": name, "namespace": "demo", "annotations": annotations},
        "spec": {"containers": [dict(item) for item in containers], "schedulerName": "hami-scheduler"},
    }
