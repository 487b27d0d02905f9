"""HAMi's own cases as questions in our recorder's words, so that one reader serves every vendor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from hami_plugin.sdk import Family
from tests.hami.answers import NO_REQUEST
from tests.hami.catalog import Catalog
from tests.hami.run import Case
from tests.support.hami import Json

QUESTIONS = {
    "Fit": "fit",
    "GenerateResourceRequests": "request",
    "MutateAdmission": "mutate",
    "ScoreNode": "score_node",
}
NAMES = {
    "custom_info": "custominfo",
    "instance_count": "instanceCount",
    "mem_percentagereq": "mempercentagereq",
    "memory_mb": "memoryMB",
    "mig_allocations_in_use": "mig_in_use",
    "pod_infos": "pods",
    "previous_devices": "previous",
    "slice_count": "sliceCount",
}
"""HAMi's fields in the words of our questions."""

LEFT_OUT = {
    "mig_profiles": {"memoryMB": 0, "core": 0, "sliceCount": 0},
    "mig_in_use": {},
    "placements": {"start": 0},
    "occupied": {"start": 0},
}
"""What a zero is written as in our questions, by the list that it stands in."""

SECTION = {"default_gpu_num": "defaultGPUNum", "resource_priority": "resourcePriorityName"}
"""Keys of a configuration that are not spelt as usual; the usual `resource_count_name` is `resourceCountName`."""

CONTEXT = {
    "HygonResourceCount": "resourceCountName",
    "HygonResourceMemory": "resourceMemoryName",
    "HygonResourceCores": "resourceCoreName",
    "MLUResourceCount": "resourceCountName",
    "MLUResourceMemory": "resourceMemoryName",
    "MLUResourceCores": "resourceCoreName",
    "MemoryFactor": "memoryFactor",
}

WORDS = {
    "amd": "AMD",
    "awsneuron": "AWSNeuron",
    "biren": "Biren",
    "cambricon": "MLU",
    "EnflameDevices": "Enflame",
    "GCUDevices": "GCU",
    "hygon": "DCU",
    "iluvatar": "MR-V100",
    "KunlunDevices": "kunlun",
    "kunlun": "XPU",
    "MetaxDevices": "Metax-GPU",
    "mthreads": "Mthreads",
    "nvidia": "NVIDIA",
    "vastai": "Vastai",
}
"""Our families by HAMi's type, or by its package where that has one."""


@cache
def catalog() -> Catalog:
    return Catalog()


def family(device_type: str) -> Family:
    return catalog().find({"vendor": device_type}).family


def word_of(case: Json) -> str:
    """The family that a case is about. Ascend's chips have theirs in the configuration."""
    package, *name = case["fn"].split(".")
    configured = (case["input"].get("backend") or {}).get("config", {}).get("common_word", "Ascend910A")
    return WORDS.get(name[0]) or WORDS.get(package) or configured


def renamed(value: Any) -> Any:
    match value:
        case {"as_int64_ok": False, "quantity": text}:
            return text
        case dict():
            items = {NAMES.get(key, key): renamed(item) for key, item in value.items()}
            filled = {key: [LEFT_OUT[key] | one for one in items[key] or ()] for key in LEFT_OUT.keys() & items.keys()}
            places = {key: {"start": 0, **items[key]} for key in ("placement", "migPlacement") if items.get(key)}
            return {**items, **filled, **places}
        case list():
            return [renamed(item) for item in value]
        case _:
            return value


def section(case: Json) -> dict[str, Any]:
    """The configuration that a case was asked under, as in the vendor's section of device-config.yaml."""
    backend = case["input"].get("backend") or {}
    configured = {"default_gpu_num": 0, **backend["config"]} if "config" in backend else dict(backend)
    if configured.get("resource_core_name") == configured.get("resource_memory_name"):
        configured.pop("resource_core_name", None)  # two resources of one name: a slip of the test
    around = {CONTEXT[key]: value for key, value in case.get("context", {}).items() if key in CONTEXT}
    return {**around, **{SECTION.get(key) or camel(key): value for key, value in configured.items()}}


def camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(device_type.title() for device_type in more)


def question(case: Json) -> Case:
    """A case as a question to its family."""
    kind = QUESTIONS[case["fn"].rpartition(".")[2]]
    given = renamed(case["input"])
    where = given.get("node_info") or {}
    lists = {key: given[key] for key in ("devices", "previous", "pod_devices") if given.get(key)}
    pieces = lists.pop("pod_devices", ())
    named_ones = {key: [called(one, "id", "index") for one in devices] for key, devices in lists.items()}
    granted = [[called(one, "uuid", "idx") for one in piece] for piece in pieces]
    infos = [info for infos in (where.get("devices") or {}).values() for info in infos]
    quotas = case.get("context", {}).get("quotas", {}).get((given.get("pod") or {}).get("namespace"), {})
    return Case(
        id=case["id"],
        question={
            "node": where.get("node"),
            **given,
            **named_ones,
            **({"pod_devices": granted} if granted else {}),
            "fn": kind,
            "vendor": word_of(case),
            "config": yaml.safe_dump({case["fn"].partition(".")[0]: section(case)}),
            "request": {**NO_REQUEST, **given.get("request", {})},
            "pair_scores": [
                {"uuid": info["id"], "score": info["device_pair_score"]["scores"]}
                for info in infos
                if "device_pair_score" in info
            ],
            "quota_limits": {name: quota["limit"] for name, quota in quotas.items() if quota.get("limit_set")},
            "quota_used": {name: quota.get("used", 0) for name, quota in quotas.items()},
        },
        answers=(answer(kind, case),),
    )


def called(device: Json, name: str, number: str) -> Json:
    """A device that a test leaves without a name is called by its number."""
    return {name: str(device.get(number, 0)), **device}


def answer(kind: str, case: Json) -> Json:
    """HAMi's answer, in our recorder's words."""
    expected = renamed(case["expected"])
    if kind == "fit":
        return {"ok": expected["fit"], "reason": expected["reason"], "devices": expected["devices"]}
    if kind == "request":
        return {"request": expected["request"]}
    if kind == "score_node":
        return {"score": expected["result"]}
    given, after = renamed(case["input"]), expected.get("after") or {}
    container: Mapping[str, Any] = {**given["container"], **after.get("container", {})}
    pod = after.get("pod") or given["pod"] or {}
    return {
        "err": expected["error"],
        "found": expected["found"],
        "limits": container.get("limits"),
        "requests": container.get("requests"),
        "env": container.get("env"),
        "pod_annotations": pod.get("annotations"),
        "runtime_class": pod.get("runtime_class_name"),
    }


def expected(item: Json) -> Json:
    """Without what is zero, and without what is not the device's own: its vendor, and its links."""
    others = ("vendor", "device_vendor", "device_pair_score")
    return {key: value for key, value in item.items() if value and key not in others}
