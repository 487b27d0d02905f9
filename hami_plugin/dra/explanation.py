"""Why a ResourceClaim is pending: what each pool has left for each of its requests, by the scheduler's own account.

kube-scheduler says "cannot allocate all claims" and no more. Selectors in CEL are not evaluated here.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hami_plugin.dra.slices import MEMORY
from hami_plugin.model.views import Json, exact

_DRIVER = re.compile(r"""device\.driver\s*==\s*["']([^"']{1,63})["']""")
_TYPE = re.compile(r"""\.type\s*==\s*["'](set|partition)["']""")
_NO_TYPE = re.compile(r"""!\(.*\.type\s+in\s+\[["']set["'],\s*["']partition["']\]\)""")
_MIB = 1 << 20
MAX_POOLS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a DeviceClass selects: a driver's sets, its partitions, those that are neither (""), or all (None)."""

    driver: str
    kind: str | None = None

    def has(self, device: Json) -> bool:
        own = _map(_map(device, "attributes"), "type").get("string")
        if self.kind is None:
            return True
        return own == self.kind if self.kind else own not in ("set", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVerdict:
    """What a pool says to one request: whether it ``fits``, else ``why`` not, by device."""

    request: str
    pool: str
    fits: bool
    why: Mapping[str, int]

    def __str__(self) -> str:
        if self.fits:
            return f"{self.pool} has room for request {self.request}"
        reasons = ", ".join(f"{count} {what}" for what, count in self.why.items()) or "no device is published"
        return f"{self.pool} has no room for request {self.request}: {reasons}"


def selection(device_class: Json, name: str) -> Selection:
    """As its selectors name driver and type, if they are written as the chart's. Else it has its driver's name."""
    driver, kind = name, None
    for one in _list(_map(device_class, "spec"), "selectors"):
        text = str(_map(one, "cel").get("expression", "")) if isinstance(one, Mapping) else ""
        if found := _DRIVER.search(text):
            driver = found[1]
        if typed := _TYPE.search(text):
            kind = typed[1]
        elif _NO_TYPE.search(text):
            kind = ""
    return Selection(driver=driver, kind=kind)


def requests_of(claim: Json) -> Iterator[tuple[str, Json]]:
    """Each request of a claim, and each alternative, with what it asks."""
    for request in _list(_map(_map(claim, "spec"), "devices"), "requests"):
        if not isinstance(request, Mapping):
            continue
        if exactly := _map(request, "exactly"):
            yield str(request.get("name", "")), exactly
        for other in _list(request, "firstAvailable"):
            if isinstance(other, Mapping):
                yield f"{request.get('name', '')}/{other.get('name', '')}", other


def verdicts(
    claim: Json, classes: Mapping[str, Selection], slices: Sequence[Json], claims: Sequence[Json]
) -> tuple[RequestVerdict, ...]:
    """What every pool says to every request. ``classes`` are the DeviceClasses that it names."""
    given = _given(claims)
    found = []
    for name, asked in requests_of(claim):
        chosen = classes.get(str(asked.get("deviceClassName", "")), Selection(driver=""))
        for pool, specs in sorted(_pools(slices, chosen.driver).items())[:MAX_POOLS]:
            found.append(_verdict((name, asked), pool, specs, chosen, given))
    return tuple(found)


def _verdict(
    request: tuple[str, Json],
    pool: str,
    specs: Sequence[Json] | None,
    chosen: Selection,
    all_given: Mapping[tuple[str, str, str], Sequence[Json]],
) -> RequestVerdict:
    name, asked = request
    if specs is None:
        return RequestVerdict(
            request=name, pool=pool, fits=False, why={"pool incomplete: not all of its slices are there": 1}
        )
    wanted = _map(_map(asked, "capacity"), "requests")
    count = asked.get("count", 1) if isinstance(asked.get("count", 1), int) else 1
    devices = [one for spec in specs for one in _list(spec, "devices") if isinstance(one, Mapping)]
    given = {one: all_given[chosen.driver, pool, one] for one in _names(devices)}
    room = _room(specs, [one for one in devices if given[str(one.get("name", ""))]])
    reasons: Counter[str] = Counter()
    fitting = 0
    for device in filter(chosen.has, devices):
        own = given[str(device.get("name", ""))]
        why = _lacking(device, wanted, own)
        if not why and not own and any(room[key] < amount for key, amount in _consumed(device)):
            why = "of which another device that is given out has a part"
        if why:
            reasons[why] += 1
        else:
            fitting += 1
    if fitting >= count:
        return RequestVerdict(request=name, pool=pool, fits=True, why={})
    if fitting:
        reasons[f"of {count} devices asked have room"] = fitting
    return RequestVerdict(request=name, pool=pool, fits=False, why=dict(reasons))


def _room(specs: Sequence[Json], given: Iterable[Json]) -> Counter[tuple[str, str]]:
    """What is left of a pool's counters, by set and name."""
    room: Counter[tuple[str, str]] = Counter()
    for counters in (one for spec in specs for one in _list(spec, "sharedCounters") if isinstance(one, Mapping)):
        for name, counter in _map(counters, "counters").items():
            room[str(counters.get("name", "")), str(name)] = _amount(_map({"": counter}, "").get("value"))
    for device in given:
        for key, amount in _consumed(device):
            room[key] -= amount
    return room


def _consumed(device: Json) -> Iterator[tuple[tuple[str, str], int]]:
    for one in _list(device, "consumesCounters"):
        if isinstance(one, Mapping):
            for name, counter in _map(one, "counters").items():
                yield (str(one.get("counterSet", "")), str(name)), _amount(_map({"": counter}, "").get("value"))


def _lacking(device: Json, wanted: Json, given: Sequence[Json]) -> str:
    """Why the device cannot be given; empty where it can."""
    taints = [str(taint.get("key", "")) for taint in _list(device, "taints") if isinstance(taint, Mapping)]
    if taints:
        return f"tainted {taints[0]}"
    capacity = _map(device, "capacity")
    for what in wanted:
        if what not in capacity:
            return f"without a capacity {what}"
    if not device.get("allowMultipleAllocations"):
        if given:
            return "given to another claim whole"
        short = next((w for w in wanted if _amount(_map(capacity, w).get("value")) < _amount(wanted[w])), "")
        return f"with less {short} than asked" if short else ""
    for what, entry in capacity.items():
        total = _amount(_map(capacity, what).get("value"))
        policy = _map(entry, "requestPolicy") if isinstance(entry, Mapping) else {}
        asked = _amount(wanted.get(what, policy.get("default", total)))
        left = total - sum(_amount(_map(one, "consumedCapacity").get(what, "0")) for one in given)
        if asked > left:
            return f"with {_text(what, left)} of {what} left, and {_text(what, asked)} asked"
    return ""


def _text(what: str, amount: int) -> str:
    return f"{amount // _MIB}Mi" if what == MEMORY else str(amount)


def _amount(value: object) -> int:
    try:
        return int(exact(value) or 0)
    except (TypeError, ValueError):
        return 0


def _pools(slices: Sequence[Json], driver: str) -> dict[str, list[Json] | None]:
    """The slices of each pool, by its name; None where some of the newest generation are missing."""
    by_pool: defaultdict[str, list[Json]] = defaultdict(list)
    for one in slices:
        spec = _map(one, "spec")
        if driver and spec.get("driver") == driver:
            by_pool[str(_map(spec, "pool").get("name", ""))].append(spec)
    pools: dict[str, list[Json] | None] = {}
    for name, specs in by_pool.items():
        newest = max(_number(_map(spec, "pool"), "generation") for spec in specs)
        own = [spec for spec in specs if _number(_map(spec, "pool"), "generation") == newest]
        whole = len(own) == _number(_map(own[0], "pool"), "resourceSliceCount")
        pools[name] = own if whole else None
    return pools


def _names(devices: Iterable[Json] | None) -> list[str]:
    return [str(one.get("name", "")) for one in devices or ()]


def _given(claims: Iterable[Json]) -> defaultdict[tuple[str, str, str], list[Json]]:
    """What all claims have of each device; administrators' do not count."""
    found: defaultdict[tuple[str, str, str], list[Json]] = defaultdict(list)
    for claim in claims:
        for one in results_of(claim):
            if one.get("adminAccess") is not True:
                found[str(one.get("driver")), str(one.get("pool")), str(one.get("device"))].append(one)
    return found


def results_of(claim: Json) -> list[Json]:
    """The devices that a claim was given."""
    allocation = _map(_map(_map(claim, "status"), "allocation"), "devices")
    return [one for one in _list(allocation, "results") if isinstance(one, Mapping)]


def consumers_of(claim: Json) -> list[str]:
    """The names of the pods that a claim is reserved for."""
    return [
        str(one.get("name", ""))
        for one in _list(_map(claim, "status"), "reservedFor")
        if isinstance(one, Mapping) and one.get("resource") == "pods"
    ]


def _number(parent: Json, key: str) -> int:
    value = parent.get(key)
    return value if isinstance(value, int) else 0


def _map(parent: Any, key: str) -> Json:
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _list(parent: Json, key: str) -> Sequence[object]:
    value = parent.get(key)
    return value if isinstance(value, list) else ()
