"""Pods that ask for devices, as manifests."""

from collections.abc import Sequence
from typing import Any

from hami_plugin.demo.steps import container
from hami_plugin.sdk import Resources

NAMESPACE = "demo"


def asking(
    name: str, resources: Resources, *, count: int = 1, memory: int = 0, cores: int = 0, sidecar: bool = False
) -> dict[str, Any]:
    """A container that asks for devices; ``sidecar`` makes it one that restarts, for ``inits``."""
    asked = container(name, resources, count=count, memory=memory, cores=cores)
    return {**asked, "restartPolicy": "Always"} if sidecar else asked


def idle(name: str) -> dict[str, Any]:
    """A container that asks for nothing."""
    return container(name)


def manifest(
    name: str,
    containers: Sequence[dict[str, Any]],
    *,
    inits: Sequence[dict[str, Any]] = (),
    scheduler: str = "hami-scheduler",
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    spec = {"initContainers": list(inits), "containers": list(containers), "schedulerName": scheduler}
    return {"metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations or {}}, "spec": spec}


def small(name: str, resources: Resources, *, memory: int = 3000, cores: int = 30) -> dict[str, Any]:
    """A pod of one container with a share of one device."""
    return manifest(name, [asking("main", resources, memory=memory, cores=cores)])
