"""What a container may hold: no more than it asked for, and no more than its devices have left.

What was handed out here counts, whatever pods' annotations say, so that no device is given away twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hami_plugin.allocation.identity import Found, HeldShare, Identity
from hami_plugin.allocation.ledger import Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.settlement import Refusals, Settlement
from hami_plugin.errors import HamiError, RefusalReason, WireError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.device import Device, Snapshot, physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.model.ports import Checkpoint, Observer, Offer
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import Watched
from hami_plugin.process.log import logger
from hami_plugin.protocol.keys import BIND_PHASE, PHASE_FAILED
from hami_plugin.protocol.nodes import DeviceInfo, MigProfile, Refuses
from hami_plugin.protocol.pods import DecidedShare, Question, decided_shares, requesting_containers
from hami_plugin.scheduler.engine.devices import effective_grants, is_part, sum_grants
from hami_plugin.sdk import NOWHERE, Family, Placement, Reservation, Units, unoccupied
from hami_plugin.sdk.family import anywhere

if TYPE_CHECKING:  # loaded where cards are cut
    from hami_plugin.partitions.manager import Partitions

MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """All that a device has, in the units of its grants; 0 for what its family does not limit."""

    memory: int = 0
    cores: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGrants:
    """What a pod has of one device: ``early`` one after another while it is ``starting``, then ``late`` together."""

    name: str
    early: tuple[Grant, ...] = ()
    late: tuple[Grant, ...] = ()
    starting: bool = False

    @property
    def taken(self) -> Grant | None:
        """What it counts for; None where it has nothing any more."""
        early, late = ([(grant,) for grant in grants] for grants in (self.early, self.late))
        one = effective_grants([*early, *late], len(early)) if self.starting else sum_grants(late)
        return one[0] if one else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Of ``what``, its memory or its cores, a device has ``total``. Others have ``held`` of it, by their names, most
    first, and a pod is to have ``asked``.
    """

    what: str
    total: int
    asked: int
    held: tuple[tuple[str, int], ...]

    def message(self, uuid: str, unit: str, name: str) -> str:
        """``name`` is the pod that is to have it."""
        parts = [f"{holder} holds {amount}" for holder, amount in self.held[:MAX_NAMED]]
        if rest := self.held[MAX_NAMED:]:
            parts.append(f"{len(rest)} more hold {sum(amount for _holder, amount in rest)}")
        holders = f", of which {', '.join(parts)}" if parts else ""
        return f"{uuid} has {self.total} {unit}{holders}; pod {name} is to have {self.asked}"


Read = Callable[[PodView, Mapping[str, Grant], Question, bool], PodGrants]
"""A pod with what its containers have of one device, by their names; and whether it is the one that asks."""


def least(pod: PodView, shares: Mapping[str, Grant], question: Question, asks: bool) -> PodGrants:
    """As little as a scheduler of HAMi may count."""
    containers = requesting_containers(pod, question.resource, *question.also)
    inits = sum(container.init for container in pod.containers)
    early, late = containers[:inits], containers[inits:]
    return PodGrants(
        name=pod.key,
        early=tuple(shares[one.name] for one in early if one.name in shares),
        late=tuple(shares[one.name] for one in late if one.name in shares),
        starting=asks,
    )


