"""One family's partitions while the daemon runs: created in Allocate, handed out, and destroyed after the pod.

Each card has its own thread, so a slow call or a partition in use delays no other card. The journal has the intent
before each call, so a process killed at any moment leaves nothing that its successor cannot explain. The manager is
level-triggered: it relists periodically and does not depend on events that could be missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from cdi.errors import CdiError
from hami_plugin.allocation.pods import PodTable
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Assignment
from hami_plugin.model.views import PodView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.partitions.journal import PartitionJournal
from hami_plugin.partitions.life import (
    ABSENT,
    ENDING,
    Entry,
    Owner,
    PartitionEvent,
    State,
    blocked_partitions,
    free_ratio,
    identity,
    placeable,
)
from hami_plugin.partitions.reconciliation import (
    Change,
    Known,
    PodReservation,
    leftover_partitions,
    reconcile,
    unfulfilled,
)
from hami_plugin.process.concurrency import Backoff, StuckError, Watched, WorkThread
from hami_plugin.process.log import logger
from hami_plugin.sdk.family import PartitionSide, Reservation
from hami_plugin.sdk.partitions import (
    NOWHERE,
    Cuttable,
    InUseError,
    NoRoomError,
    Partition,
    PartitionDriver,
    Placement,
    Profile,
    Step,
    UnlistedCardsError,
)

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


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All in seconds.

    ``resync``: between two listings. ``grace``: from a pod's end to the first attempt to destroy its partitions.
    ``budget``: for the work of one Allocate. ``first``, ``cap``: back-off between attempts. ``report``: how long a
    partition resists before an Event says so, and between two such Events. ``careful``: without destruction after a
    journal that could not be read. ``listing``: timeout of one listing. ``pods``: for the first list of pods.
    ``again``: until a card that changed during a listing is listed again. ``asking``: for the kubelet's PodResources
    within an Allocate.
    """

    resync: float = 30.0
    grace: float = 2.0
    budget: float = 5.0
    first: float = 1.0
    cap: float = 60.0
    report: float = 300.0
    careful: float = 600.0
    listing: float = 60.0
    pods: float = 5.0
    again: float = 2.0
    asking: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The pods that partitions are made for. ``current``: whether ``pods`` is in step with the API server.

    ``listed`` returns namespace and name of the pods that hold devices according to the kubelet, and raises
    ``HamiError`` if it does not answer. ``settle`` queues a pod for settlement. ``claimed`` are the partitions of all
    ResourceClaims, whose owners live as long as they are among them; ``claims`` moves with them.
    """

    pods: PodTable
    current: Callable[[], bool]
    listed: Callable[[], Coroutine[Any, Any, AbstractSet[tuple[str, str]]]]
    settle: Callable[[str], None]
    claimed: Callable[[], Sequence[PodReservation]] = tuple
    claims: Watched[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPartition:
    """One partition as commands and metrics show it. ``owner`` and ``plan`` may be empty; ``age`` in seconds."""

    card: str
    profile: str
    start: int
    size: int
    state: State
    owner: str = ""
    uuid: str = ""
    age: float = 0.0
    reason: str = ""
    plan: str = ""


class Specs(Protocol):
    """The partitions' CDI specs. Both calls block, and raise ``CdiError`` or ``HamiError``."""

    def publish(self, made: Sequence[tuple[Device, Partition]]) -> None: ...

    def keep(self, uuids: Iterable[str]) -> None: ...


