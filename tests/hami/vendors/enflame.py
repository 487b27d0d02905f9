"""How our answers about Enflame GCUs are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from math import ceil

from hami_plugin.scheduler.engine.devices import Demand
from tests.hami.parity import REQUEST, Json, Parity, amount, differences, no_request, whole_amount
from vendors.enflame.drs import DEVICE_TYPE
from vendors.enflame.partitions import Wanted
from vendors.enflame.settings import EnflameSettings

BY_SLICES, BY_AMOUNTS = 0, -1
"""How HAMi's percentage tells what its number of memory means."""


def parity() -> Parity:
    """Enflame's part in the comparison."""
    rules = {
        "D-153": (_negative_memory, no_request, REQUEST),
        "D-154": (_negative_slices, no_request, REQUEST),
    }
    return Parity(unset_percent=100, demand=_demand, request=_request, differences=differences(rules))


def _demand(request: Json) -> Demand:
    if request["type"] != DEVICE_TYPE:
        return Parity().demand(request)
    size = request["memreq"]
    wanted = Wanted(slices=size) if request["mempercentagereq"] == BY_SLICES else Wanted(memory=size)
    return Demand(device_type=DEVICE_TYPE, count=request["nums"], cores=request["coresreq"], detail=wanted)


def _request(demand: Demand, unset_percent: int) -> Json:
    plain = Parity().request(demand, unset_percent)
    if not isinstance(demand.detail, Wanted):
        return plain
    mode = BY_SLICES if demand.detail.slices else BY_AMOUNTS
    return {**plain, "memreq": demand.detail.slices or demand.detail.memory, "mempercentagereq": mode}


def _written(question: Json, resource: str) -> int:
    """How much of a resource a container asks for, rounded up; 0 if it does not, or the question is another one."""
    return ceil(amount(_text(question, resource)) or 0) if _about_shares(question) else 0


def _about_shares(question: Json) -> bool:
    return bool(question["fn"] == "request" and question["vendor"] == DEVICE_TYPE)


def _text(question: Json, resource: str) -> str:
    container = question["container"]
    return str({**(container.get("requests") or {}), **(container.get("limits") or {})}.get(resource, "0"))


def _negative_memory(question: Json) -> bool:
    """HAMi looks at memory where the slices are no whole number, too."""
    names = EnflameSettings()
    slices = (whole_amount(_text(question, names.drs)) or 0) if _about_shares(question) else 0
    return _written(question, names.memory) < 0 and slices <= 0


def _negative_slices(question: Json) -> bool:
    return _written(question, EnflameSettings().drs) < 0
