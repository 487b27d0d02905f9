"""Whether an object out of a file has the shape of a Kubernetes object, where its fields are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

PLAIN = ("annotations", "labels", "limits", "requests", "capacity", "allocatable", "hard")
"""Mappings of texts and numbers, whose keys are anybody's."""
NESTED = ("metadata", "spec", "status", "template", "jobTemplate", "resources", "securityContext", "schedulingGroup")
LISTS = ("items", "initContainers", "containers", "env")


def misshapen(value: Json, place: str = "") -> str:
    """The first field of another shape than Kubernetes gives it, in words; empty where there is none."""
    for key in (*PLAIN, *NESTED):
        inner = value.get(key)
        if inner is not None and not isinstance(inner, Mapping):
            return f"{place}{key} is {_shown(inner)}, and must be a mapping"
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
        return f"{place} is {_shown(value)}, and must be a list"
    for number, item in enumerate(value):
        if not isinstance(item, Mapping):
            return f"{place}[{number}] is {_shown(item)}, and must be a mapping"
        if found := misshapen(item, f"{place}[{number}]."):
            return found
    return ""


def _shown(value: object) -> str:
    return repr(value)[:40]
