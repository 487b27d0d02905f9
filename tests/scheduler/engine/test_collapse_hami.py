"""HAMi's own cases of what a pod's containers take together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hami_plugin.scheduler.engine.devices import Piece, effective_grants, sum_grants
from tests.support.hami import Json, asks
from tests.support.pods import held, view


def shares(case: Json, together: Callable[[Any], Piece]) -> Json:
    found = held(view(case["input"]["pod"]), case["input"]["raw"])
    return {device_type: [share(grant) for grant in together(holding.pieces)] for device_type, holding in found.items()}


def share(grant: Any) -> Any:
    return (grant.uuid, grant.slots, grant.memory, grant.cores)


def theirs(case: Json) -> Json:
    return {
        device_type: [(one["uuid"], one["slots"], one["usedmem"], one["usedcores"]) for one in pieces[0] or ()]
        for device_type, pieces in (case["expected"]["result"] or {}).items()
    }


def inits(case: Json) -> int:
    return len((case["input"]["pod"] or {}).get("init_containers") or ())


@asks("init_containers", "CollapseInitContainerUsage")
def test_init_containers_count_as_much_as_the_largest_of_them(case: Json):
    assert shares(case, lambda pieces: effective_grants(pieces, inits(case))) == theirs(case)


@asks("init_containers", "AppContainersOnlyDeviceUsage")
def test_without_init_containers_the_others_are_added_up(case: Json):
    assert shares(case, lambda pieces: sum_grants(pieces[inits(case) :])) == theirs(case)
