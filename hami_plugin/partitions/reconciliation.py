"""Reconcile one card's journal entries with a listing and the living pods. Pure.

The same function runs at the start of the daemon and at every resync. It never acts: entries to be destroyed become
``DRAINING``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from hami_plugin.partitions.life import Entry, Owner, PartitionEvent, State, identity
from hami_plugin.sdk.family import Reservation
from hami_plugin.sdk.partitions import NOWHERE, Partition

LEAKED_AFTER_S = 600.0
"""How long a partition without an owner is kept where all partitions belong to the daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReservation:
    """A reservation of a living pod, with the container it is for."""

    owner: Owner
    wanted: Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The facts of one moment. ``living`` are UIDs of pods; None while they are not known, and then all may live.

    ``all_ours``: partitions that the daemon did not create are destroyed too, after ``LEAKED_AFTER_S``.
    ``lasting``: partitions survive a reboot. ``now`` is a Unix time.
    """

    boot: str
    now: float
    living: AbstractSet[str] | None
    reservations: Sequence[PodReservation] = ()
    all_ours: bool = False
    lasting: bool = False

    def outlived(self, entry: Entry) -> bool:
        """Whether a reboot has removed it. An empty boot id counts as the current boot."""
        return not self.lasting and bool(self.boot and entry.boot) and entry.boot != self.boot

    def lives(self, owner: Owner | None) -> bool:
        return owner is not None and (self.living is None or owner.uid in self.living)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry before and after: ``before`` is None for a discovered partition, ``after`` for one that is gone.

    ``event_reason`` is the reason of an Event, empty for none.
    """

    before: Entry | None
    after: Entry | None
    why: str
    event_reason: str = ""


LOST, FOREIGN, AMBIGUOUS = "PartitionLost", "PartitionForeign", "PartitionAmbiguous"


def reconcile(card: str, entries: Sequence[Entry], listed: Sequence[Partition], known: Known) -> list[Change]:
    """All changes of one card. Discovered partitions become entries with the number 0."""
    left = [one for one in listed if one.card == card]
    changes: list[Change] = []
    kept: list[Entry] = []
    mine = sorted((one for one in entries if one.card == card), key=lambda one: one.number)
    known = replace(known, reservations=unfulfilled(known.reservations, mine))
    for entry in mine:
        change = (
            _reconcile_intent(entry, left, known)
            if entry.state is State.CREATING
            else _reconcile_known(entry, left, known)
        )
        if change:
            changes.append(change)
        if now := change.after if change else entry:
            kept.append(now)
    for partition in left:
        found = _found(partition, unfulfilled(known.reservations, kept), known)
        kept.append(found)
        reason = "" if found.owner else FOREIGN
        changes.append(Change(before=None, after=found, why="found", event_reason=reason))
    return changes


def unfulfilled(reservations: Sequence[PodReservation], entries: Sequence[Entry]) -> tuple[PodReservation, ...]:
    """The reservations whose owner has no entry yet."""
    owners = {entry.owner for entry in entries if entry.owner}
    return tuple(one for one in reservations if one.owner not in owners)


def leftover_partitions(entry: Entry, listed: Sequence[Partition]) -> list[Partition]:
    """What an interrupted creation can have made: at its placement (without placements: of its profile), and new."""
    return [
        one
        for one in listed
        if (one.card, one.placement) == (entry.card, entry.placement)
        and (one.profile == entry.profile or one.placement.size > 0)
        and identity(one) not in entry.before
    ]


def _take(left: list[Partition], entry: Entry, known: Known) -> Partition | None:
    """Remove this entry's partition from ``left`` and return it. An entry of an earlier boot has none."""
    if known.outlived(entry):
        return None
    found = next((one for one in left if entry.is_listed_as(one)), None)
    if found is not None:
        left.remove(found)
    return found


def _reconcile_intent(entry: Entry, left: list[Partition], known: Known) -> Change:
    """An interrupted creation owns the partition that is new at its placement."""
    made = [] if known.outlived(entry) else leftover_partitions(entry, left)
    if len(made) != 1:
        return Change(before=entry, after=None, why="interrupted", event_reason=AMBIGUOUS if made else "")
    left.remove(made[0])
    found = entry.identified(made[0])
    if not known.lives(entry.owner):
        return Change(
            before=entry, after=found.to(PartitionEvent.END, now=known.now), why="interrupted, and the pod has ended"
        )
    event = PartitionEvent.MADE if found.uuid else PartitionEvent.FAIL
    return Change(before=entry, after=found.to(event, now=known.now), why="interrupted")


