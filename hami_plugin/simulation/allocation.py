"""What kube-scheduler does for a ResourceClaim: it gives out the first devices that fit, in the order of the slices.

With its weakness, as seen on 1.36: it books a device's counters before it looks at taints and constraints, and does
not give them back where one of these refuses the device, nor those of a shared device where it has to turn back.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.model.views import Json, whole
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.objects import Object

_TERM = re.compile(
    r"""device\.attributes\[["'](?P<domain>[^"']+)["']\]\.(?P<name>\w+)\s*(?P<how>==|>=|<=)\s*(?P<value>"[^"]*"|\d+)"""
)
_KINDS = {"sets": "set", "partitions": "partition"}
"""What the chart's DeviceClasses select by the first label of their names. The others select neither."""


class UnschedulableError(HamiError):
    """No device is left for a request of a claim."""


def allocate(api: SimulatedApiServer, claim: Object, pod: Object, node: str) -> Object:
    """Allocate a claim on ``node``, and reserve it for the pod.

    A DeviceClass has the driver's name, or that with ``sets.`` or ``partitions.`` before it. ``UnschedulableError``
    where not all of the claim's requests can be served.
    """
    meta = claim["metadata"]
    results = _Search(api=api, node=node, spec=claim["spec"]["devices"]).results()
    if results is None:
        raise UnschedulableError("cannot allocate all claims", hint="no device of a whole pool has enough left")
    reserved = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    config = [{"source": "FromClaim", **one} for one in claim["spec"]["devices"].get("config", ())]
    devices = {"results": results, **({"config": config} if config else {})}
    status = {"allocation": {"devices": devices}, "reservedFor": [reserved]}
    return api.set_claim_status(meta["namespace"], meta["name"], status)


