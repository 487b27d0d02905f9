"""Cards that can be cut, as drivers have them: the state is the hardware's, and outlives whoever asks.

A test orders a call to fail, to take its time, or the process to be killed before or after it.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hami_plugin.errors import DriverReason, DriverUnavailableError, HamiError
from hami_plugin.sdk import NOWHERE, InUseError, NoRoomError, Partition, Placement, Profile, Step, UnlistedCardsError


def profile(name: str, memory: int, compute: int, size: int, starts: Iterable[int], limit: int) -> Profile:
    places = tuple(Placement(start=start, size=size) for start in starts)
    return Profile(name=name, memory=memory, compute=compute, placements=places, limit=limit)


A100 = (
    profile("1g.5gb", 4864, 1, 1, range(7), 7),
    profile("1g.5gb+me", 4864, 1, 1, range(7), 1),
    profile("1g.10gb", 9856, 1, 2, (0, 2, 4, 6), 4),
    profile("2g.10gb", 9856, 2, 2, (0, 2, 4), 3),
    profile("3g.20gb", 19968, 3, 4, (0, 4), 2),
    profile("4g.20gb", 19968, 4, 4, (0,), 1),
    profile("7g.40gb", 40192, 7, 8, (0,), 1),
)
A30 = (
    profile("1g.6gb", 5952, 1, 1, range(4), 4),
    profile("1g.6gb+me", 5952, 1, 1, range(4), 1),
    profile("2g.12gb", 12032, 2, 2, (0, 2), 2),
    profile("4g.24gb", 24125, 4, 4, (0,), 1),
)
SIXTHS = tuple(
    Profile(name=f"{count}g.{8 * count}gb", memory=8192 * count, compute=count, placements=(NOWHERE,), limit=6 // count)
    for count in (1, 2, 3, 6)
)
"""Of a card whose partitions have no places."""
CALLS = ("partitions", "create", "create compute", "destroy compute", "destroy", "users")


class Killed(BaseException):
    """The process ends here, as by SIGKILL: nothing is tidied up."""


@dataclass
class Order:
    """What becomes of a call: ``error`` is raised instead of it, ``then`` is done before it."""

    error: BaseException | None = None
    then: Callable[[], None] = lambda: None


@dataclass
class Cards:
    """The hardware. ``instances`` by card, each with its places and names; ``users`` by UUID. Thread-safe."""

    tables: Mapping[str, Sequence[Profile]]
    instances: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    users: dict[str, list[int]] = field(default_factory=dict)
    made: int = 0
    lost: set[str] = field(default_factory=set)
    calls: list[tuple[str, str]] = field(default_factory=list)
    orders: dict[str, list[Order]] = field(default_factory=dict)

    tick: Callable[[str, str, Partition | None], None] = lambda _call, _card, _target: None

    def __post_init__(self) -> None:
        self.turn = threading.RLock()
        for card in self.tables:
            self.instances.setdefault(card, [])

    def order(self, call: str, error: BaseException | None = None, then: Callable[[], None] = lambda: None) -> None:
        """What the next such call comes to, after those that were ordered before."""
        self.orders.setdefault(call, []).append(Order(error=error, then=then))

    def begin(self, call: str, card: str = "", target: Partition | None = None) -> None:
        if call not in ("partitions", "users"):
            self.tick(call, card, target)
        with self.turn:
            self.calls.append((call, card))
            waiting = self.orders.get(call)
            order = waiting.pop(0) if waiting else Order()
        order.then()
        if order.error is not None:
            raise order.error

    def cut(self, card: str, name: str, start: int, *, whole: bool = True) -> Partition:
        """What somebody else makes. ``NoRoomError`` as the driver has it."""
        with self.turn:
            found = self.make(card, name, next(one for one in self.places(card, name) if one.start == start))
            if whole:
                self.complete(found)
        return self.listed(card, found)

    def places(self, card: str, name: str) -> tuple[Placement, ...]:
        return next((one.placements for one in self.tables[card] if one.name == name), ())

    def make(self, card: str, name: str, place: Placement) -> dict[str, Any]:
        known = {one.name: one for one in self.tables[card]}
        there = self.instances[card]
        if name not in known or place not in known[name].placements:
            raise HamiError(f"{name} at {place} is not legal")
        compute = sum(known[one["profile"]].compute for one in there) + known[name].compute
        full = sum(one["profile"] == name for one in there) >= known[name].limit
        taken = any(place.overlaps(Placement(one["start"], one["size"])) for one in there)
        if taken or full or compute > max(one.compute for one in self.tables[card]):
            raise NoRoomError("insufficient resources")
        used = {one["gi"] for one in there}
        gi = next(number for number in itertools.count() if number not in used)
        found = {"profile": name, "start": place.start, "size": place.size, "gi": gi}
        there.append(found)
        self.made += 1
        return found

    def complete(self, found: dict[str, Any]) -> None:
        found |= {"ci": 0, "uuid": f"MIG-{os.getpid()}-{time.monotonic_ns()}-{self.made}"}
        self.made += 1

    def listed(self, card: str, found: Mapping[str, Any]) -> Partition:
        ids = {key: found[key] for key in ("gi", "ci") if key in found}
        place = Placement(start=found["start"], size=found["size"])
        return Partition(card=card, profile=found["profile"], placement=place, uuid=found.get("uuid", ""), ids=ids)

    def all(self) -> tuple[Partition, ...]:
        with self.turn:
            return tuple(self.listed(card, one) for card, there in self.instances.items() for one in there)

    def reset(self, card: str) -> None:
        """All that it was cut into is gone."""
        with self.turn:
            self.instances[card].clear()

    def uses(self, uuid: str, *pids: int) -> None:
        self.users[uuid] = list(pids)


class FakePartitionDriver:
    """NVML's behaviour over ``Cards``: two calls to make one, two to destroy it, and no memory of its own."""

    def __init__(self, cards: Cards) -> None:
        self.cards = cards

    def profiles(self, card: str) -> tuple[Profile, ...]:
        return tuple(self.cards.tables.get(card, ()))

    def partitions(self, card: str = "") -> tuple[Partition, ...]:
        self.cards.begin("partitions", card)
        found = [one for one in self.cards.all() if card in ("", one.card)]
        lost = sorted(self.cards.lost)
        if not card and lost:
            told = [one for one in found if one.card not in lost]
            raise UnlistedCardsError(f"{', '.join(lost)} does not answer", lost, told)
        if card in lost:
            raise HamiError(f"{card} does not answer")
        return tuple(found)

    def create(self, card: str, profile: str, placement: Placement, step: Step) -> Partition:
        cards = self.cards
        cards.begin("create", card)
        with cards.turn:
            found = cards.make(card, profile, placement)
        step({"gi": found["gi"]})
        try:
            cards.begin("create compute", card)
        except HamiError:
            self._undo(card, found, step)
            raise
        with cards.turn:
            cards.complete(found)
        step({"gi": found["gi"], "ci": 0})
        return cards.listed(card, found)

    def destroy(self, partition: Partition, step: Step) -> None:
        cards = self.cards
        with cards.turn:
            same = (one for one in cards.instances[partition.card] if cards.listed(partition.card, one) == partition)
            found = next(same, None)
        if found is None:
            return
        if "uuid" in found:
            cards.begin("destroy compute", partition.card, partition)
            if cards.users.get(found["uuid"]):
                raise InUseError("in use by another client")
            with cards.turn:
                del found["uuid"], found["ci"]
            step({"gi": found["gi"]})
        cards.begin("destroy", partition.card, partition)
        with cards.turn:
            cards.instances[partition.card].remove(found)
        step({})

    def users(self, partition: Partition) -> Sequence[int]:
        self.cards.begin("users", partition.card)
        return self.cards.users.get(partition.uuid, [])

    def _undo(self, card: str, found: dict[str, Any], step: Step) -> None:
        self.cards.begin("destroy", card)
        with self.cards.turn:
            self.cards.instances[card].remove(found)
        step({})


def unavailable() -> DriverUnavailableError:
    return DriverUnavailableError(DriverReason.FAILED, "the driver does not answer")