def _reconcile_known(entry: Entry, left: list[Partition], known: Known) -> Change | None:
    found = _take(left, entry, known)
    match entry.state:
        case State.READY | State.ASSIGNED | State.LOST:
            return _reconcile_owned(entry, found, known)
        case State.FOREIGN | State.LEAKED:
            return _reconcile_others(entry, found, known)
    if found is None:
        return Change(before=entry, after=None, why="gone")
    now = entry.identified(found)
    if entry.state is State.DESTROYING:
        now = now.to(PartitionEvent.FAIL, now=known.now)
    return Change(before=entry, after=now, why="still there") if now != entry else None


def _reconcile_owned(entry: Entry, found: Partition | None, known: Known) -> Change | None:
    whole, lost = found is not None and bool(found.uuid), entry.state is State.LOST
    if known.lives(entry.owner):
        if whole and lost:
            back = entry.to(PartitionEvent.ADOPT, now=known.now).to(PartitionEvent.HAND_OUT, now=known.now)
            return Change(before=entry, after=back, why="there again")
        if whole or lost:
            return None
        gone = entry.to(PartitionEvent.LOSE, now=known.now, reason="it is no longer on the card")
        return Change(before=entry, after=gone, why="gone under its owner", event_reason=LOST)
    if found is None:
        return Change(before=entry, after=None, why="gone, as is its owner")
    return Change(
        before=entry, after=entry.identified(found).to(PartitionEvent.END, now=known.now), why="its owner has ended"
    )


def _reconcile_others(entry: Entry, found: Partition | None, known: Known) -> Change | None:
    if found is None:
        return Change(before=entry, after=None, why="gone")
    reservation = next(_matching(found, known.reservations), None)
    if reservation:
        return Change(before=entry, after=_adopted(entry.identified(found), reservation, known), why="a pod's")
    if known.all_ours and entry.state is State.FOREIGN:
        return Change(before=entry, after=entry.to(PartitionEvent.LEAK, now=known.now), why="nobody's")
    if entry.state is State.LEAKED and known.living is not None and known.now - entry.since >= LEAKED_AFTER_S:
        return Change(before=entry, after=entry.to(PartitionEvent.END, now=known.now), why="nobody's for long")
    return None


def _found(partition: Partition, reservations: Sequence[PodReservation], known: Known) -> Entry:
    """The entry of a listed partition that the journal does not have."""
    new = Entry(
        number=0,
        state=State.FREE,
        card=partition.card,
        profile=partition.profile,
        placement=partition.placement,
        uuid=partition.uuid,
        ids=dict(partition.ids),
        boot=known.boot,
        made=known.now,
        since=known.now,
    )
    reservation = next(_matching(partition, reservations), None)
    if reservation:
        return _adopted(new, reservation, known)
    return new.to(PartitionEvent.LEAK if known.all_ours else PartitionEvent.FIND, now=known.now)


def _adopted(entry: Entry, reservation: PodReservation, known: Known) -> Entry:
    """The entry with its new owner. If the pod's annotation names the partition, it was handed out before."""
    own = replace(entry.to(PartitionEvent.ADOPT, now=known.now), owner=reservation.owner)
    return own.to(PartitionEvent.HAND_OUT, now=known.now) if reservation.wanted.uuid else own


def _matching(partition: Partition, reservations: Sequence[PodReservation]) -> Iterator[PodReservation]:
    """The reservations that this partition fulfils: by uuid and ids if the pod names them, else by placement."""
    for reservation in reservations:
        wanted = reservation.wanted
        where = (wanted.card, wanted.profile, wanted.placement)
        if not partition.uuid or where != (partition.card, partition.profile, partition.placement):
            continue
        if (not wanted.uuid and wanted.placement != NOWHERE) or (wanted.uuid, dict(wanted.ids)) == (
            partition.uuid,
            dict(partition.ids),
        ):
            yield reservation
