"""Kubernetes objects from files, as kubectl saves them or users write them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hami_plugin.errors import HamiError
from hami_plugin.host.bounded_yaml import BoundedLoader
from hami_plugin.model.views import NodeView, PodView, node_view, pod_view

Json = Mapping[str, Any]

PLAIN = ("annotations", "labels", "limits", "requests", "capacity", "allocatable", "hard")
"""Mappings of texts and numbers, whose keys are anybody's."""
NESTED = ("metadata", "spec", "status", "template", "jobTemplate", "resources", "securityContext", "schedulingGroup")
LISTS = ("items", "initContainers", "containers", "env")


def misshapen(value: Json, place: str = "") -> str:
    """The first field of the wrong type, as a message; empty if there is none."""
    for key in (*PLAIN, *NESTED):
        inner = value.get(key)
        if inner is not None and not isinstance(inner, Mapping):
            return f"{place}{key} is {_shown(inner)}; it must be a mapping"
        if inner and key in NESTED and (found := misshapen(inner, f"{place}{key}.")):
            return found
    for key in LISTS:
        if found := _of_list(value.get(key), f"{place}{key}"):
            return found
    return ""


def _of_list(value: object, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, list):
        return f"{place} is {_shown(value)}; it must be a list"
    for number, item in enumerate(value):
        if not isinstance(item, Mapping):
            return f"{place}[{number}] is {_shown(item)}; it must be a mapping"
        if found := misshapen(item, f"{place}[{number}]."):
            return found
    return ""


def _shown(value: object) -> str:
    return repr(value)[:40]


STANDARD_INPUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hard:
    """The limits of one ResourceQuota."""

    namespace: str
    limits: Mapping[str, str]


class _Cluster(BoundedLoader):
    """All pods of a large cluster in one file have some million values."""

    most_nodes = 5_000_000


def the_pod(path: Path) -> PodView:
    """The one pod in a file, or the pod that its workload (Deployment, Job, …) makes."""
    found = [pod for item in _objects(path) if (pod := _pod(item)) is not None]
    if len(found) != 1:
        kinds = ", ".join(sorted({str(item.get("kind")) for item in _objects(path)})) or "nothing"
        raise HamiError(f"{path}: has {len(found)} pods ({kinds})", hint="give a file with one pod or one workload")
    return found[0]


def nodes(path: Path) -> tuple[NodeView, ...]:
    """All nodes of a file."""
    found = tuple(node_view(item) for item in _objects(path) if item.get("kind") == "Node")
    if not found:
        raise HamiError(f"{path}: has no node", hint="save one with kubectl get node NAME -o yaml")
    return found


def pods(path: Path) -> tuple[PodView, ...]:
    """All pods of a file; it may have none."""
    return tuple(pod_view(item) for item in _objects(path) if item.get("kind") == "Pod")


def quotas(path: Path) -> tuple[Hard, ...]:
    """All resource quotas of a file."""
    return tuple(
        Hard(
            namespace=str((item.get("metadata") or {}).get("namespace", "default")),
            limits={str(key): str(value) for key, value in ((item.get("spec") or {}).get("hard") or {}).items()},
        )
        for item in _objects(path)
        if item.get("kind") == "ResourceQuota"
    )


def _pod(item: Json) -> PodView | None:
    """A pod, or a workload's pod under the workload's name."""
    if item.get("kind") == "Pod":
        return pod_view(item)
    spec = item.get("spec") or {}
    template = ((spec.get("jobTemplate") or {}).get("spec") or spec).get("template")
    if not isinstance(template, Mapping):
        return None
    meta = {**(item.get("metadata") or {}), "annotations": None, **(template.get("metadata") or {})}
    return pod_view({**template, "metadata": {**meta, "name": (item.get("metadata") or {}).get("name", "")}})


def _objects(path: Path) -> Iterator[Json]:
    try:
        text = sys.stdin.read() if path == STANDARD_INPUT else path.read_text(encoding="utf-8")
        documents = list(yaml.load_all(text, _Cluster))  # a safe loader, with bounds
    except (yaml.YAMLError, ValueError) as error:
        raise HamiError(
            f"{path}: cannot be read as YAML or JSON: {error}", hint="save it with kubectl get -o yaml"
        ) from error
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        if wrong := misshapen(document):
            raise HamiError(f"{path}: {wrong}", hint="write it as `kubectl explain` has it")
        items = document.get("items")
        yield from [document] if items is None else items