def deallocate(api: SimulatedApiServer, namespace: str, name: str) -> None:
    """The claim's last pod is gone: what it had is free, as the claim controller does it."""
    api.set_claim_status(namespace, name, {"allocation": None, "reservedFor": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """One device that a request asks for, the ``number``-th of it."""

    request: str
    asked: Json
    number: int


@dataclass(slots=True)
class _Search:
    """By depth first over the requests. ``booked`` are counters that are taken, by driver, set and name."""

    api: SimulatedApiServer
    node: str
    spec: Json
    pools: dict[str, list[Object]] = field(default_factory=dict)
    given: list[Object] = field(default_factory=list)
    room: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    started: set[tuple[str, str]] = field(default_factory=set)

    def results(self) -> list[Object] | None:
        self.given = list(_allocated(self.api))
        for slots in _ways(self.spec["requests"]):
            found: list[Object] = []
            if self._served(slots, found, 0):
                return found
        return None

    def _served(self, slots: Sequence[_Slot], found: list[Object], first: int) -> bool:
        if len(found) == len(slots):
            return True
        slot = slots[len(found)]
        driver = _driver(slot)
        devices = self._pool(driver)
        for place in range(first if slot.number else 0, len(devices)):
            device, mark = devices[place], len(found)
            result = self._taken(slot, driver, device, found)
            if result is None:
                continue
            found.append(result)
            if self._served(slots, found, place + 1):
                return True
            del found[mark:]
            if not device.get("allowMultipleAllocations"):
                self._book(driver, device, -1)
                self.started.discard((driver, device["name"]))
        return False

    def _taken(self, slot: _Slot, driver: str, device: Object, own: Sequence[Object]) -> Object | None:
        """The result, if the device can be had. What is booked for one that cannot stays booked."""
        if not _selected(slot, driver, device):
            return None
        mine = [one for one in (*self.given, *own) if (one["driver"], one["device"]) == (driver, device["name"])]
        consumed = _consumed_of(device, slot.asked, mine)
        if consumed is None or not self._counted(driver, device, has=bool(mine)):
            return None
        if any(one["effect"] != "None" for one in device.get("taints") or ()) or not self._allowed(slot, device, own):
            return None
        result = {"request": slot.request, "driver": driver, "pool": self.node, "device": device["name"]}
        if device.get("allowMultipleAllocations"):
            amounts = {name: _written(amount) for name, amount in consumed.items()}
            return {**result, "shareID": str(uuid.uuid4()), "consumedCapacity": amounts}
        return result

    def _counted(self, driver: str, device: Object, *, has: bool) -> bool:
        """Book its counters, if there are enough: once for a device, however many shares of it are given out."""
        if has or (driver, device["name"]) in self.started:
            return has or not device.get("consumesCounters")
        if any(self.room[key] < amount for key, amount in _counters_of(driver, device)):
            return False
        self._book(driver, device, 1)
        self.started.add((driver, device["name"]))
        return True

    def _book(self, driver: str, device: Object, sign: int) -> None:
        for key, amount in _counters_of(driver, device):
            self.room[key] -= sign * amount

    def _allowed(self, slot: _Slot, device: Object, own: Sequence[Object]) -> bool:
        for one in self.spec.get("constraints") or ():
            names = one.get("requests") or ()
            if names and slot.request not in names:
                continue
            key = one.get("matchAttribute") or one["distinctAttribute"]
            mine = _attribute(device, _driver(slot), key)
            peers = [r for r in own if not names or r["request"] in names]
            others = [
                _attribute(each, r["driver"], key)
                for r in peers
                for each in self._pool(r["driver"])
                if each["name"] == r["device"]
            ]
            alike = "matchAttribute" in one
            if mine is None or any((mine == other) != alike for other in others):
                return False
        return True

    def _pool(self, driver: str) -> list[Object]:
        """The devices of the driver's pool; what is left of its counters is known then."""
        if driver not in self.pools:
            specs = pool_slices(self.api, driver, self.node)
            self.pools[driver] = [device for spec in specs for device in spec.get("devices") or ()]
            for counters in (one for spec in specs for one in spec.get("sharedCounters") or ()):
                for name, counter in counters["counters"].items():
                    self.room[driver, counters["name"], name] = whole(counter["value"])
            names = {one["device"] for one in self.given if one["driver"] == driver}
            for device in self.pools[driver]:
                if device["name"] in names:
                    self._book(driver, device, 1)
        return self.pools[driver]


def _ways(requests: Sequence[Json]) -> Iterator[list[_Slot]]:
    """What to look for, by preference: a request may have alternatives."""
    ways: list[list[_Slot]] = [[]]
    for request in requests:
        alternatives = (
            [(request["name"], request["exactly"])]
            if "exactly" in request
            else [(f"{request['name']}/{one['name']}", one) for one in request["firstAvailable"]]
        )
        ways = [
            [*way, *(_Slot(request=name, asked=asked, number=number) for number in range(asked.get("count", 1)))]
            for way in ways
            for name, asked in alternatives
        ]
    yield from ways


def _driver(slot: _Slot) -> str:
    label, _, rest = str(slot.asked["deviceClassName"]).partition(".")
    return rest if label in _KINDS else str(slot.asked["deviceClassName"])


def _selected(slot: _Slot, driver: str, device: Object) -> bool:
    """Whether the DeviceClass and all selectors have the device. Of CEL only comparisons of attributes are known."""
    label = str(slot.asked["deviceClassName"]).partition(".")[0]
    kind = device.get("attributes", {}).get("type", {}).get("string")
    if kind != _KINDS[label] if label in _KINDS else kind in _KINDS.values():
        return False
    for selector in slot.asked.get("selectors") or ():
        for text in selector["cel"]["expression"].split("&&"):
            term = _TERM.fullmatch(text.strip())
            if not term:
                raise ValueError(f"the simulated scheduler does not know the CEL expression {text.strip()!r}")
            own = _attribute(device, driver, f"{term['domain']}/{term['name']}")
            value: Any = term["value"][1:-1] if term["value"].startswith('"') else int(term["value"])
            if own is None or not {"==": own == value, ">=": own >= value, "<=": own <= value}[term["how"]]:
                return False
    return True


def _attribute(device: Object, driver: str, name: str) -> Any:
    """Its value; None where the device has none of that name. Names without a domain are the driver's."""
    attributes = device.get("attributes") or {}
    short = name.removeprefix(f"{driver}/")
    value = attributes.get(short) or attributes.get(name)
    return next(iter(value.values())) if value else None


def _consumed_of(device: Object, asked: Json, mine: Sequence[Object]) -> Mapping[str, int] | None:
    """What the device would give; None where it has not as much left."""
    wanted = (asked.get("capacity") or {}).get("requests") or {}
    capacity = device.get("capacity") or {}
    if not wanted.keys() <= capacity.keys():
        return None
    if not device.get("allowMultipleAllocations"):
        fits = not mine and all(whole(capacity[name]["value"]) >= whole(amount) for name, amount in wanted.items())
        return {} if fits else None
    consumed = {name: _consumed(one, wanted.get(name)) for name, one in capacity.items()}
    taken: Counter[str] = Counter()
    for one in mine:
        taken.update({name: whole(amount) for name, amount in one["consumedCapacity"].items()})
    fits = all(consumed[name] + taken[name] <= whole(one["value"]) for name, one in capacity.items())
    return consumed if fits else None


def _consumed(capacity: Json, asked: object) -> int:
    """What a request consumes: the default where it says nothing, else rounded up as the policy has it."""
    policy = capacity.get("requestPolicy") or {}
    if asked is None:
        return whole(policy.get("default", capacity["value"]))
    bounds = policy["validRange"]
    least, step = whole(bounds["min"]), whole(bounds["step"])
    amount = max(least, least + -(-(whole(asked) - least) // step) * step)
    return amount if amount <= whole(bounds["max"]) else whole(capacity["value"]) + 1


def _counters_of(driver: str, device: Object) -> Iterator[tuple[tuple[str, str, str], int]]:
    for one in device.get("consumesCounters") or ():
        for name, counter in one["counters"].items():
            yield (driver, one["counterSet"], name), whole(counter["value"])


def _written(amount: int) -> str:
    for power, unit in ((30, "Gi"), (20, "Mi")):
        if amount and not amount % (1 << power):
            return f"{amount >> power}{unit}"
    return str(amount)


def _allocated(api: SimulatedApiServer) -> Iterator[Object]:
    for claim in api.claims():
        yield from ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())


def pool_slices(api: SimulatedApiServer, driver: str, node: str) -> list[Object]:
    """The slices of a pool as they are specified, if all of its newest generation are there, and their counters are."""
    specs = [
        one["spec"] for one in api.slices() if (one["spec"]["driver"], one["spec"]["pool"]["name"]) == (driver, node)
    ]
    newest = max((spec["pool"]["generation"] for spec in specs), default=0)
    own = [spec for spec in specs if spec["pool"]["generation"] == newest]
    if not own or len(own) != own[0]["pool"]["resourceSliceCount"]:
        return []
    known = {
        (counters["name"], name)
        for spec in own
        for counters in spec.get("sharedCounters") or ()
        for name in counters["counters"]
    }
    used = {key[1:] for spec in own for device in spec.get("devices") or () for key, _ in _counters_of("", device)}
    return own if used <= known else []
