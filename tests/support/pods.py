"""Pods and families as HAMi's own tests spell them, as ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_plugin.model.views import PodView, pod_view
from hami_plugin.scheduler.engine.devices import PodAllocation
from hami_plugin.scheduler.engine.node_info import PodInfo
from hami_plugin.sdk import Family, load_vendor, vendor_names
from tests.hami import values
from tests.support.hami import Json

SECTIONS = {"NVIDIA": "nvidia", "MLU": "cambricon", "DCU": "hygon"}
FIELDS = {
    "resource_count_name": "resourceCountName",
    "resource_memory_name": "resourceMemoryName",
    "resource_core_name": "resourceCoreName",
    "memory_factor": "memoryFactor",
}


def families(resource_names: Json | None = None) -> tuple[Family, ...]:
    """All families, with these resource names."""
    names = resource_names or {}
    sections: dict[str, dict[str, Any]] = {}
    for device_type, fields in names.items():
        known = {FIELDS[key]: value for key, value in fields.items()}
        if device_type in SECTIONS and any(key.startswith("resource_") for key in fields):
            if device_type == "MLU":  # its unit is fixed
                known.pop("memoryFactor", None)
            sections[SECTIONS[device_type]] = known
        elif device_type.startswith("Ascend"):
            known["resourceName"] = known.pop("resourceCountName")
            sections["ascend"] = {"configs": [ascend(device_type, known)]}
    return tuple(family for name in vendor_names() for family in of_vendor(name, sections.get(name, {})))


def ascend(device_type: str, known: Json) -> Json:
    return {
        "chipName": device_type,
        "commonWord": device_type,
        "memoryAllocatable": 32768,
        "memoryCapacity": 32768,
        "aiCore": 20,
        "templates": [],
        **known,
    }


def of_vendor(name: str, section: Json) -> tuple[Family, ...]:
    vendor = load_vendor(name)
    return vendor.families(vendor.settings.model_validate(section, by_alias=True))


def nvidia(prefix: str = "nvidia.com") -> tuple[Family, ...]:
    """NVIDIA's family under the resource names of HAMi's tests."""
    parts = {
        "resourceCountName": "gpu",
        "resourceMemoryName": "gpumem",
        "resourceMemoryPercentageName": "gpumem-percentage",
        "resourceCoreName": "gpucores",
    }
    return of_vendor("nvidia", {key: f"{prefix}/{part}" for key, part in parts.items()})


def json_of(pod: Json | None) -> dict[str, Any]:
    """A pod as the API server has it."""
    pod = pod or {}
    names = ("name", "namespace", "uid", "annotations", "labels")
    group = pod.get("scheduling_group", {})
    return {
        "metadata": {
            **{key: pod[key] for key in names if key in pod},
            "deletionTimestamp": pod.get("deletion_timestamp"),
        },
        "spec": {
            "nodeName": pod.get("node_name"),
            "schedulerName": pod.get("scheduler_name"),
            "schedulingGroup": {"podGroupName": group.get("pod_group_name")},
            "initContainers": [container(one) for one in pod.get("init_containers") or ()],
            "containers": [container(one) for one in pod.get("containers") or ()],
        },
        "status": {"phase": pod.get("phase") or pod.get("status", {}).get("phase")},
    }


def container(item: Json) -> Json:
    resources = {key: item[key] for key in ("limits", "requests") if key in item}
    return {"name": item.get("name", ""), "resources": resources}


def view(pod: Json | None) -> PodView:
    return pod_view(json_of(pod))


def held(pod: PodView, devices: Mapping[str, Sequence[Any]] | None) -> dict[str, PodAllocation]:
    """What a pod has, as HAMi's cache spells it: one pod's containers added up already, where it says ``slots``."""
    return {
        device_type: PodAllocation(pod=pod, pieces=tuple(map(piece, pieces)))
        for device_type, pieces in (devices or {}).items()
    }


def piece(items: Iterable[Json] | None) -> Any:
    return tuple(replace(values.grant({"uuid": "", **item}), slots=item.get("slots", 1)) for item in items or ())


def entry(item: Json) -> PodInfo:
    """An entry of HAMi's pod cache."""
    pod = view(item)
    return PodInfo(pod=pod, node=item.get("node_id", ""), held=held(pod, item.get("devices")))
