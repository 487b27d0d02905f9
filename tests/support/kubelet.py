"""The kubelet's device manager in miniature, and its account of who holds what."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hami_plugin.errors import HamiError, RefusedError
from hami_plugin.model.delivery import ANSWERED_FOR, container_key
from hami_plugin.model.ports import CheckpointEntry
from hami_plugin.model.views import PodView

from .builders import COUNT


class FakeCheckpoint:
    """The kubelet's memory, as a list that a test or the kubelet below fills."""

    def __init__(self, *kept: CheckpointEntry) -> None:
        self.list = list(kept)
        self.problem = ""

    async def kept(self, resource: str, ids: frozenset[str] | None = None) -> tuple[CheckpointEntry, ...]:
        if self.problem:
            raise HamiError(self.problem)
        return tuple(one for one in self.list if ids in (None, one.ids))


def kept(
    pod: PodView, replicas: Sequence[str], container: str = "main", *, answered: tuple[PodView, str] | None = None
) -> CheckpointEntry:
    """A container with the answer that was made for it, or for the one in ``answered``."""
    other, name = answered or (pod, container)
    return CheckpointEntry(
        uid=pod.uid, container=container, ids=frozenset(replicas), answered_for=container_key(other.uid, name)
    )


@dataclass
class Kubelet:
    """Admits pods one by one as the kubelet does: init containers first, whose ids later containers get anew.

    ``obedient``: whether it asks which ids to take. Otherwise, and for re-used ids, the choice is random.
    """

    plugin: object
    obedient: bool = True
    choose: random.Random = field(default_factory=lambda: random.Random(1))
    checkpoint: FakeCheckpoint = field(default_factory=FakeCheckpoint)
    given: dict = field(default_factory=dict)
    used: set = field(default_factory=set)

    async def admit(self, pod: PodView) -> dict[str, object]:
        """Edits by container. A refusal fails the pod, as the kubelet's does, and is raised."""
        reusable: set[str] = set()
        edits = {}
        try:
            for container in pod.containers:
                count = container.amount(COUNT)
                if not count:
                    continue
                replicas = await self._take(reusable, count)
                answer = edits[container.name] = await self.plugin.allocate(replicas)
                self.used |= set(replicas)
                self.given[pod.uid, container.name] = replicas
                made_for = answer.annotations[ANSWERED_FOR]
                self.checkpoint.list.append(
                    CheckpointEntry(
                        uid=pod.uid, container=container.name, ids=frozenset(replicas), answered_for=made_for
                    )
                )
                if container.init and not container.restartable:
                    reusable |= set(replicas)
                else:
                    reusable -= set(replicas)
        except RefusedError:
            self.forget(pod)
            raise
        return edits

    async def start(self, pod: PodView) -> None:
        """Ask before each container's start, in the order of starting."""
        for container in pod.containers:
            if (pod.uid, container.name) in self.given:
                await self.plugin.pre_start(self.given[pod.uid, container.name])

    def forget(self, pod: PodView) -> None:
        mine = [key for key in self.given if key[0] == pod.uid]
        self.used -= {replica for key in mine for replica in self.given.pop(key)}
        self.checkpoint.list = [h for h in self.checkpoint.list if h.uid != pod.uid]

    async def _take(self, reusable: set[str], count: int) -> list[str]:
        again = sorted(reusable)
        self.choose.shuffle(again)
        taken = again[:count]
        free = [o.id for o in self.plugin.offers.value if o.healthy and o.id not in self.used and o.id not in taken]
        missing = count - len(taken)
        if missing and self.obedient:
            advice = await self.plugin.prefer([*free, *taken], taken, count)
            taken += [replica for replica in advice if replica in free][:missing]
        self.choose.shuffle(free)
        taken += [replica for replica in free if replica not in taken][: count - len(taken)]
        return taken
