"""The life cycle over a vendor's own driver and its simulated hardware, without a daemon: one thread, no waiting."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hami_plugin.errors import HamiError
from hami_plugin.partitions.journal import PartitionJournal
from hami_plugin.partitions.life import ABSENT, ENDING, Owner, State
from hami_plugin.partitions.manager import Cutter
from hami_plugin.partitions.reconciliation import Known, PodReservation
from hami_plugin.sdk import NOWHERE, Partition, PartitionDriver, Reservation


@dataclass
class Lives:
    """``living`` are the pods that live. Each has one partition, of ``card`` unless another is named."""

    driver: PartitionDriver
    path: Path
    card: str
    living: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another life on the same host: all that is known is what the journal has."""
        self.journal = PartitionJournal(self.path, "boot-1")
        self.journal.load()
        self.cutter = Cutter(self.driver, self.journal)

    def reservation(self, pod: str, profile: str, *, card: str = "") -> PodReservation:
        wanted = Reservation(container="main", device=0, card=card or self.card, profile=profile, placement=NOWHERE)
        return PodReservation(owner=Owner(uid=pod, container="main", device=0, namespace="ns", pod=pod), wanted=wanted)

    def allocate(self, pod: str, profile: str, *, card: str = "") -> Partition:
        """``HamiError`` where it is refused; then the pod has failed, and is over."""
        self.living.add(pod)
        one = self.reservation(pod, profile, card=card)
        try:
            made = self.cutter.ensure(one, "boot-1", self.living, may_destroy=True)
            self.cutter.hand_out(made.entry.number)
        except HamiError:
            self.living.discard(pod)
            raise
        return made.entry.partition

    def settle(self) -> None:
        """What a daemon does by and by: look, let go and destroy. What fails now is tried again."""
        for _ in range(3):
            for card in sorted({self.card, *(entry.card for entry in self.journal.entries.values())}):
                try:
                    listed, version = self.driver.partitions(), self.journal.changed(card)
                    self.cutter.resync(card, listed, version, Known(boot="boot-1", now=0.0, living=self.living))
                except HamiError:
                    continue
            for entry in list(self.journal.entries.values()):
                if entry.state in ENDING:
                    self.cutter.destroy(entry.number)

    def known(self) -> list[tuple[State, Partition]]:
        """What the journal has of what exists."""
        return [(one.state, one.partition) for one in self.journal.entries.values() if one.state not in ABSENT]
