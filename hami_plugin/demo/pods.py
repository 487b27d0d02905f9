"""The pods of the demonstration, as manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hami_plugin.simulation.scheduler import POLICY, TOPOLOGY_AWARE
from hami_plugin.vendor import ResourceNames


def container(
    name: str, resources: ResourceNames | None = None, *, count: int = 1, memory: int = 0, cores: int = 0
) -> dict[str, Any]:
    """A container that asks for ``count`` devices with ``memory`` MiB and ``cores`` percent of each; none without."""
    if resources is None:
        return {"name": name, "image": "example"}
    limits = {resources.count: str(count), resources.memory: str(memory), resources.cores: str(cores)}
    wanted = {key: value for key, value in limits.items() if key and value != "0"}
    return {"name": name, "image": "example", "resources": {"limits": wanted}}


def pod(name: str, containers: Sequence[Mapping[str, Any]], *, topology: bool = False) -> dict[str, Any]:
    """A pod in the namespace ``demo``."""
    annotations = {POLICY: TOPOLOGY_AWARE} if topology else {}
    return {
        "metadata": {"name": name, "namespace": "demo", "annotations": annotations},
        "spec": {"containers": [dict(item) for item in containers], "schedulerName": "hami-scheduler"},
    }
