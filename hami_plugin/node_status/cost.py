"""What pods cost: how much of which cards they had for how long, and what those cards drew meanwhile.

All that a card draws and every second that it is there goes to pods, by their shares of it, or to nobody (idle). So the
counters of the pods and of idle cards add up to those of the cards. Energy goes by shares, not by use: no driver says
which process drew it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from hami_plugin.model.device import MAX_DEVICES
from hami_plugin.model.views import PodView
from hami_plugin.node_status.occupancy import DeviceOccupancy
from hami_plugin.process.concurrency import Watched, wait_any_changed

EVERY_S = 1.0
"""How often it is looked at most who has what."""
RESYNC_S = 10.0
"""How often although nothing says that it has changed."""
KEPT_S = 900.0
"""How long an ended pod is shown: a scrape or several see its last values."""
MAX_ENDED = 1024
"""Ended pods that are shown."""
MAX_NAMES = 512
"""Namespaces, and values of one label, that have counters of their own."""
MAX_UNPAID = 256
"""Pods that had a share of a card since its energy was last told. What further ones had goes to others together."""
OTHER = "(other)"
"""What further ones are counted under."""
MAX_WATTS = 20_000.0
"""No card draws as much. A counter that says so was reset, or is broken."""

CardKey = tuple[str, str]
"""A vendor, and a card's UUID."""
Names = tuple[str, ...]
"""The values of a series' labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payer:
    """A pod that has a share of a device. ``labels`` are the values of the labels that are counted."""

    vendor: str
    model: str
    namespace: str
    pod: str
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Amount:
    """``seconds`` of whole cards, and ``joules``."""

    seconds: float = 0.0
    joules: float = 0.0

    def add(self, seconds: float, joules: float) -> None:
        self.seconds += seconds
        self.joules += joules


@dataclass(frozen=True, slots=True, kw_only=True)
class CardShares:
    """Who has which part of a card, from 0 to 1. What is left to 1 is idle."""

    model: str
    shares: Mapping[Payer, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class CardAmounts:
    """What one card came to. ``metered`` is whether its energy was ever told; until then nothing is ``unpaid``."""

    model: str
    whole: Amount = field(default_factory=Amount)
    idle: Amount = field(default_factory=Amount)
    metered: bool = False
    reading: float | None = None
    read_at: float = 0.0
    unpaid: dict[Payer, float] = field(default_factory=dict)
    unpaid_idle: float = 0.0

    def owe(self, payer: Payer, seconds: float) -> None:
        """Energy for that time, once it is told."""
        if not self.metered:
            return
        if payer not in self.unpaid and len(self.unpaid) >= MAX_UNPAID:
            payer = Payer(
                vendor=payer.vendor, model=payer.model, namespace=OTHER, pod=OTHER, labels=(OTHER,) * len(payer.labels)
            )
        self.unpaid[payer] = self.unpaid.get(payer, 0.0) + seconds


class CostAccount:
    """Adds up. Times are monotonic seconds, given by the caller; ``labels`` are the names of pods' labels to count by.

    ``pods`` are those that have something, or had until lately. ``namespaces`` and ``by_label`` only grow.
    """

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.labels = tuple(labels)
        self.cards: dict[CardKey, CardAmounts] = {}
        self.pods: dict[Payer, Amount] = {}
        self.namespaces: defaultdict[Names, Amount] = defaultdict(Amount)
        self.by_label: defaultdict[Names, Amount] = defaultdict(Amount)
        self._now: Mapping[CardKey, CardShares] = {}
        self._ended: dict[Payer, float] = {}
        self._at: float | None = None

    def inherit(self, former: CostAccount) -> None:
        """Go on from another one. Labels that it did not count begin at 0."""
        self.cards, self.namespaces = former.cards, former.namespaces
        self._now, self._ended, self._at = former._now, former._ended, former._at
        self.pods = former.pods
        if self.labels == former.labels:
            self.by_label = former.by_label

    def hold(self, cards: Mapping[CardKey, CardShares], now: float) -> None:
        """From ``now`` on these cards are there, and are held so. Before, they were as they were."""
        self.advance(now)
        self._now = {key: _bounded(card) for key, card in list(cards.items())[:MAX_DEVICES]}
        for key, card in self._now.items():
            known = self.cards.setdefault(key, CardAmounts(model=card.model))
            known.model = card.model
        having = {payer for card in self._now.values() for payer in card.shares}
        for payer in having:
            self.pods.setdefault(payer, Amount())
            self._ended.pop(payer, None)
        for payer in self.pods.keys() - having:
            self._ended.setdefault(payer, now)
        self._forget(now)

    def advance(self, now: float) -> None:
        """Count the time until ``now``."""
        passed = max(0.0, now - self._at) if self._at is not None else 0.0
        self._at = now
        if not passed:
            return
        for key, card in self._now.items():
            amounts = self.cards[key]
            amounts.whole.seconds += passed
            for payer, share in card.shares.items():
                self._add(payer, share * passed, 0.0)
                amounts.owe(payer, share * passed)
            idle = max(0.0, 1.0 - sum(card.shares.values())) * passed
            amounts.idle.seconds += idle
            amounts.unpaid_idle += idle

    def metered(self, vendor: str, joules: Mapping[str, float], now: float) -> None:
        """Cards' energy counters, by UUID. What was drawn since the last time is divided by who had them since then."""
        self.advance(now)
        for uuid, reading in joules.items():
            amounts = self.cards.get((vendor, uuid))
            if amounts is None:
                continue
            before, amounts.reading = amounts.reading, reading
            if before is not None:
                self._pay(amounts, _drawn(before, reading, now - amounts.read_at))
            amounts.metered, amounts.read_at = True, now
            amounts.unpaid, amounts.unpaid_idle = {}, 0.0

    def _pay(self, amounts: CardAmounts, joules: float) -> None:
        amounts.whole.joules += joules
        had = amounts.unpaid_idle + sum(amounts.unpaid.values())
        if not had:
            amounts.idle.joules += joules
            return
        amounts.idle.joules += joules * amounts.unpaid_idle / had
        for payer, seconds in amounts.unpaid.items():
            self._add(payer, 0.0, joules * seconds / had)

    def _add(self, payer: Payer, seconds: float, joules: float) -> None:
        if own := self.pods.get(payer):  # it may have ended too long ago to be shown
            own.add(seconds, joules)
        _named(self.namespaces, (payer.vendor, payer.model, payer.namespace)).add(seconds, joules)
        for name, value in zip(self.labels, payer.labels, strict=False):
            _named(self.by_label, (payer.vendor, payer.model, name, value)).add(seconds, joules)

    def _forget(self, now: float) -> None:
        """Show no more pods that have ended than is agreed. What they came to stays in the sums."""
        late = [payer for payer, since in self._ended.items() if now - since >= KEPT_S]
        late += list(self._ended)[: max(0, len(self._ended) - MAX_ENDED)]
        for payer in late:
            self._ended.pop(payer, None)
            self.pods.pop(payer, None)
        while len(self.cards) > MAX_DEVICES:
            gone = next((key for key in self.cards if key not in self._now), None)
            if gone is None:
                return
            del self.cards[gone]


