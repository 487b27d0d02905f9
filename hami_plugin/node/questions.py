"""How a family's decisions are read from a pod, by the resource that the kubelet counts."""

from __future__ import annotations

from hami_plugin.protocol.decisions import Question
from hami_plugin.vendor import Family, Units


def question_of(family: Family, units: Units | None = None) -> Question:
    """The question about whole devices or shares of them, or about ``units``."""
    names = family.resources
    counted = (names.count, *(one.resource for one in names.units))
    resource, lock = units.resource if units else names.count, family.rules.lock
    return Question(
        resource=resource,
        to_allocate=family.annotations.to_allocate,
        allocated=family.annotations.allocated,
        memory="" if names.sized_by_count else names.memory,
        memory_percent=names.memory_percent,
        cores="" if names.cores_are_bits or names.cores_are_counted or names.sized_by_count else names.cores,
        memory_factor=names.memory_factor,
        also=tuple(name for name in counted if name != resource),
        ids=units.of_grant if units else names.ids,
        lock=lock.annotation if lock and not lock.named else "",
    )