class Partitions:
    """``begun`` is set once the journal and a listing agree; ``cuttable`` is by card, and None until then.

    ``problem`` is empty while the driver answers and the journal can be written.
    """

    def __init__(
        self,
        resource: str,
        side: PartitionSide,
        driver: PartitionDriver,
        journal: PartitionJournal,
        *,
        snapshot: Watched[Snapshot],
        peers: Peers,
        events: EventRecorder,
        specs: Specs | None = None,
        timing: Timing | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.resource = resource
        self.problem = "not listed yet"
        self.begun = asyncio.Event()
        self.cuttable: Watched[Mapping[str, Cuttable] | None] = Watched(None)
        self.profiles: Mapping[str, tuple[Profile, ...]] = {}
        self._side = side
        self._driver = driver
        self._journal = journal
        self._snapshot = snapshot
        self._peers = peers
        self._events = events
        self._specs = specs
        self._described: AbstractSet[str] | None = None
        self._timing = timing or Timing()
        self._ended = ended
        self._cutter = Cutter(driver, journal, lasting=side.lasting)
        self._lister = WorkThread(f"partitions of {resource}")
        self._describer = WorkThread(f"specs of {resource}")
        self._threads: dict[str, WorkThread] = {}
        self._wake = asyncio.Event()
        self._loaded = False
        self._careful_until = 0.0
        self._living: AbstractSet[str] | None = None
        self._due: dict[int, float] = {}
        self._ending_since: dict[int, float] = {}
        self._reported_at: dict[int, float] = {}
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._next_resync = 0.0
        self._asked: AbstractSet[str] = frozenset()

    @property
    def entries(self) -> Mapping[int, Entry]:
        return self._journal.entries

    async def prepared(self, assignment: Assignment) -> tuple[Partition, ...]:
        """The container's partitions, created if they do not exist yet. ``HamiError`` with the reason.

        Empty for a container with whole cards. If one of several fails, those just created are destroyed again.
        """
        wanted = self._side.wanted(assignment)
        if not wanted:
            return ()
        found = await self._ensured([self._pod_reservation(assignment.pod, one) for one in wanted])
        await self._release_others(assignment, {entry.number for entry in found})
        await self.described(assignment.pod.uid, assignment.container.name)
        return tuple(entry.partition for entry in found)

    async def claimed(self, reservations: Sequence[PodReservation]) -> tuple[Partition, ...]:
        """As ``prepared``, for a ResourceClaim, and handed out. They live as long as ``Peers.claimed`` has them."""
        found = await self._ensured(reservations)
        await asyncio.gather(
            *(self._on(one.card, partial(self._cutter.hand_out, one.number), "written down") for one in found)
        )
        return tuple(entry.partition for entry in found)

    async def _ensured(self, reservations: Sequence[PodReservation]) -> list[Entry]:
        await self._require_begun()
        with suppress(TimeoutError):  # an older answer serves too: pods that have ended do not come back
            async with asyncio.timeout(self._timing.asking):
                self._living = await self._living_pods()
        boot, living, may_destroy = self._journal.boot, self._living, self._may_destroy
        ensure = partial(self._cutter.ensure, boot=boot, living=living, may_destroy=may_destroy)
        calls = (self._on(one.wanted.card, partial(ensure, one), "made") for one in reservations)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        self._publish()
        failures = [one for one in outcomes if isinstance(one, BaseException)]
        if failures:
            await self._undo([one for one in outcomes if isinstance(one, Ensured) and one.fresh])
            raise failures[0]
        return [one.entry for one in outcomes if isinstance(one, Ensured)]

    async def handed_out(self, assignment: Assignment) -> None:
        """Journal that the container has its partitions; its Allocate is answered next."""
        mine = owners_of(self.entries, assignment.pod.uid, assignment.container.name).values()
        calls = (self._on(one.card, partial(self._cutter.hand_out, one.number), "written down") for one in mine)
        await asyncio.gather(*calls)

    async def described(self, uid: str, container: str) -> None:
        """Write the CDI specs of the container's partitions before it starts. ``HamiError`` if they cannot be."""
        mine = [one.partition for one in owners_of(self.entries, uid, container).values() if one.uuid]
        devices = {device.uuid: device for device in self._snapshot.value.devices}
        made = [(devices[one.card], one) for one in mine if one.card in devices]
        if self._specs is None or not made:
            return
        try:
            await self._describer.call(partial(self._specs.publish, made), self._timing.budget)
        except (CdiError, StuckError) as error:
            raise HamiError(f"partitions cannot be described for the container runtime: {error}") from error

    def reserved(self, pod: PodView, container: str) -> list[Reservation]:
        """The reservations of one container."""
        return [one.wanted for one in self._reservations_of(pod) if one.wanted.container == container]

    def taken(self, card: str, pod: PodView) -> list[Placement]:
        """The ranges of a card that other pods have, or that are reserved for them."""
        entries = [one for one in self.entries.values() if one.card == card and one.state not in ABSENT]
        others = [one.placement for one in entries if one.owner is None or one.owner.uid != pod.uid]
        reserved = [one for one in self._reservations() if one.wanted.card == card and one.owner.uid != pod.uid]
        return others + [one.wanted.placement for one in unfulfilled(reserved, entries)]

    def lost(self, uid: str, container: str) -> str:
        """Why the container, or a claim's request, cannot start again: its partition is gone. Empty if it is there."""
        mine = owners_of(self.entries, uid, container)
        gone = [one for one in mine.values() if one.state is State.LOST]
        return f"{gone[0].profile} of {gone[0].card} is gone: {gone[0].reason}" if gone else ""

    def names(self, pod: PodView) -> Mapping[str, str]:
        """The pod's annotations that name its partitions."""
        mine = {entry.owner: entry for entry in self.entries.values() if entry.owner and entry.owner.uid == pod.uid}
        if not mine:
            return {}
        pairs = [
            (reservation.wanted, entry.partition)
            for reservation in self._reservations_of(pod)
            if (entry := mine.get(reservation.owner)) and entry.state is State.ASSIGNED
        ]
        try:
            return self._side.names(pod, pairs) if pairs else {}
        except HamiError as error:
            log.warning("partition annotations not written", pod=pod.key, problem=str(error))
            return {}

    async def run(self) -> None:
        """List, release and destroy until cancelled."""
        await self._begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wake_by(self._peers.pods.changes), name=f"pods of {self.resource}'s partitions")
            group.create_task(self._wake_by(self._snapshot), name=f"cards of {self.resource}'s partitions")
            if self._peers.claims:
                group.create_task(self._wake_by(self._peers.claims), name=f"claims of {self.resource}'s partitions")
            while True:
                self._wake.clear()
                await self._turn(group)
                with_due = [due for number, due in self._due.items() if number not in self._busy]
                until = min([self._next_resync, *with_due]) if self._may_destroy else self._next_resync
                pause = min(max(0.05, until - time.monotonic()), self._timing.resync)
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    async def close(self) -> None:
        """Start nothing new, and wait briefly for running calls: a successor may act on the same cards."""
        threads = (self._describer, *self._threads.values())
        running = [thread.call(lambda: None, self._timing.budget, last=True) for thread in threads]
        running.append(self._lister.call(self._ended, self._timing.budget, last=True))
        await asyncio.gather(*running, return_exceptions=True)
        self._threads = {}
        self.cuttable.close()

    def shown(self) -> Iterator[ListedPartition]:
        """Existing partitions, then those reserved and not created yet."""
        now = time.time()
        for entry in sorted(self.entries.values(), key=lambda one: (one.card, one.placement, one.number)):
            yield ListedPartition(
                card=entry.card,
                profile=entry.profile,
                start=entry.placement.start,
                size=entry.placement.size,
                state=entry.state,
                owner=str(entry.owner) if entry.owner else "",
                uuid=entry.uuid,
                age=max(0.0, now - entry.made),
                reason=entry.reason,
                plan=self._plan(entry),
            )
        for reservation in unfulfilled(self._reservations(), list(self.entries.values())):
            wanted = reservation.wanted
            yield ListedPartition(
                card=wanted.card,
                profile=wanted.profile,
                start=wanted.placement.start,
                size=wanted.placement.size,
                state=State.RESERVED,
                owner=str(reservation.owner),
                plan="make",
            )

    def placeable(self) -> Iterator[tuple[str, Profile, int]]:
        """Card, profile, and the number of free placements."""
        for card, profiles in sorted(self.profiles.items()):
            there = [entry for entry in self.entries.values() if entry.card == card]
            for profile, count in placeable(profiles, there):
                yield card, profile, count

    def openness(self) -> Iterator[tuple[str, float]]:
        """Card, and the weighted part of its placements that is free: 1 for an empty card, less with fragmentation."""
        left: dict[str, list[tuple[Profile, int]]] = {}
        for card, profile, count in self.placeable():
            left.setdefault(card, []).append((profile, count))
        for card, profiles in left.items():
            yield card, free_ratio(profiles)

    @property
    def _may_destroy(self) -> bool:
        return self._living is not None and time.monotonic() >= self._careful_until

    def _plan(self, entry: Entry) -> str:
        match entry.state:
            case State.DRAINING | State.FAILED | State.DESTROYING:
                return "destroy" if self._may_destroy else "destroy, once it is known who lives"
            case State.LEAKED:
                return "destroy, if it stays nobody's"
            case State.LOST:
                return "forget with its pod"
        return ""

    async def _require_begun(self) -> None:
        try:
            async with asyncio.timeout(self._timing.budget):
                await self.begun.wait()
        except TimeoutError:
            raise RefusedError(
                RefusalReason.NOT_PREPARED,
                f"what the cards of {self.resource} are cut into is not known yet: {self.problem}",
                code="UNAVAILABLE",
            ) from None

    def _pod_reservation(self, pod: PodView, wanted: Reservation) -> PodReservation:
        owner = Owner(
            uid=pod.uid, container=wanted.container, device=wanted.device, namespace=pod.namespace, pod=pod.name
        )
        return PodReservation(owner=owner, wanted=wanted)

    def _reservations_of(self, pod: PodView) -> list[PodReservation]:
        """Empty if the pod's annotation cannot be read: that must not disturb other pods."""
        try:
            return [self._pod_reservation(pod, one) for one in self._side.reserved(pod)]
        except HamiError:
            return []

    def _reservations(self) -> tuple[PodReservation, ...]:
        by_pods = (one for pod in self._peers.pods.pods if not pod.terminal for one in self._reservations_of(pod))
        return (*by_pods, *self._peers.claimed())

    async def _on(self, card: str, work: Callable[[], T], what: str = "") -> T:
        """Run ``work`` on the card's thread, within the time of an Allocate."""
        try:
            return await self._thread(card).call(work, self._timing.budget)
        except StuckError as error:
            raise HamiError(f"a partition of {card} was not {what} in time: {error}") from error
        finally:
            self._report_changes()

    def _thread(self, card: str) -> WorkThread:
        return self._threads.setdefault(card, WorkThread(f"card {card}"))

    async def _undo(self, fresh: Sequence[Ensured]) -> None:
        for one in fresh:
            try:
                await self._on(one.entry.card, partial(self._cutter.release, one.entry.number, "another one failed"))
            except (HamiError, OSError) as error:
                log.warning("a partition is kept until its pod ends", problem=str(error))
            else:
                self._due[one.entry.number] = time.monotonic()
        self._wake.set()

    async def _release_others(self, assignment: Assignment, kept: AbstractSet[int]) -> None:
        """Release what the container has from an earlier decision."""
        for entry in owners_of(self.entries, assignment.pod.uid, assignment.container.name).values():
            if entry.number not in kept and entry.state in (State.READY, State.ASSIGNED):
                await self._on(entry.card, partial(self._cutter.release, entry.number, "another one was decided"))
                self._wake.set()

    async def _begin(self) -> None:
        """Wait for pods and cards, up to a deadline, then list until the journal and the cards agree."""
        if not self._loaded:
            await self._lister.call(self._journal.load, self._timing.listing)
            self._loaded = True
            if self._journal.torn:
                log.info("last line of the partitions' journal dropped: a crash has torn it", line=self._journal.torn)
            if self._journal.unreadable:
                self._careful_until = time.monotonic() + self._timing.careful
                why = f"{self._journal.path}: {self._journal.unreadable[0]}"
                log.warning("journal of partitions is damaged; nothing is destroyed for now", problem=why)
                self._events.node("PartitionJournalDamaged", why)
        deadline = time.monotonic() + self._timing.pods
        changes, cards = self._peers.pods.changes, self._snapshot
        while not changes.value and (left := deadline - time.monotonic()) > 0:
            await changes.changed(changes.version, timeout=left)
        while not cards.value.ready and not cards.closed and (left := deadline - time.monotonic()) > 0:
            await cards.changed(cards.version, timeout=left)
        for delay in Backoff(first=self._timing.first, cap=self._timing.cap).delays():
            if await self._resync():
                break
            await asyncio.sleep(delay)
        self.begun.set()
        for pod in self._peers.pods.pods:
            if any(pod.annotations.get(key) != text for key, text in self.names(pod).items()):
                self._peers.settle(pod.uid)

    async def _wake_by(self, watched: Watched[Any]) -> None:
        async for _ in watched.follow(every=0.1):
            self._wake.set()

    async def _turn(self, group: asyncio.TaskGroup) -> None:
        self._living = await self._living_pods()
        await self._release_ended()
        if time.monotonic() >= self._next_resync or not self._asked >= self._cards():
            await self._resync()
        now = time.monotonic()
        ending = {number: entry for number, entry in self.entries.items() if entry.state in ENDING}
        for kept in (self._due, self._ending_since, self._reported_at):
            for number in [number for number in kept if number not in ending]:
                del kept[number]
        for number, entry in ending.items():
            self._ending_since.setdefault(number, now)
            due = self._due.setdefault(number, now + (self._timing.grace if not entry.attempts else 0.0))
            if self._may_destroy and due <= now and number not in self._busy:
                self._busy[number] = group.create_task(self._destroy(entry), name=f"destroy {entry.card}/{number}")
        self._publish()
        await self._tidy_specs()

    async def _tidy_specs(self) -> None:
        """Remove the CDI specs of partitions that are gone."""
        uuids = {entry.uuid for entry in self.entries.values() if entry.uuid}
        if self._specs is None or uuids == self._described:
            return
        try:
            await self._describer.call(partial(self._specs.keep, uuids), self._timing.budget)
            self._described = uuids
        except (CdiError, StuckError) as error:
            log.warning("cdi specs of partitions not tidied", problem=str(error))

    async def _living_pods(self) -> AbstractSet[str] | None:
        """UIDs of pods that keep their partitions; None while the pod cache is not current.

        A pod that the API server has deleted counts as living while the kubelet holds devices for it, or does not
        answer.
        """
        peers = self._peers
        if not peers.current():
            return None
        claims = {one.owner.uid for one in peers.claimed()}
        living = claims | {pod.uid for pod in peers.pods.pods if not pod.terminal}
        known = claims | {pod.uid for pod in peers.pods.pods}
        owners = {entry.owner for entry in self.entries.values() if entry.owner and not entry.owner.of_claim}
        gone = {one for one in owners if one.uid not in known}
        held = {one for one in gone if self._is_held(one)}
        if not held:
            return living
        try:
            listed = await peers.listed()
        except HamiError as error:
            log.debug("the kubelet does not say which pods it has", problem=str(error))
            return living | {one.uid for one in held}
        names = {(pod.namespace, pod.name) for pod in peers.pods.pods}
        return living | {one.uid for one in held if (one.namespace, one.pod) in listed - names}

    def _is_held(self, owner: Owner) -> bool:
        return any(one.owner == owner and one.state not in ENDING for one in self.entries.values())

    async def _release_ended(self) -> None:
        if self._living is None:
            return
        for entry in self.entries.values():
            owned = entry.state in (State.READY, State.ASSIGNED, State.LOST)
            if owned and entry.owner and entry.owner.uid not in self._living:
                try:
                    await self._on(entry.card, partial(self._cutter.release, entry.number, "its pod has ended"))
                except (HamiError, OSError) as error:
                    self.problem = str(error)

    async def _resync(self) -> bool:
        """Reconcile the journal with a new listing, and read the profiles. False if nothing can be listed."""
        self._next_resync = time.monotonic() + self._timing.resync
        self._asked = self._cards()
        if self._snapshot.value.ready and not self._all_cards():  # no card, now or before
            self._set_problem("")
            self._publish()
            return True
        versions = {card: self._journal.changed(card) for card in self._all_cards()}
        trouble = ""
        try:
            try:
                listed = await self._lister.call(self._driver.partitions, self._timing.listing)
                silent: AbstractSet[str] = frozenset()
            except UnlistedCardsError as error:  # nothing changes on these cards
                listed, silent, trouble = error.partitions, frozenset(error.cards), str(error)
            known = Known(
                boot=self._journal.boot,
                now=time.time(),
                living=await self._living_pods(),
                reservations=self._reservations(),
                all_ours=self._side.all_ours,
                lasting=self._side.lasting,
            )
            cards = {one.card for one in listed} | (set() if "" in silent else self._all_cards() - silent)
            calls = (self._resync_card(card, listed, versions.get(card, 0), known) for card in sorted(cards))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        except (HamiError, StuckError) as error:
            self._set_problem(f"the partitions of {self.resource} cannot be listed: {error}")
            return False
        self._report_changes()
        failures = [one for one in outcomes if isinstance(one, BaseException)]
        self._set_problem(str(failures[0]) if failures else trouble)
        self._publish()
        return True

    async def _resync_card(self, card: str, listed: Sequence[Partition], version: int, known: Known) -> None:
        thread, limit = self._thread(card), self._timing.listing
        if not await thread.call(partial(self._cutter.resync, card, listed, version, known), limit):
            self._next_resync = min(self._next_resync, time.monotonic() + self._timing.again)
        profiles = await thread.call(partial(self._driver.profiles, card), limit)
        if self.profiles.get(card) != profiles:
            self.profiles = {**self.profiles, card: profiles}

    def _cards(self) -> AbstractSet[str]:
        return {device.uuid for device in self._snapshot.value.devices}

    def _all_cards(self) -> set[str]:
        return {*self._asked, *(entry.card for entry in self.entries.values())}

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("partitions", resource=self.resource, problem=problem)
        self.problem = problem

    async def _destroy(self, entry: Entry) -> None:
        """Attempt once. The next attempt backs off exponentially; an Event reports a partition that resists."""
        number = entry.number
        try:
            why = await self._thread(entry.card).start(partial(self._cutter.destroy, number))
            if why:
                await self._report_stuck(number, why)
        except OSError as error:
            self._set_problem(f"the journal of partitions cannot be written: {error}")
        except HamiError as error:
            self._set_problem(str(error))
        finally:
            del self._busy[number]
            left = self.entries.get(number)
            tries = left.attempts if left else 0
            pause = min(self._timing.cap, self._timing.first * 2 ** min(max(0, tries - 1), 16))
            self._due[number] = time.monotonic() + pause
            self._publish()
            self._wake.set()

    async def _report_stuck(self, number: int, why: str) -> None:
        now, entry = time.monotonic(), self.entries.get(number)
        if entry is None:
            return  # destroyed since by an Allocate that needs its place
        waited = now - self._ending_since.get(number, now)
        if waited < self._timing.report or now - self._reported_at.get(number, float("-inf")) < self._timing.report:
            return
        self._reported_at[number] = now
        pids = await self._thread(entry.card).start(partial(self._cutter.users, number))
        who = f", used by processes {', '.join(map(str, pids))}" if pids else ""
        where = f"{entry.profile} at {entry.placement.start} of {entry.card}"
        self._events.node("PartitionStuck", f"{where} cannot be destroyed for {waited / 60:.0f} min: {why}{who}")

    def _report_changes(self) -> None:
        for change in self._cutter.pop_changes():
            self._report_change(change)

    def _report_change(self, change: Change) -> None:
        entry = change.after or change.before
        assert entry
        where = f"{entry.profile} at {entry.placement.start} of {entry.card} ({entry.uuid or 'incomplete'})"
        pod = self._peers.pods.get(entry.owner.uid) if entry.owner else None
        if pod is not None:
            self._events.pod(pod, change.event_reason, f"{where}: {change.why}; delete the pod", warning=True)
        else:
            self._events.node(change.event_reason, f"{where}: {change.why}", warning=bool(entry.owner))

    def _publish(self) -> None:
        there = blocked_partitions(self.entries.values())
        cards = sorted({*self.profiles, *there})
        self.cuttable.set(
            {card: Cuttable(profiles=self.profiles.get(card, ()), blocked=there.get(card, ())) for card in cards}
        )