def _named(sums: defaultdict[Names, Amount], name: Names) -> Amount:
    """The sum of that name; of all further ones together, once there are many."""
    if name in sums or len(sums) < MAX_NAMES:
        return sums[name]
    return sums[(*name[:-1], OTHER)]


def _drawn(before: float, reading: float, seconds: float) -> float:
    """What a counter has counted. One that is less than before began anew; one that leaps is not believed."""
    drawn = reading - before if reading >= before else reading
    return drawn if drawn <= MAX_WATTS * max(seconds, 1.0) else 0.0


def _bounded(card: CardShares) -> CardShares:
    """Shares of together 1 at most: where more was given out than there is, each has less."""
    total = sum(card.shares.values())
    if total <= 1.0:
        return card
    return replace(card, shares={payer: share / total for payer, share in card.shares.items()})


def card_shares(
    occupied: Iterable[DeviceOccupancy], labelled: Callable[[str], tuple[str, ...]]
) -> Mapping[CardKey, CardShares]:
    """Each card with the pods' shares of it. ``labelled`` gives the values of a pod's labels, by its UID.

    A share is the greater of those of memory and of cores. A partition is the part of its card that its cores are.
    """
    models: dict[CardKey, str] = {}
    shares: defaultdict[CardKey, dict[Payer, float]] = defaultdict(dict)
    for one in occupied:
        key = (one.source.vendor, one.device.card)
        models.setdefault(key, one.device.model)
        part = min(max(one.device.cores, 0), 100) / 100 if one.device.place else 1.0
        for uid, name, share in _pod_shares(one):
            payer = Payer(
                vendor=one.source.vendor,
                model=one.device.model,
                namespace=name[0],
                pod=name[1],
                labels=labelled(uid),
            )
            shares[key][payer] = shares[key].get(payer, 0.0) + share * part
    return {key: CardShares(model=model, shares=shares.get(key, {})) for key, model in models.items()}


def _pod_shares(one: DeviceOccupancy) -> Iterator[tuple[str, tuple[str, str], float]]:
    for portions in one.pods():
        held = portions[0].held
        alone = replace(one, portions=tuple(portions))
        memory = alone.memory_taken / one.memory if one.memory else 0.0
        yield held.uid, (held.namespace, held.pod), min(1.0, max(memory, alone.cores_taken))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What is held, ``occupied``, and ``version``, which differs as soon as that does. ``changes`` wake whoever waits
    for another version, and ``pod`` finds a pod by UID.
    """

    occupied: Callable[[], Iterable[DeviceOccupancy]]
    version: Callable[[], object]
    changes: Callable[[], Iterable[Watched[Any]]]
    pod: Callable[[str], PodView | None]


class CostMeter:
    """Keeps a ``CostAccount`` up to date with what is held. ``clock`` gives monotonic seconds."""

    def __init__(
        self, holdings: Holdings, labels: Sequence[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.account = CostAccount(labels)
        self._holdings = holdings
        self._clock = clock
        self._version: object = None
        self._labelled: dict[str, tuple[str, ...]] = {}

    async def run(self) -> NoReturn:
        """Until it is cancelled."""
        while True:
            seen = [(one, one.version) for one in self._holdings.changes()]
            self.look()
            await asyncio.sleep(EVERY_S)
            await wait_any_changed(seen, within=RESYNC_S)

    def look(self) -> None:
        """Count until now, and see who has what from now on."""
        version = self._holdings.version()
        if version == self._version:
            self.account.advance(self._clock())
            return
        self._version = version
        before, self._labelled = self._labelled, {}
        self.account.hold(card_shares(self._holdings.occupied(), lambda uid: self._labels(uid, before)), self._clock())

    def metered(self, vendor: str, joules: Mapping[str, float]) -> None:
        """A driver has told what its cards have drawn."""
        self.look()
        self.account.metered(vendor, joules, self._clock())

    def _labels(self, uid: str, before: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """A pod's, which stay as they were seen first: a sum never goes back."""
        if uid in self._labelled:
            return self._labelled[uid]
        if uid in before:
            found = before[uid]
        elif pod := self._holdings.pod(uid):
            found = tuple(pod.labels.get(name, "") for name in self.account.labels)
        else:
            return tuple("" for _ in self.account.labels)
        self._labelled[uid] = found
        return found
