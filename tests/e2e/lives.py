"""Many lives of pods at once, by chance: scheduled alone or together, admitted in order or not, deleted any time."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hami_plugin.demo.node import NODE, SimulatedNode
from hami_plugin.errors import HamiError
from hami_plugin.model.device import physical_counts
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.protocol import keys
from hami_plugin.simulation.kubelet import AdmissionError, StartError
from hami_plugin.simulation.objects import StatusError
from hami_plugin.simulation.scheduler import BINPACK, POLICY, TOPOLOGY_AWARE
from tests.e2e.manifests import NAMESPACE, asking, idle, manifest
from tests.e2e.truth import annotation, difference, grants_of

MAX_ALIVE = 14
LOCK_EXPIRES_S = 0.1
PATIENCE_S = 60
SERVED = "served"


@dataclass(slots=True, kw_only=True, eq=False)
class Life:
    """One pod. ``orderly``: nothing about its admission was out of the ordinary, so it must be served.

    ``resident``: it was served, and leaves only to make room. ``company`` are those that the node has besides it.
    ``mark`` is set when its end is decided, or with ``stays`` that it has none; ``settled`` when the kubelet is done
    with starting it.
    """

    pod: PodView
    kind: str
    orderly: bool
    resident: bool = False
    stays: bool = False
    company: tuple["Life", ...] = ()
    mark: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: str = ""


class Lives:
    """``count`` pods on one stage; ``shares`` are of so many MiB. After ``run``: ``outcomes``, ``violations``, and the
    words of all refusals.

    ``crowded``: a pod that is served leaves only when another found no room, so that the node is full from the first
    such pod on, however fast the machine is. Otherwise pods leave by chance.
    """

    def __init__(
        self,
        stage: SimulatedNode,
        *,
        seed: int,
        count: int,
        shares: Sequence[int] = (500, 1000, 2000),
        crowded: bool = False,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.violations: list[str] = []
        self.refusals: list[str] = []
        self._stage = stage
        self._count = count
        self._shares = shares
        self._crowded = crowded
        self._chance = random.Random(seed)
        self._made = 0
        self._disappointed: list[tuple[Life, str]] = []
        self._alive: dict[str, Life] = {}
        self._queue: list[Life] = []
        self._busy: Life | None = None
        self._news = asyncio.Condition()

    @property
    def unfair(self) -> list[str]:
        """Refusals of orderly pods, of whose company all were served: nothing was in doubt."""
        return [
            f"{life.kind} {life.pod.key}: {words}"
            for life, words in self._disappointed
            if all(other.outcome == SERVED for other in life.company)
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            kubelet = group.create_task(self._admit_all(group))
            await self._schedule_all(group)
            await self._until(lambda: not self._queue and self._busy is None)
            kubelet.cancel()

    # The scheduler, and whoever creates pods.

    async def _schedule_all(self, group: asyncio.TaskGroup) -> None:
        kinds = {"alone": 70, "together": 12, "alike": 7, "stranger": 3, "again": 8}
        while self._made < self._count:
            without_room = self.outcomes["not scheduled"]
            await self._until(lambda: self._bustle() < MAX_ALIVE)
            (kind,) = self._chance.choices(list(kinds), list(kinds.values()))
            match kind:
                case "alone":
                    await self._calm()
                    self._place(group, kind, self._shape(), orderly=True)
                case "together":
                    for _ in range(self._chance.randint(2, 5)):
                        self._place(group, kind, self._shape(), lock=self._chance.random() < 0.5)
                case "alike":
                    shape = self._shape()
                    for _ in range(self._chance.randint(2, 5)):
                        self._place(group, kind, shape)
                case "stranger":
                    self._place_stranger(group)
                case "again" if self._alive:
                    old = self._chance.choice(list(self._alive.values()))
                    self._delete(old, force=True)
                    await self._calm()
                    self._place(group, kind, self._shape(), name=old.pod.name)
            if self._crowded and self.outcomes["not scheduled"] > without_room:
                await self._make_room()
        await self._until(lambda: all(life.outcome for life in self._alive.values()))
        for life in self._residents():
            life.stays = True
            life.mark.set()

    def _bustle(self) -> int:
        return sum(not life.resident for life in self._alive.values())

    def _residents(self) -> list[Life]:
        return [life for life in self._alive.values() if life.resident and not life.mark.is_set()]

    async def _make_room(self) -> None:
        """One resident leaves, as soon as there is one."""
        await self._until(lambda: self._residents() or not self._alive)
        for life in self._chance.sample(self._residents(), 1 if self._alive else 0):
            self._delete(life, force=False)
            await self._until(lambda life=life: life.pod.uid not in self._alive)

    async def _calm(self) -> None:
        """Nothing waits at the kubelet, and the lock is free, or expired."""
        await self._until(lambda: not self._queue and self._busy is None)
        with suppress(HamiError):
            await self._stage.until(lambda: not annotation(self._stage, keys.NODE_LOCK), "the release", LOCK_EXPIRES_S)

    def _place(
        self,
        group: asyncio.TaskGroup,
        kind: str,
        shape: dict,
        *,
        orderly: bool = False,
        lock: bool = True,
        name: str = "",
    ) -> None:
        name = name or f"p{self._made}"
        try:
            pod = self._stage.scheduler.place(manifest(name, **shape), lock=lock)
        except HamiError:
            self.outcomes["not scheduled"] += 1
            self._stage.api.delete_pod(NAMESPACE, name)
            return
        except StatusError:
            return  # a pod of this name is still there
        self._begin(group, Life(pod=pod, kind=kind, orderly=orderly))

    def _place_stranger(self, group: asyncio.TaskGroup) -> None:
        """A pod that another scheduler bound, and decided nothing about."""
        wants = asking("main", self._stage.family.resources)
        name = f"p{self._made}"
        self._stage.api.create_pod(manifest(name, [wants], scheduler="default-scheduler"))
        self._begin(
            group, Life(pod=pod_view(self._stage.api.bind(NAMESPACE, name, NODE)), kind="stranger", orderly=False)
        )

    def _begin(self, group: asyncio.TaskGroup, life: Life) -> None:
        for other in (*self._queue, *filter(None, [self._busy])):
            other.orderly = life.orderly = False
        life.company = tuple(self._alive.values())
        self._made += 1
        self.kinds[life.kind] += 1
        self._alive[life.pod.uid] = life
        self._queue.append(life)
        if self._chance.random() < 0.15:
            life.orderly = False
            group.create_task(self._die_early(life))
        group.create_task(self._tidy(life))
        group.create_task(self._tell())

    def _shape(self) -> dict:
        """Containers of a pod, at least one of which asks for devices."""
        chance, resources = self._chance, self._stage.family.resources

        def one(name: str, **more):
            match chance.choices(["share", "several", "whole", "nothing"], [60, 12, 4, 24])[0]:
                case "share":
                    return asking(
                        name, resources, memory=chance.choice(self._shares), cores=chance.choice((5, 10)), **more
                    )
                case "several":
                    return asking(name, resources, count=chance.randint(2, 3), memory=1000, cores=5, **more)
                case "whole":
                    return asking(name, resources, **more)
                case _:
                    return idle(name)

        containers = [one(f"c{n}") for n in range(chance.randint(1, 3))]
        inits = [one(f"i{n}", sidecar=chance.random() < 0.4) for n in range(chance.choice((0, 0, 0, 1, 2)))]
        if not any("resources" in item for item in containers + inits):
            containers.append(asking("last", resources, memory=1500, cores=10))
        policy = chance.choice(("", BINPACK, TOPOLOGY_AWARE))
        return {"containers": containers, "inits": inits, "annotations": {POLICY: policy} if policy else {}}

    # The kubelet.

    async def _admit_all(self, group: asyncio.TaskGroup) -> None:
        while True:
            await self._until(lambda: self._queue)
            place = 0
            if self._chance.random() < 0.06 and len(self._queue) > 1:
                place = self._chance.randrange(len(self._queue))
                for other in self._queue:
                    other.orderly = False
            life = self._busy = self._queue.pop(place)
            if life.mark.is_set():
                self._settle(life, "deleted before admission")
            else:
                await self._admit(life, group)
            self._busy = None
            await self._tell()

    async def _admit(self, life: Life, group: asyncio.TaskGroup) -> None:
        life.orderly = life.orderly and self._has_room(life)
        try:
            await self._stage.kubelet.admit(life.pod)
        except AdmissionError as error:
            self._refused(life, error)
            self._set_phase(life, "Failed")
            group.create_task(self._delete_later(life, 0.05))
            return
        group.create_task(self._start(life, group))

    def _has_room(self, life: Life) -> bool:
        """Whether the kubelet has ids enough of each decided device, also if it spends one on each container.

        An init container's id passes on to a container that was decided another device, so it may need more ids of a
        device than shares were decided.
        """
        resource = self._stage.family.resources.count
        free = physical_counts(self._stage.kubelet.ledger.free(resource, 0))
        wanted = [g.uuid for one in life.pod.containers for g in grants_of(self._stage, life.pod, one)]
        return all(free[uuid] >= len(wanted) for uuid in wanted)

    async def _start(self, life: Life, group: asyncio.TaskGroup) -> None:
        for container in life.pod.containers:
            await asyncio.sleep(self._chance.uniform(0, 0.004))
            try:
                response = await self._start_one(life, container.name)
            except StartError as error:
                self._refused(life, error)
                group.create_task(self._delete_later(life, 0))
                return
            if life.kind != "stranger" and (found := difference(self._stage, life.pod, container, response.edits)):
                self.violations.append(f"{life.kind} {life.pod.key}/{container.name}: {found}")
            if life.kind == "stranger" and response.edits.env:
                self.violations.append(f"stranger {life.pod.key} received {response.edits.env}")
        self._set_phase(life, "Running")
        self._settle(life, SERVED)
        life.resident = self._crowded or self._made >= self._count - MAX_ALIVE
        if not life.resident:
            group.create_task(self._delete_later(life, 0.3))
        await self._tell()

    async def _start_one(self, life: Life, container: str):
        """A start that is refused is tried once more, as the kubelet does; more often when it asks for patience."""
        for _attempt in range(20):
            try:
                return await self._stage.kubelet.start_container(life.pod.uid, container)
            except StartError as error:
                if "UNAVAILABLE" not in str(error):
                    break
                await asyncio.sleep(0.01)
        return await self._stage.kubelet.start_container(life.pod.uid, container)

    def _refused(self, life: Life, error: HamiError) -> None:
        words = str(error)
        self.refusals.append(words)
        self._settle(
            life, f"refused {'at start' if isinstance(error, StartError) else 'at admission'}: {_short(words)}"
        )
        if life.orderly:
            self._disappointed.append((life, words))

    # The end of pods.

    async def _die_early(self, life: Life) -> None:
        await asyncio.sleep(self._chance.uniform(0, 0.03))
        self._delete(life, force=self._chance.random() < 0.3)

    async def _delete_later(self, life: Life, most: float) -> None:
        await asyncio.sleep(self._chance.uniform(0, most))
        self._delete(life, force=self._chance.random() < 0.3)

    def _delete(self, life: Life, *, force: bool) -> None:
        """Mark the pod, or with ``force`` remove it from the API server while the kubelet still has it."""
        life.orderly = life.orderly and life.settled.is_set()
        if self._alive.get(life.pod.uid) is life and not life.mark.is_set():
            if force:
                self._remove(life)
            else:
                self._stage.api.delete_pod(life.pod.namespace, life.pod.name, grace=30)
            life.mark.set()

    async def _tidy(self, life: Life) -> None:
        """The kubelet's end of a deletion: it lets go of the pod once it is no longer at work on it."""
        await life.mark.wait()
        await life.settled.wait()
        if life.stays:
            return
        self._stage.kubelet.remove(life.pod.uid)
        self._remove(life)
        del self._alive[life.pod.uid]
        await self._tell()

    def _remove(self, life: Life) -> None:
        key = ("pods", life.pod.namespace, life.pod.name)
        try:
            self._stage.api.store.delete(key, uid=life.pod.uid)
        except StatusError:
            return  # it is gone, or another one has its name

    def _set_phase(self, life: Life, phase: str) -> None:
        patch = {"metadata": {"uid": life.pod.uid}, "status": {"phase": phase}}
        try:
            self._stage.api.store.patch(("pods", life.pod.namespace, life.pod.name), patch, part="status")
        except StatusError:
            return

    def _settle(self, life: Life, outcome: str) -> None:
        life.outcome = outcome
        self.outcomes[outcome] += 1
        life.settled.set()

    async def _until(self, condition) -> None:
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(condition)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def _short(words: str) -> str:
    """The kind of a refusal."""
    for text, name in {
        "different shares wait": "ambiguous",
        "waits for devices": "nobody known waits",
        "were handed out before": "ids that were handed out before",
        "does not name the devices": "other devices than decided",
        "the kubelet offers": "other devices or another count than decided",
        "decided nothing": "not scheduled by HAMi",
        "would start with what was answered for": "answered for another",
        "is not starting": "held by one that is not starting",
        "requested number of devices": "the kubelet has too few",
        "does not say yet": "holder not known",
    }.items():
        if text in words:
            return name
    return words
