"""Create, hand out, release and destroy the partitions of one card at a time. Everything blocks.

The journal has the intent before each call, so a process killed at any moment leaves nothing that its successor cannot
explain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from hami_plugin.errors import HamiError
from hami_plugin.partitions.journal import PartitionJournal
from hami_plugin.partitions.life import ENDING, Entry, Owner, PartitionEvent, State, identity
from hami_plugin.partitions.reconciliation import Change, Known, PodReservation, leftover_partitions, reconcile
from hami_plugin.process.log import logger
from hami_plugin.sdk.partitions import NOWHERE, InUseError, NoRoomError, Partition, PartitionDriver, Step

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensured:
    """A partition and its owner. ``fresh``: it was just created or taken over."""

    entry: Entry
    fresh: bool


class Cutter:
    """One per family. Each call is about one card and runs on that card's thread. ``clock`` gives the time of day."""

    def __init__(
        self,
        driver: PartitionDriver,
        journal: PartitionJournal,
        *,
        lasting: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._lasting = lasting
        self._clock = clock
        self._unreported: SimpleQueue[Change] = SimpleQueue()

    def pop_changes(self) -> list[Change]:
        """The changes since the last call that deserve an Event."""
        found: list[Change] = []
        while True:
            try:
                found.append(self._unreported.get_nowait())
            except Empty:
                return found

    def on(self, card: str) -> list[Entry]:
        """The entries of one card."""
        return [entry for entry in self._journal.entries.values() if entry.card == card]

    def resync(self, card: str, listed: Sequence[Partition], version: int, known: Known) -> bool:
        """Reconcile the card with a listing. False if it has changed since ``version``: the listing may be stale."""
        if self._journal.changed(card) != version:
            return False
        self._reconcile(card, listed, known)
        return True

    def ensure(
        self, reservation: PodReservation, boot: str, living: AbstractSet[str] | None, *, may_destroy: bool
    ) -> Ensured:
        """The owner's partition: found, taken over from an ended pod, or created. ``HamiError``.

        Partitions without an owner that overlap it are destroyed, in one attempt: a scheduler reuses a placement as
        soon as its pod has ended. ``living`` are UIDs of pods, None while they are not known.
        """
        wanted, now = reservation.wanted, self._clock()
        listed = self._listed(wanted.card)
        known = Known(boot=boot, now=now, living=None, reservations=(reservation,), lasting=self._lasting)
        self._reconcile(wanted.card, listed, known)
        mine = next((one for one in self._journal.entries.values() if one.owner == reservation.owner), None)
        if mine is not None:
            same = (mine.card, mine.profile, mine.placement) == (wanted.card, wanted.profile, wanted.placement)
            if mine.state is State.LOST:
                raise HamiError(f"{_named(mine)} of {mine.owner} is gone: {mine.reason}", hint="delete the pod")
            if same and mine.state in (State.READY, State.ASSIGNED):
                return Ensured(entry=mine, fresh=False)
            self.release(mine.number, "another one was decided")
        if may_destroy and (idle := self._taken_over(reservation, boot, listed, living)):
            return Ensured(entry=idle, fresh=True)
        self._clear(reservation, living, may_destroy=may_destroy)
        try:
            return Ensured(entry=self._made(reservation, boot, listed), fresh=True)
        except NoRoomError:
            if wanted.placement != NOWHERE or not may_destroy or not self._emptied(wanted.card, living):
                raise
        return Ensured(entry=self._made(reservation, boot, self._listed(wanted.card)), fresh=True)

    def hand_out(self, number: int) -> None:
        """Journal that its container has it; the Allocate is answered next."""
        entry = self._journal.entries.get(number)
        if entry is not None and entry.state is State.READY:
            self._journal.put(entry.to(PartitionEvent.HAND_OUT, now=self._clock()), "assigned")

    def release(self, number: int, why: str) -> None:
        """Its owner has ended or has another one: it is to be destroyed."""
        entry = self._journal.entries.get(number)
        if entry is not None and entry.state in (State.READY, State.ASSIGNED, State.LOST):
            self._journal.put(entry.to(PartitionEvent.END, now=self._clock(), reason=why, attempts=0), "release")

    def destroy(self, number: int) -> str:
        """Attempt once to destroy it. Returns why it is still there, or an empty text."""
        entry = self._journal.entries.get(number)
        if entry is None or entry.state not in ENDING:
            return ""
        if entry.state is State.DRAINING:
            entry = self._journal.put(entry.to(PartitionEvent.DUE, now=self._clock()), "intent-destroy")
        try:
            self._driver.destroy(entry.partition, self._step(entry, destroying=True))
        except HamiError as error:
            left = self._journal.entries[number]
            in_use = isinstance(error, InUseError) and left.state is State.DESTROYING
            event = PartitionEvent.IN_USE if in_use else PartitionEvent.FAIL
            failed = left.to(event, now=self._clock(), attempts=left.attempts + 1, reason=str(error))
            self._journal.put(failed, "destroy-failed")
            return str(error)
        self._journal.drop(self._journal.entries[number], "destroyed")
        return ""

    def users(self, number: int) -> Sequence[int]:
        """PIDs of processes that are known to use it."""
        entry = self._journal.entries.get(number)
        return () if entry is None else self._driver.users(entry.partition)

    def _listed(self, card: str) -> list[Partition]:
        return [one for one in self._driver.partitions(card) if one.card == card]

    def _reconcile(self, card: str, listed: Sequence[Partition], known: Known) -> None:
        for change in reconcile(card, self.on(card), listed, known):
            match change:
                case Change(before=None, after=Entry() as found):
                    self._journal.new(found, "adopted" if found.owner else "foreign")
                case Change(before=Entry() as gone, after=None):
                    self._journal.drop(gone, "gone")
                case Change(after=Entry() as now):
                    self._journal.put(now, "found")
            log.info("partition", what=_described(change))
            if change.event_reason:
                self._unreported.put(change)

    def _clear(self, reservation: PodReservation, living: AbstractSet[str] | None, *, may_destroy: bool) -> None:
        """Free the placement. ``NoRoomError`` names what occupies it."""
        wanted = reservation.wanted
        for known in self.on(wanted.card):
            if not known.takes(wanted.placement):
                continue
            entry = self._let_go(known, living)
            why = f"it is {entry.state}" + (f" for {entry.owner}" if entry.owner else "")
            if entry.state in ENDING:
                why = self.destroy(entry.number) if may_destroy else f"{why}, and nothing is destroyed now"
                if not why:
                    continue
            raise NoRoomError(f"{_named(entry)} is in the way of {wanted.profile}: {why}")

    def _emptied(self, card: str, living: AbstractSet[str] | None) -> bool:
        """Destroy what has no owner any more, one attempt each. Whether any room was gained."""
        ending = [one for known in self.on(card) if (one := self._let_go(known, living)).state in ENDING]
        failures = [self.destroy(one.number) for one in ending]
        return not all(failures)

    def _taken_over(
        self, reservation: PodReservation, boot: str, listed: Sequence[Partition], living: AbstractSet[str] | None
    ) -> Entry | None:
        """A partition of the wanted profile and placement that an ended pod has left, reused as it is.

        Only if it was created in this boot, is listed, has no known user and has not resisted destruction.
        """
        wanted = reservation.wanted
        for known in self.on(wanted.card):
            if wanted.uuid or (known.profile, known.placement) != (wanted.profile, wanted.placement):
                continue
            entry = self._let_go(known, living)
            whole = entry.boot == boot and any(one.uuid and entry.is_listed_as(one) for one in listed)
            if (
                entry.state is State.DRAINING
                and whole
                and not entry.attempts
                and not self._driver.users(entry.partition)
            ):
                own = replace(entry.to(PartitionEvent.ADOPT, now=self._clock()), owner=reservation.owner, reason="")
                return self._journal.put(own, "taken-over")
        return None

    def _let_go(self, known: Entry, living: AbstractSet[str] | None) -> Entry:
        """The entry, after its release if its pod has ended."""
        if living is not None and known.owner and known.owner.uid not in living:
            self.release(known.number, "its pod has ended")
        return self._journal.entries[known.number]

    def _made(self, reservation: PodReservation, boot: str, listed: Sequence[Partition]) -> Entry:
        wanted, now = reservation.wanted, self._clock()
        reserved = Entry(
            number=0,
            state=State.RESERVED,
            card=wanted.card,
            profile=wanted.profile,
            placement=wanted.placement,
            owner=reservation.owner,
            before=tuple(identity(one) for one in listed),
            boot=boot,
            made=now,
        )
        entry = self._journal.new(reserved.to(PartitionEvent.INTEND, now=now), "intent-create")
        try:
            made = self._driver.create(wanted.card, wanted.profile, wanted.placement, self._step(entry))
            _require_as_wanted(made, entry)
        except HamiError as error:
            self._note_failure(entry.number, str(error))
            raise
        ready = self._journal.entries[entry.number].identified(made)
        return self._journal.put(ready.to(PartitionEvent.MADE, now=self._clock()), "ready")

    def _note_failure(self, number: int, why: str) -> None:
        """Mark what a failed creation has left for destruction. If it cannot be listed now, the next resync decides."""
        entry = self._journal.entries[number]
        try:
            left = leftover_partitions(entry, self._listed(entry.card))
        except HamiError as error:
            log.warning("remains of a failed creation not listed", partition=_named(entry), problem=str(error))
            return
        if len(left) == 1:
            failed = entry.identified(left[0]).to(PartitionEvent.FAIL, now=self._clock(), reason=why)
            self._journal.put(failed, "failed")
        else:
            self._journal.drop(entry, "failed")

    def _step(self, entry: Entry, *, destroying: bool = False) -> Step:
        """A callback that journals what exists after each call. If the write fails, the next start lists the card."""

        def note(ids: Mapping[str, int]) -> None:
            now = replace(self._journal.entries[entry.number], ids=dict(ids))
            if destroying and ids.keys() != entry.ids.keys():
                now = replace(now, uuid="")
            try:
                self._journal.put(now, "step")
            except OSError as error:
                log.warning("step not journalled", partition=_named(entry), problem=str(error))

        return note


def owners_of(entries: Mapping[int, Entry], uid: str, container: str) -> Mapping[Owner, Entry]:
    """A container's entries by owner."""
    return {
        entry.owner: entry
        for entry in entries.values()
        if entry.owner and (entry.owner.uid, entry.owner.container) == (uid, container)
    }


def _require_as_wanted(made: Partition, entry: Entry) -> None:
    if not made.uuid or (made.card, made.placement) != (entry.card, entry.placement):
        raise HamiError(f"the driver was asked for {_named(entry)}, and says that it has made {made}")


def _named(entry: Entry) -> str:
    place = entry.placement
    return f"{entry.profile} at {place.start} of {entry.card}"


def _described(change: Change) -> str:
    entry = change.after or change.before
    assert entry
    before = change.before.state if change.before else State.FREE
    after = change.after.state if change.after else "no more"
    return f"{_named(entry)}: {before}, now {after}: {change.why}"
