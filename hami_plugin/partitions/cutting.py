"""What is done to one card at a time: partitions are made, handed out, released and destroyed. Everything blocks.

What a call is about to do is in the journal before it does it, so that a process that is killed at any moment leaves
nothing that its successor could not explain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from hami_plugin.errors import HamiError
from hami_plugin.log import logger
from hami_plugin.partitions.journal import PartitionJournal
from hami_plugin.partitions.life import ENDING, Entry, Event, Owner, State, identity
from hami_plugin.partitions.reconciliation import Change, Known, PodReservation, judged, remains
from hami_plugin.sdk.partitions import NOWHERE, InUseError, NoRoomError, Partition, PartitionDriver, Step

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensured:
    """A partition for its owner. ``fresh``: it is the owner's since just now."""

    entry: Entry
    fresh: bool


class Cutter:
    """One family's. Each call is about one card, and made on that card's thread. ``clock`` gives the time of day."""

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
        self._news: SimpleQueue[Change] = SimpleQueue()

    def news(self) -> list[Change]:
        """What was found out since this was asked last, and is to be told."""
        found: list[Change] = []
        while True:
            try:
                found.append(self._news.get_nowait())
            except Empty:
                return found

    def on(self, card: str) -> list[Entry]:
        """What is known of one card."""
        return [entry for entry in self._journal.entries.values() if entry.card == card]

    def look(self, card: str, listed: Sequence[Partition], version: int, known: Known) -> bool:
        """Take a listing in. False where the card has changed since ``version``: then it may be out of date."""
        if self._journal.changed(card) != version:
            return False
        self._take_in(card, listed, known)
        return True

    def ensure(
        self, reservation: PodReservation, boot: str, living: AbstractSet[str] | None, *, may_destroy: bool
    ) -> Ensured:
        """The partition that is reserved for the owner, as the card has it: found, taken over, or made. ``HamiError``.

        What is in its way without an owner is destroyed, in one try: a scheduler gives a place away again as soon as
        its pod has ended. ``living`` are UIDs of pods, None while that cannot be said.
        """
        wanted, now = reservation.wanted, self._clock()
        listed = self._listed(wanted.card)
        known = Known(boot=boot, now=now, living=None, reservations=(reservation,), lasting=self._lasting)
        self._take_in(wanted.card, listed, known)
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
        """Its container is answered next."""
        entry = self._journal.entries.get(number)
        if entry is not None and entry.state is State.READY:
            self._journal.put(entry.to(Event.HAND_OUT, now=self._clock()), "assigned")

    def release(self, number: int, why: str) -> None:
        """Nobody needs it any more."""
        entry = self._journal.entries.get(number)
        if entry is not None and entry.state in (State.READY, State.ASSIGNED, State.LOST):
            self._journal.put(entry.to(Event.END, now=self._clock(), reason=why, attempts=0), "release")

    def destroy(self, number: int) -> str:
        """Try once to destroy what is to be destroyed. Why it is still there; empty where it is gone."""
        entry = self._journal.entries.get(number)
        if entry is None or entry.state not in ENDING:
            return ""
        if entry.state is State.DRAINING:
            entry = self._journal.put(entry.to(Event.DUE, now=self._clock()), "intent-destroy")
        try:
            self._driver.destroy(entry.partition, self._step(entry, destroying=True))
        except HamiError as error:
            left = self._journal.entries[number]
            in_use = isinstance(error, InUseError) and left.state is State.DESTROYING
            event = Event.IN_USE if in_use else Event.FAIL
            failed = left.to(event, now=self._clock(), attempts=left.attempts + 1, reason=str(error))
            self._journal.put(failed, "destroy-failed")
            return str(error)
        self._journal.drop(self._journal.entries[number], "destroyed")
        return ""

    def users(self, number: int) -> Sequence[int]:
        """Processes that are known to keep it."""
        entry = self._journal.entries.get(number)
        return () if entry is None else self._driver.users(entry.partition)

    def _listed(self, card: str) -> list[Partition]:
        return [one for one in self._driver.partitions(card) if one.card == card]

    def _take_in(self, card: str, listed: Sequence[Partition], known: Known) -> None:
        for change in judged(card, self.on(card), listed, known):
            match change:
                case Change(before=None, after=Entry() as found):
                    self._journal.new(found, "adopted" if found.owner else "foreign")
                case Change(before=Entry() as gone, after=None):
                    self._journal.drop(gone, "gone")
                case Change(after=Entry() as now):
                    self._journal.put(now, "found")
            log.info("partition", what=_described(change))
            if change.told:
                self._news.put(change)

    def _clear(self, reservation: PodReservation, living: AbstractSet[str] | None, *, may_destroy: bool) -> None:
        """Make room. ``NoRoomError`` with what is in the way."""
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
        """Whether the card has more room now, as what is nobody's any more was destroyed. Each is tried once."""
        ending = [one for known in self.on(card) if (one := self._let_go(known, living)).state in ENDING]
        failures = [self.destroy(one.number) for one in ending]
        return not all(failures)

    def _taken_over(
        self, reservation: PodReservation, boot: str, listed: Sequence[Partition], living: AbstractSet[str] | None
    ) -> Entry | None:
        """Exactly what is wanted, left by a pod that has ended: it need not be destroyed and made again.

        Only one of this boot that the listing has, that nobody is known to use, and that nobody has kept from being
        destroyed.
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
                own = replace(entry.to(Event.ADOPT, now=self._clock()), owner=reservation.owner, reason="")
                return self._journal.put(own, "taken-over")
        return None

    def _let_go(self, known: Entry, living: AbstractSet[str] | None) -> Entry:
        """The entry, released if its pod has ended."""
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
        entry = self._journal.new(reserved.to(Event.INTEND, now=now), "intent-create")
        try:
            made = self._driver.create(wanted.card, wanted.profile, wanted.placement, self._step(entry))
            _require_as_wanted(made, entry)
        except HamiError as error:
            self._note_failure(entry.number, str(error))
            raise
        ready = self._journal.entries[entry.number].identified(made)
        return self._journal.put(ready.to(Event.MADE, now=self._clock()), "ready")

    def _note_failure(self, number: int, why: str) -> None:
        """What is left of it is to be cleaned. Where that cannot be seen now, the next look judges the intent."""
        entry = self._journal.entries[number]
        try:
            left = remains(entry, self._listed(entry.card))
        except HamiError as error:
            log.warning("what a failed creation has left is not known", partition=_named(entry), problem=str(error))
            return
        if len(left) == 1:
            failed = entry.identified(left[0]).to(Event.FAIL, now=self._clock(), reason=why)
            self._journal.put(failed, "failed")
        else:
            self._journal.drop(entry, "failed")

    def _step(self, entry: Entry, *, destroying: bool = False) -> Step:
        """Writes down what exists after each call. Without it, the next life finds out by looking."""

        def note(ids: Mapping[str, int]) -> None:
            now = replace(self._journal.entries[entry.number], ids=dict(ids))
            if destroying and ids.keys() != entry.ids.keys():
                now = replace(now, uuid="")
            try:
                self._journal.put(now, "step")
            except OSError as error:
                log.warning("a step is not on file", partition=_named(entry), problem=str(error))

        return note


def owners_of(entries: Mapping[int, Entry], uid: str, container: str) -> Mapping[Owner, Entry]:
    """What a container has, by its share."""
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
