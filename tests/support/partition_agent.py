"""The life cycle without a daemon around it: one thread, no waiting, and a kill wherever a test wants it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.partitions.journal import PartitionJournal
from hami_plugin.partitions.life import ABSENT, BLOCKING, ENDING, Entry, Owner, State, free_places
from hami_plugin.partitions.manager import Cutter, owners_of
from hami_plugin.partitions.reconciliation import Known, PodReservation
from hami_plugin.sdk import NOWHERE, Partition, Placement, Reservation
from tests.support.partitions import Cards, FakePartitionDriver, Killed


def reservation(
    pod: str, card: str = "GPU-0", name: str = "1g.5gb", start: int = 6, *, device: int = 0, **names: Any
) -> PodReservation:
    size = {"1g": 1, "2g": 2, "3g": 4, "4g": 4, "7g": 8}[name[:2]]
    size = 2 if name == "1g.10gb" else size
    wanted = Reservation(
        container="main",
        device=device,
        card=card,
        profile=name,
        placement=Placement(start=start, size=size),
        **names,
    )
    return PodReservation(owner=Owner(uid=pod, container="main", device=device, namespace="ns", pod=pod), wanted=wanted)


class WatchedJournal(PartitionJournal):
    """Says before and after each line what it writes."""

    def __init__(self, path: Path, boot: str, tick: Callable[[str], None], clock: Callable[[], float]) -> None:
        super().__init__(path, boot, clock=clock)
        self.tick = tick

    def _write(self, op: str, entry: Entry, after: dict[int, Entry]) -> None:
        self.tick(f"before {op}")
        super()._write(op, entry, after)
        self.tick(f"after {op}")


@dataclass
class Agent:
    """``living`` are the pods that live, None while nobody knows; ``reserved`` what they were decided to have.

    It is killed at the moment that ``kill_at`` names or counts, and ``restart`` is its next life on the same host.
    """

    cards: Cards
    path: Path
    living: set[str] | None = field(default_factory=set)
    reserved: list[PodReservation] = field(default_factory=list)
    boot: str = "boot-1"
    all_ours: bool = False
    now: float = 1000.0
    kill_at: tuple[str, int] | int | None = None
    moments: list[str] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.cards.tick = self.hardware
        self.start()

    def start(self) -> None:
        self.journal = WatchedJournal(self.path, self.boot, self.tick, lambda: self.now)
        self.journal.load()
        self.cutter = Cutter(FakePartitionDriver(self.cards), self.journal, clock=lambda: self.now)

    def restart(self, *, boot: str = "") -> None:
        self.journal.close()
        self.boot, self.kill_at = boot or self.boot, None
        self.start()

    def tick(self, moment: str) -> None:
        self.moments.append(moment)
        self.seen[moment] += 1
        if self.kill_at in (len(self.moments), (moment, self.seen[moment])):
            raise Killed

    def hardware(self, call: str, card: str, target: Partition | None) -> None:
        """Before each call that changes a card: what must hold then."""
        self.tick(call)
        entries = self.journal.entries.values()
        if call == "create":
            assert any(one.card == card and one.state is State.CREATING for one in entries), "made without an intent"
        if call.startswith("destroy") and target is not None:
            assert self.living is not None, "destroyed while nobody knows who lives"
            assert target.uuid not in self.foreign, "destroyed what others have made"
            mine = [one for one in entries if one.card == card and one.placement == target.placement]
            mine = mine if target.placement != NOWHERE else [one for one in mine if one.uuid == target.uuid]
            for one in mine:
                if one.owner and one.state in (State.READY, State.ASSIGNED):
                    assert one.owner.uid not in self.living, "destroyed under a living pod"

    def live(self, one: PodReservation) -> PodReservation:
        """Its pod lives, and this is reserved for it."""
        self.living = (self.living or set()) | {one.owner.uid}
        self.reserved.append(one)
        return one

    def end(self, pod: str) -> None:
        assert self.living is not None
        self.living.discard(pod)
        self.reserved = [one for one in self.reserved if one.owner.uid != pod]

    def allocate(self, one: PodReservation) -> Partition:
        """The answer that its container is given."""
        may_destroy = self.living is not None
        ensured = self.cutter.ensure(one, self.boot, self.living, may_destroy=may_destroy)
        self.cutter.hand_out(ensured.entry.number)
        (entry,) = [e for e in self.journal.entries.values() if e.owner == one.owner and e.state is State.ASSIGNED]
        assert entry.uuid, "answered without an identity"
        assert entry.ids.keys() == {"gi", "ci"}, "answered with a part of an identity"
        return entry.partition

    def look(self) -> None:
        listed = FakePartitionDriver(self.cards).partitions()
        known = Known(
            boot=self.boot,
            now=self.now,
            living=None if self.living is None else frozenset(self.living),
            reservations=tuple(self.reserved),
            all_ours=self.all_ours,
        )
        for card in self.cards.tables:
            assert self.cutter.resync(card, listed, self.journal.changed(card), known)

    def settle(self, rounds: int = 4) -> None:
        """What the daemon does in time: look, release, destroy, until nothing changes."""
        for _ in range(rounds):
            self.look()
            for entry in list(self.journal.entries.values()):
                owned = entry.owner and entry.state in (State.READY, State.ASSIGNED, State.LOST)
                if owned and self.living is not None and entry.owner.uid not in self.living:
                    self.cutter.release(entry.number, "its pod has ended")
            for entry in list(self.journal.entries.values()):
                if entry.state in ENDING and self.living is not None:
                    self.cutter.destroy(entry.number)

    def states(self) -> list[State]:
        return sorted(entry.state for entry in self.journal.entries.values())

    def of(self, pod: str) -> Entry:
        (entry,) = [one for one in self.journal.entries.values() if one.owner and one.owner.uid == pod]
        return entry

    def check(self) -> None:
        """What holds of entries and hardware at any moment of rest."""
        entries = list(self.journal.entries.values())
        owners = [one.owner for one in entries if one.owner and one.state not in ENDING]
        assert len(owners) == len(set(owners)), "two partitions of one owner"
        present = [one for one in entries if one.state not in ABSENT]
        for one in present:
            for other in present:
                apart = one is other or one.card != other.card or not one.placement.overlaps(other.placement)
                assert apart, f"{one} and {other} overlap"
        listed = {(one.card, one.placement) for one in self.cards.all()}
        assert listed == {(one.card, one.placement) for one in present}, "hardware and journal differ"
        for card, table in self.cards.tables.items():
            taken = [(one.profile, one.placement) for one in present if one.card == card]
            for profile in table:
                for place in free_places(profile, table, taken):
                    trial = copy.copy(self.cards)
                    trial.instances = copy.deepcopy(self.cards.instances)
                    trial.make(card, profile.name, place)  # it raises where this was no free place

    def at_rest(self) -> None:
        """As ``check``, and nothing is left of pods that have ended."""
        self.check()
        living = self.living or set()
        for one in self.journal.entries.values():
            assert one.state in BLOCKING - ENDING - {State.DESTROYING} or (one.owner and one.owner.uid in living), one
        assert not [one for one in self.journal.entries.values() if one.state is State.CREATING]

    def refused(self, one: PodReservation) -> str:
        try:
            self.allocate(one)
        except HamiError as error:
            return str(error)
        raise AssertionError("it was not refused")


def owned(agent: Agent, pod: str) -> list[Entry]:
    return list(owners_of(agent.journal.entries, pod, "main").values())