def exact(pod: PodView, shares: Mapping[str, Grant], _question: Question, _asks: bool) -> PodGrants:
    """As it is: init containers are over when the pod runs, and sidecars run beside those after them."""
    early: list[Grant] = []
    late: list[Grant] = []
    for container in pod.containers:
        if (grant := shares.get(container.name)) is None:
            continue
        if container.alone:
            early.extend(sum_grants([(*late, grant)]))
        else:
            late.append(grant)
    return PodGrants(name=pod.key, early=tuple(early), late=tuple(late), starting=pod.phase != "Running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whose account of pods counts: ``read`` says what a pod has, ``masks`` whether cores that are bits count too."""

    read: Read
    masks: bool


AS_HAMI = Account(read=least, masks=False)
"""As little as any of HAMi's schedulers. They may decide devices whose cores are taken, where these are bits."""
EXACTLY = Account(read=exact, masks=True)


def overcommitted(total: Total, own: PodGrants, others: Sequence[PodGrants]) -> Excess | None:
    """What the device would give away beyond what it has; None where all of it fits."""
    asked, held = own.taken, [(other.name, taken) for other in others if (taken := other.taken)]
    for what, most in (("memory", total.memory), ("cores", total.cores)):
        wanted = getattr(asked, what, 0)
        parts = sorted(((name, getattr(taken, what)) for name, taken in held), key=lambda part: (-part[1], part[0]))
        if 0 < most < wanted + sum(amount for _name, amount in parts):
            return Excess(what=what, total=most, asked=wanted, held=tuple(part for part in parts if part[1]))
    return None


def beyond_request(
    claim: DecidedShare, question: Question, advertised: Mapping[str, int], every_core: Mapping[str, int] | None = None
) -> str:
    """What a claim has beyond its container's request, as a message; empty if nothing.

    ``advertised`` gives each device's memory in MiB, ``every_core`` what a grant of all its cores is, where that is not
    100. The pod's author can write annotations; what the container asks for was seen by admission and quota. A grant of
    0 is one without limit.
    """
    container = claim.container
    memory = container.amount(question.memory) * question.memory_factor if question.memory else 0
    percent = container.amount(question.memory_percent) if question.memory_percent else 0
    cores = container.amount(question.cores) if question.cores else 0
    for grant in claim.grants:
        total = advertised.get(grant.uuid, 0)
        ceiling = memory or (total * percent + 99) // 100 or total
        if ceiling and (grant.memory > ceiling or (not grant.memory and (memory or percent))):
            what = f"{grant.memory} MiB" if grant.memory else "all memory"
            return f"{what} of {grant.uuid} where container {container.name} may have {ceiling} MiB"
        most = (every_core or {}).get(grant.uuid, 100)
        allowed = (most * cores + 99) // 100 or most
        if grant.cores > allowed or (cores and not grant.cores):
            unit = " %" if most == 100 else ""
            what = f"{grant.cores}{unit} cores" if grant.cores else "all cores"
            return f"{what} of {grant.uuid} where container {container.name} may have {allowed}{unit}"
    return ""


def smaller(profile: str, offered: Sequence[MigProfile], needed: int, taken: Sequence[Placement]) -> str:
    """The name of a profile that would do for ``needed`` MiB, is smaller, and has a place; empty where none has."""
    own = next((one.memory for one in offered if one.name == profile), 0)
    for one in sorted(offered, key=lambda one: one.memory):
        if needed <= one.memory < own and unoccupied(one.placements, taken):
            return one.name
    return ""


def wants_none(pod: PodView, container: str, percent: str) -> bool:
    """Whether a container asks for 0 percent of a device's memory, by the resource ``percent``.

    HAMi's schedulers may grant such a container no memory, which is no limit at all.
    """
    own = pod.container(container)
    asked = {**own.requests, **own.limits} if own else {}
    return own is not None and percent in asked and not own.amount(percent)


ALL_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One device's. Cores are a number here, also where grants have them as a mask."""

    family: Family
    device: Device
    total: Total

    @classmethod
    def of(cls, family: Family, device: Device, *, masks: bool) -> Measure | None:
        """By what the device registers. None where nobody can share it, which the kubelet's ids see to."""
        if family.node.replicas(device) <= 1 and not family.resources.units:
            return None
        info = family.node.register(device, False)
        return cls(family=family, device=device, total=registered_total(family, info, masks=masks))

    def fits(self, grants: Iterable[Sequence[Grant]]) -> bool:
        """Whether the device has enough for all of these containers at once, each with no limit taken for all of it."""
        uuid, bits, total, memory, cores = self.device.uuid, self.family.resources.cores_are_bits, self.total, 0, 0
        for container in grants:
            for grant in container:
                if grant.uuid == uuid:
                    memory += grant.memory or total.memory
                    cores += grant.cores.bit_count() if bits else grant.cores
        return not (0 < total.memory < memory or 0 < total.cores < cores)

    def together(self, grants: Sequence[Grant], *, limitless: bool = False) -> Grant:
        """All that a container has of the device. Where memory counts, none means all of it, unless ``limitless``."""
        own = [grant for grant in grants if grant.uuid == self.device.uuid]
        every = self.total.memory if self.family.resources.memory and not limitless else 0
        return Grant(
            uuid=self.device.uuid,
            device_type=self.family.resources.device_type,
            memory=sum(grant.memory or every for grant in own),
            cores=sum(self.family.resources.core_count(grant.cores) for grant in own),
        )

    def unit(self, what: str) -> str:
        """What ``memory`` and ``cores`` are counted in, for messages."""
        if what == "memory":
            return "MiB of memory" if self.family.resources.memory else "% of memory"
        return "% of cores" if self.family.node.every_core(self.device) == ALL_PERCENT else "cores"


def registered_total(family: Family, info: DeviceInfo, *, masks: bool) -> Total:
    """What of a device is limited. ``masks``: also cores that are bits."""
    limited = family.resources.cores and (masks or not family.resources.cores_are_bits)
    return Total(memory=info.devmem, cores=family.resources.core_count(info.devcore) if limited else 0)


TooMuch = tuple[Measure, Excess]
"""What a device has, and what of it is given away twice."""


class DeviceFacts:
    """A device, and what its family says of it: asked at the first need, and kept while the snapshot is the same."""

    def __init__(self, device: Device, family: Family, count: Callable[[Device], int], *, masks: bool) -> None:
        self.device = device
        self._family = family
        self._count = count
        self._masks = masks

    @cached_property
    def ids(self) -> int:
        """How many ids the kubelet may hand out."""
        return self._count(self.device)

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Each of its shares, as the kubelet is to know it."""
        numa = self.device.numa if self._family.node.numa_hints else None
        healthy = self.device.health.offered
        return tuple(Offer(id=one, healthy=healthy, numa=numa) for one in self.device.ids(self.ids))

    @cached_property
    def info(self) -> DeviceInfo:
        """What the device registers."""
        return self._family.node.register(self.device, False)

    @cached_property
    def every_core(self) -> int:
        """What a grant of all its cores is."""
        return self._family.node.every_core(self.device)

    @cached_property
    def measure(self) -> Measure | None:
        """What can be given away; None where nobody can share the device."""
        return Measure.of(self._family, self.device, masks=self._masks)


MAX_OFFERED = 200_000
"""Ids of one resource. The kubelet reads no list of so many, and a list of all must not fill the memory."""


class DeviceTable:
    """The devices of the present snapshot, counted in shares or in their ``units``. ``masks`` is as in ``Account``."""

    def __init__(
        self, family: Family, units: Units | None, snapshot: Watched[Snapshot], *, masks: bool = False
    ) -> None:
        self._family = family
        self._count = units.of_device if units else family.node.replicas
        self._snapshot = snapshot
        self._masks = masks
        self._from: Snapshot | None = None
        self._facts: Mapping[str, DeviceFacts] = {}

    def now(self) -> Mapping[str, DeviceFacts]:
        """By UUID. The same object as long as the snapshot is the same; what is known of a device stays with it."""
        snapshot, known = self._snapshot.value, self._facts
        if snapshot is not self._from:
            self._facts = {
                one.uuid: known[one.uuid]
                if one.uuid in known and known[one.uuid].device == one
                else DeviceFacts(one, self._family, self._count, masks=self._masks)
                for one in reversed(snapshot.devices)
            }
            self._from = snapshot
        return self._facts

    def offers(self) -> tuple[Offer, ...]:
        """Every share of every device, sorted by device index; all shares of a device share its health.

        ``HamiError`` when they are more than any kubelet takes.
        """
        facts = self.now()
        devices = [facts[device.uuid] for device in self._snapshot.value.devices]
        total = sum(device.ids for device in devices)
        if total > MAX_OFFERED:
            raise HamiError(
                f"{len(devices)} devices of {self._family.resources.device_type} with {total} shares "
                "are more than the kubelet takes",
                hint=f"at most {MAX_OFFERED} are rendered; share each device among fewer containers",
            )
        return tuple(offer for device in devices for offer in device.offers)

    def hinted(self, ids: Collection[str]) -> frozenset[int]:
        """The NUMA nodes that the kubelet was given with these ids; none where it is given none."""
        devices = self.now() if self._family.node.numa_hints else {}
        held = {devices[uuid].device.numa for uuid in map(physical_id, ids) if uuid in devices}
        return frozenset(node for node in held if node is not None)

    def free_ids(self) -> Mapping[str, int]:
        """How many ids of each healthy device the kubelet may hand out."""
        return {uuid: facts.ids for uuid, facts in self.now().items() if facts.device.health.offered}


class OfferedDevices(DeviceTable):
    """The same, as the kubelet is to know them: ``rendered`` anew for each snapshot, while ``follow`` runs.

    ``met`` is set once there was a snapshot with devices.
    """

    def __init__(
        self, family: Family, units: Units | None, snapshot: Watched[Snapshot], *, masks: bool = False
    ) -> None:
        super().__init__(family, units, snapshot, masks=masks)
        self.rendered: Watched[tuple[Offer, ...]] = Watched(self.offers())
        self.met = asyncio.Event()

    async def follow(self) -> None:
        """Until the snapshot is closed."""
        async for snapshot in self._snapshot.follow():
            self.rendered.set(self.offers())
            if snapshot.devices:
                self.met.set()
        self.rendered.close()
        self.met.set()


log = logger(__name__)

Shares = Mapping[str, Grant]
"""By container."""

HINT = "no scheduler decides this beside what is held: find out who wrote the pod's annotations, or end a holder"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRules:
    """What the operator decided. ``wait`` is in seconds; ``counted`` is what other pods count for, None for nothing."""

    node: str
    wait: float = 2.0
    serve_unannotated: bool = False
    counted: Account | None = AS_HAMI


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What all resources of a node allocate from, and report to.

    ``outdated`` says why the known pods may be old, and is empty while they are not. ``refresh`` has them read again,
    and answers whether it is its turn. ``current``: the API server answers, and the known pods are its. ``listed`` are
    namespace and name of the pods that the kubelet has devices for; ``HamiError`` when it does not say.
    """

    rules: AllocationRules
    pods: PodTable
    ledger: Ledger
    settlement: Settlement
    checkpoint: Checkpoint
    events: EventRecorder
    host: HostFiles
    observer: Observer
    outdated: Callable[[], str] = lambda: ""
    refresh: Callable[[], bool] = lambda: False
    current: Callable[[], bool] = lambda: False
    listed: Callable[[], Coroutine[Any, Any, AbstractSet[tuple[str, str]]]] | None = None


class Capacity:
    """What a container of one family may hold: no more than it asked for, and no more than its devices have left.

    Nothing is written here. ``RefusedError`` with the reason where a container can hold nothing.
    """

    def __init__(
        self, family: Family, question: Question, node: NodeState, partitions: Partitions | None = None
    ) -> None:
        self._family = family
        self._partitions = partitions
        self._question = question
        self._node = node
        self._refusals = Refusals(node.settlement, node.events)

    def refuse(self, found: TooMuch, claim: DecidedShare, *, again: bool) -> None:
        """``RefusedError``, or a warning where the API server does not say who has ended: once, not ``again``."""
        measure, excess = found
        message = excess.message(measure.device.uuid, measure.unit(excess.what), claim.pod.key)
        if why := self._node.outdated():
            if again:
                return
            log.warning("handed out beyond what is left", why=message, unknown=f"who has ended: {why}")
            self._node.observer.unchecked(self._question.resource)
            return
        raise self._refusals.failed(RefusalReason.OVERCOMMITTED, message, claim.pod, hint=HINT)

    def excess(self, ids: Sequence[str], identity: Identity, devices: Mapping[str, DeviceFacts]) -> TooMuch | None:
        """What a device would give away beyond what it has; None where all that was decided fits."""
        account = self._node.rules.counted
        if account is None or not isinstance(identity, Found) or self._parts(identity.claim):
            return None  # of a card that is cut, the driver gives out nothing twice
        return self._beyond(ids, identity.claim, devices, account)

    def beyond(self, held: HeldShare, pod: PodView, grants: Sequence[Grant], devices: Mapping[str, DeviceFacts]) -> str:
        """What a device would give away beyond what it has, if a container that runs had these ``grants``; empty where
        all of it fits, beside what is decided for pods that start.
        """
        if (container := pod.container(held.container)) is None:
            return f"pod {pod.key} has no container {held.container} any more"
        claim = DecidedShare(pod=pod, container=container, grants=tuple(grants), piece=None)
        account = self._node.rules.counted or EXACTLY
        found = self._beyond(held.ids, claim, devices, account, waiting=list(self._decided_elsewhere()), asks=False)
        if found is None:
            return ""
        measure, excess = found
        return excess.message(measure.device.uuid, measure.unit(excess.what), pod.key)

    def _decided_elsewhere(self) -> Iterator[HeldShare]:
        """What schedulers have decided for pods of this node that the kubelet has not asked for yet."""
        question = self._question
        for pod in self._node.pods.pods:
            if pod.phase != "Pending" or pod.deleted or question.decision not in pod.annotations:
                continue
            if pod.annotations.get(BIND_PHASE) == PHASE_FAILED or pod.node != self._node.rules.node:
                continue
            with suppress(WireError):
                for claim in decided_shares(pod, question):
                    if (pod.uid, claim.container.name, question.resource) not in self._node.ledger.held:
                        yield self._held((), pod, claim.container, claim.grants, {})

    def _beyond(
        self,
        ids: Iterable[str],
        claim: DecidedShare,
        devices: Mapping[str, DeviceFacts],
        account: Account,
        *,
        waiting: Sequence[HeldShare] = (),
        asks: bool = True,
    ) -> TooMuch | None:
        own_key, names = (claim.pod.uid, claim.container.name), (self._question.resource, *self._question.also)
        for uuid in {grant.uuid: None for grant in claim.grants}:
            measure = devices[uuid].measure if uuid in devices else None
            if measure is None:
                continue
            # Each container once, as far as schedulers can know of them.
            here = (one for one in waiting if any(grant.uuid == uuid for grant in one.grants))
            there = (one for one in self._node.ledger.held.on(uuid) if one.resource in names)
            shares = {(one.uid, one.container): one for one in (*here, *there)}
            holders = [one for whose, one in shares.items() if whose != own_key and not one.undecided]
            if measure.fits([claim.grants, *(one.grants for one in holders)]):
                continue
            own, others = self._tenants(ids, claim, measure, holders)
            asked = account.read(claim.pod, own, self._question, asks)
            beside = [account.read(pod, has, self._question, False) for pod, has in others]
            if found := overcommitted(measure.total, asked, beside):
                return measure, found
        return None

    def _tenants(
        self, ids: Iterable[str], claim: DecidedShare, measure: Measure, holders: Sequence[HeldShare]
    ) -> tuple[Shares, list[tuple[PodView, Shares]]]:
        """What the pod would have of the device, and what each of the others has that live."""
        shares: defaultdict[str, dict[str, Grant]] = defaultdict(dict)
        for one in holders:
            pod = self._node.pods.get(one.uid)
            shares[one.uid][one.container] = self._share(measure, pod, one.container, one.grants)
        own = shares.pop(claim.pod.uid, {})
        own[claim.container.name] = self._share(measure, claim.pod, claim.container.name, claim.grants)
        # The kubelet gives an id anew when it has let go of the pod that had it.
        gone = {one.uid for one in self._node.ledger.held.of_ids(self._question.resource, ids)}
        others = [(pod, has) for uid, has in shares.items() if uid not in gone and (pod := self._node.pods.get(uid))]
        return own, [(pod, has) for pod, has in others if not pod.terminal]

    def _share(self, measure: Measure, pod: PodView | None, container: str, grants: Sequence[Grant]) -> Grant:
        percent = self._question.memory_percent
        return measure.together(grants, limitless=pod is not None and wants_none(pod, container, percent))

    def decided(self, ids: Sequence[str], claim: DecidedShare, devices: Mapping[str, DeviceFacts]) -> HeldShare:
        """As the decision has it, if that is not more than the container asked for."""
        granted = [grant.uuid for grant in claim.grants if grant.uuid in devices]
        registered = {uuid: devices[uuid].info for uuid in granted}
        advertised = {uuid: info.devmem for uuid, info in registered.items()}
        every_core = {uuid: devices[uuid].every_core for uuid in granted}
        if self._partitions and (parts := self._parts(claim)):
            too_much = self._beyond_partitions(claim, parts, devices)
        else:
            too_much = beyond_request(claim, self._question, advertised, every_core)
        if too_much:
            raise self._refusals.failed(RefusalReason.EXCEEDS_REQUEST, f"the decision grants {too_much}", claim.pod)
        if self._family.node.whole_only:
            self._require_whole(claim, registered)
        return self._held(ids, claim.pod, claim.container, claim.grants, devices)

    def _parts(self, claim: DecidedShare) -> Sequence[Reservation]:
        """Those that were decided with their places. What others have follows from the grants."""
        reserved = self._partitions.reserved(claim.pod, claim.container.name) if self._partitions else ()
        return [one for one in reserved if one.placement != NOWHERE]

    def _beyond_partitions(
        self, claim: DecidedShare, parts: Sequence[Reservation], devices: Mapping[str, DeviceFacts]
    ) -> str:
        """As ``beyond_request``, of partitions: what is larger than needed, though a smaller one has a place."""
        assert self._partitions
        side, question, container = self._family.node.partitions, self._question, claim.container
        for part in parts:
            if side is None or part.card not in devices:
                continue
            info = devices[part.card].info
            offered = side.registered(info, self._partitions.profiles.get(part.card, ())).mig_profiles
            memory = container.amount(question.memory) * question.memory_factor if question.memory else 0
            percent = container.amount(question.memory_percent) if question.memory_percent else 0
            needed = memory or info.devmem * percent // 100 or info.devmem
            taken = self._partitions.taken(part.card, claim.pod)
            enough = smaller(part.profile, offered, needed, taken)
            if enough:
                return f"{part.profile} of {part.card} where {enough} is enough for container {container.name}"
        return ""

    def whole(
        self, ids: Sequence[str], pod: PodView, container: ContainerView, devices: Mapping[str, DeviceFacts]
    ) -> HeldShare:
        """For a pod without a decision: the kubelet's devices as they are, if nobody else has a share of them."""
        if not self._node.rules.serve_unannotated:
            raise self._refusals.refused(
                RefusalReason.NOT_SCHEDULED,
                f"pod {pod.key} asks for {self._question.resource}, "
                f"but {pod.scheduler or 'its scheduler'} decided nothing",
                (pod,),
                hint="let HAMi's scheduler place it, or set unannotatedPods: serve",
            )
        uuids = list(dict.fromkeys(physical_id(replica) for replica in ids))
        problem = self._not_whole(uuids, len(ids), pod)
        if problem:
            message = f"pod {pod.key} can only have whole devices, but got {problem}"
            raise self._refusals.refused(RefusalReason.DEVICE_SHARED, message, (pod,))
        held = self._held(ids, pod, container, [self._whole(devices[uuid]) for uuid in uuids], devices)
        return replace(held, undecided=True)

    def _require_whole(self, claim: DecidedShare, registered: Mapping[str, DeviceInfo]) -> None:
        """``RefusedError`` for a part of a device where this node hands out whole ones only, as it has announced."""
        whole_only, policy = self._family.node.whole_only, self._family.rules.policy
        if policy and policy.limited(claim.pod):
            return
        for grant in claim.grants:
            info = registered.get(grant.uuid)
            if info and is_part(info, grant.memory, grant.cores):
                message = (
                    f'container "{claim.container.name}" of pod {claim.pod.key} is granted a part of {grant.uuid} '
                    f"({grant.memory} of {info.devmem} of its memory, {grant.cores} of {info.devcore} of its cores); "
                    f"{Refuses(what='parts', why=whole_only)}"
                )
                hint = "let a scheduler place it that reads what the node says, or ask for whole devices"
                raise self._refusals.failed(RefusalReason.NOT_PREPARED, message, claim.pod, hint=hint)

    def _whole(self, facts: DeviceFacts) -> Grant:
        return Grant(
            uuid=facts.device.uuid,
            device_type=self._family.resources.device_type,
            memory=facts.info.devmem,
            cores=facts.every_core,
        )

    def _not_whole(self, uuids: Sequence[str], shares: int, pod: PodView) -> str:
        """What keeps the pod from having these devices alone; empty where nothing does."""
        taken = {
            grant.uuid: held for held in self._node.ledger.held.values() if held.uid != pod.uid for grant in held.grants
        }
        for uuid in uuids:
            if uuid in taken:
                return f"{uuid} is shared by {taken[uuid].namespace}/{taken[uuid].pod}"
        return f"{shares} shares of {len(uuids)} devices" if len(uuids) < shares else ""

    def _held(
        self,
        ids: Iterable[str],
        pod: PodView,
        container: ContainerView,
        grants: Sequence[Grant],
        devices: Mapping[str, DeviceFacts],
    ) -> HeldShare:
        if self._family.node.place is not anywhere:
            grants = [self._placed(grant, pod, container, devices.get(grant.uuid)) for grant in grants]
        return HeldShare(
            uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            container=container.name,
            resource=self._question.resource,
            ids=frozenset(ids),
            grants=tuple(grants),
            init=container.init and not container.restartable,
        )

    def _placed(self, grant: Grant, pod: PodView, container: ContainerView, facts: DeviceFacts | None) -> Grant:
        """Beside what all others hold of the same device. The journal keeps it, so that it is the same ever after.

        The kubelet asks once for each resource: what the container has already by another one is its place.
        """
        if facts is None:
            return grant
        others: list[Grant] = []
        for held in self._node.ledger.held.on(grant.uuid):
            same = [one for one in held.grants if one.uuid == grant.uuid]
            if same and (held.uid, held.container) == (pod.uid, container.name):
                return replace(grant, notes=same[0].notes)
            if not self._over(held):
                others += same
        return self._family.node.place(grant, facts.device, others)

    def _over(self, held: HeldShare) -> bool:
        """Whether the container has ended: its pod has, or runs, which it does once its init containers are over."""
        pod = self._node.pods.get(held.uid)
        return pod is not None and (pod.terminal or (held.init and pod.phase == "Running"))
