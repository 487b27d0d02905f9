"""Claims made ready for pods, and released: what a driver answers the kubelet.

A claim is asked about again and again: after any failure of its pod, after restarts and after a reboot. Once it is
ready, the answer and the files are the same each time, and the API server is not asked. A claim that is released is
forgotten, so that a call that came late is decided by what the API server says then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, Protocol
from weakref import WeakValueDictionary

from cdi.documents import to_json
from cdi.errors import CdiError
from cdi.names import Kind
from cdi.spec import ContainerEdits, Spec, SpecDevice
from hami_plugin.allocation.capacity import NodeState
from hami_plugin.dra.claims import (
    Claim,
    ClaimError,
    ClaimReason,
    Part,
    PreparedShare,
    Result,
    Use,
    environment,
    excess,
    parts,
    read_claim,
    uses_of_claim,
)
from hami_plugin.dra.cuts import CardProfiles, Cut, card_profiles, cuts, overlap
from hami_plugin.dra.prepared import ClaimFiles, Prepared, PreparedClaims, PreparedDevice, Receiver, reservations
from hami_plugin.dra.sets import members_of
from hami_plugin.dra.slices import Offered, offered_devices
from hami_plugin.errors import ClusterError, HamiError
from hami_plugin.host.paths import HostFiles, remove_files
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import Json
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.partitions.life import ABSENT
from hami_plugin.partitions.manager import Partitions
from hami_plugin.partitions.reconciliation import PodReservation
from hami_plugin.process.concurrency import StuckError, Watched, WorkThread, wait_any_changed
from hami_plugin.process.log import logger
from hami_plugin.sdk import Family, Injection, Leftovers, NoRoomError, Partition
from hami_plugin.vendor_boundary.guard import Guard

log = logger(__name__)

ResultKey = tuple[str, str, str]
"""What the scheduler gave, by request, device and share."""
CLASS = "claim"
"""Of the CDI names of what claims add to containers: ``<driver>/claim=<claim's UID>-<request>``."""
DISK_S = 5.0
AGAIN_S = 0.5
"""Until it is tried again to cut a partition where one is still in use."""
MAX_REFUSALS = 64
"""Of claims that are remembered to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """How the kubelet names a claim."""

    uid: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparingTiming:
    """Seconds. The kubelet waits 45 s for an answer, and 10 to 15 s after a refusal: what will be soon is waited for.

    ``release`` is how long another claim may take to give a device back, ``pod`` how long the watch may take to show
    the claim's pods, ``whole`` is all that one claim may take. ``sweep`` is between looks for claims that nobody has,
    ``check`` between looks for specs that were taken away.
    """

    release: float = 8.0
    pod: float = 3.0
    whole: float = 30.0
    sweep: float = 600.0
    check: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the kubelet was last told about a claim that is refused."""

    ref: ClaimRef
    operation: str
    why: str
    reason: ClaimReason
    at: float = field(default_factory=time.monotonic)


class ClaimCluster(Protocol):
    """The API server's ResourceClaims, as far as a driver reads them."""

    async def get_claim(self, namespace: str, name: str) -> Json:
        """A claim as it is. ``ClusterError`` where it cannot be read."""


class ClaimPreparer:
    """One driver's. ``taken`` says which pod has a device by the device plugin, by UUID. ``cut`` makes partitions, by
    the device type of their cards.

    One that is not ``accepting`` releases claims, and makes none ready. ``boot`` is the host's present boot.
    """

    def __init__(
        self,
        driver: str,
        sources: Sequence[FamilySource],
        node: NodeState,
        claims: PreparedClaims,
        files: ClaimFiles,
        *,
        guard: Guard,
        cluster: ClaimCluster,
        taken: Callable[[], Mapping[str, str]],
        accepting: bool = True,
        boot: str = "",
        cut: Mapping[str, Partitions] | None = None,
        timing: PreparingTiming | None = None,
    ) -> None:
        self.driver = driver
        self.problem = ""
        self._sources = sources
        self._node = node
        self._claims = claims
        self._files = files
        self._guard = guard
        self._cluster = cluster
        self._taken = taken
        self._accepting = accepting
        self._boot = boot
        self._cut = {} if cut is None else cut
        self._timing = timing or PreparingTiming()
        self._thread = WorkThread(f"claims of {driver}")
        self._refusals: dict[str, Refusal] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def prepare(self, refs: Sequence[ClaimRef]) -> dict[str, Prepared | ClaimError]:
        """Each claim made ready, or why not, by UID."""
        answers = await asyncio.gather(*(self._answered("prepare", ref, self._prepare) for ref in refs))
        return {ref.uid: answer for ref, answer in zip(refs, answers, strict=True) if answer is not None}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> dict[str, ClaimError]:
        """Each claim released; why not, by UID, of those that are not. One that is unknown has been."""
        answers = await asyncio.gather(*(self._answered("unprepare", ref, self._unprepare) for ref in refs))
        return {ref.uid: one for ref, one in zip(refs, answers, strict=True) if isinstance(one, ClaimError)}

    async def restore(self) -> None:
        """Lay out all that was answered, before the kubelet asks: a reboot has emptied the directory of specs.

        What a killed daemon had not answered is given up. The kubelet asks again, if its pod still lives; else nobody
        would ever give it back.
        """
        for one in self._claims.of(self.driver):
            if not one.done:
                log.warning("claim given up that was not answered", driver=self.driver, claim=one.claim)
                self._claims.drop(one.key)
            elif self._boot and one.boot and one.boot != self._boot and self._void(one):
                log.info("claim to be prepared anew: a boot has unmade its partitions", claim=one.claim)
                self._claims.drop(one.key)
        kept = self._claims.of(self.driver)
        await self._try(partial(self._files.clean, kept))
        for one in kept:
            await self._try(partial(self._files.lay_out, one))
            if self._boot and one.boot != self._boot:
                await self._booted(one)

    def _void(self, one: Prepared) -> bool:
        """Whether a boot leaves nothing of it: the kubelet asks again for whoever still lives, and all is made anew."""
        sides = {source.family.resources.device_type: source.family.node.partitions for source in self._sources}
        own = [sides.get(share.grant.device_type) for share in one.shares if share.profile]
        return any(side is None or not side.lasting for side in own)

    async def _booted(self, one: Prepared) -> None:
        """No container of the claim has run since the boot: what the former ones counted is nobody's any more.

        An entry of a version that noted no boot keeps it: its containers may be running.
        """
        if one.boot:
            families = {source.family.resources.count: source.family for source in self._sources}
            leftovers = [
                families[to.resource].node.leftovers(to.uid, to.container, self._node.host.paths)
                for to in one.receivers
                if to.resource in families
            ]
            await self._try(partial(self._clean, leftovers))
        self._claims.note(replace(one, boot=self._boot))

    async def run(self) -> None:
        """Keep the files where runtimes read them, and release what nobody has any more. Until it is cancelled."""
        swept = time.monotonic()
        while True:
            await asyncio.sleep(self._timing.check)
            try:
                await self._keep()
                self.problem = ""
            except (OSError, CdiError, StuckError) as error:
                self._complain(error)
            if time.monotonic() - swept >= self._timing.sweep:
                swept = time.monotonic()
                await self.sweep()

    async def _try(self, function: Callable[[], None]) -> None:
        """What fails is tried again by ``run``, and when the kubelet asks."""
        try:
            await self._on_disk(function)
        except (OSError, CdiError, StuckError) as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if str(error) != self.problem:
            log.warning("claims' files", driver=self.driver, problem=str(error))
        self.problem = str(error)

    async def sweep(self) -> None:
        """Release claims that are gone, or are no more allocated to any pod that lives here.

        The kubelet forgets claims with its state, and a call that came late may have made ready what nobody will ever
        give back.
        """
        for one in self._claims.of(self.driver):
            if not await self.owner(one):
                await self._release(one)

    async def forget(self, uid: str) -> str:
        """Release a claim that the kubelet has forgotten. Answers why not: somebody has it, or may have it."""
        one = self._claims.get(self.driver, uid)
        if one is None:
            return "nothing is prepared for it"
        if why := await self.owner(one):
            return why
        answer = await self._release(one)
        return str(answer) if isinstance(answer, ClaimError) else ""

    async def _release(self, one: Prepared) -> Prepared | ClaimError | None:
        log.warning("claim released that nobody has", driver=self.driver, claim=one.claim)
        ref = ClaimRef(uid=one.uid, namespace=one.namespace, name=one.name)
        return await self._answered("unprepare", ref, self._unprepare)

    async def owner(self, one: Prepared) -> str:
        """Who has a claim that is prepared, or why that cannot be said; empty when nobody has."""
        if not self._node.current():
            return "the pods of this node are not known now, as the API server does not answer"
        if alive := self._living(one.pods):
            return f"pod {alive} lives on this node"
        try:
            document = await self._cluster.get_claim(one.namespace, one.name)
        except ClusterError as error:
            return "" if error.not_found else f"the claim cannot be read: {error}"
        with suppress(ClaimError):
            claim = read_claim(document, uid=one.uid, driver=self.driver, pool=self._node.rules.node)
            if alive := self._living(claim.consumers):
                return f"it is allocated to pod {alive}, which lives on this node"
        return ""

    def _living(self, uids: Iterable[str]) -> str:
        pods = [pod for uid in uids if (pod := self._node.pods.get(uid)) and not pod.terminal]
        return pods[0].key if pods else ""

    def shown(self) -> Mapping[str, Any]:
        """What is prepared and what was refused, as JSON has it. Memory is in MiB, cores in percent."""
        now = time.monotonic()
        return {
            "claims": [_shown(one) for one in self._claims.of(self.driver)],
            "refused": [
                {
                    "driver": self.driver,
                    "uid": one.ref.uid,
                    "namespace": one.ref.namespace,
                    "name": one.ref.name,
                    "operation": one.operation,
                    "reason": one.reason,
                    "why": one.why,
                    "seconds": round(now - one.at, 1),
                }
                for one in self._refusals.values()
            ],
        }

    async def _keep(self) -> None:
        kept = [one for one in self._claims.of(self.driver) if one.done]
        for one in await self._on_disk(partial(self._files.missing, kept)):
            async with self._turn(one.uid):
                if self._claims.get(*one.key) == one:
                    await self._on_disk(partial(self._files.lay_out, one))
                    log.warning("spec of a claim was gone, and is written anew", driver=self.driver, claim=one.claim)

    async def _answered(
        self, operation: str, ref: ClaimRef, do: Callable[[ClaimRef], Coroutine[Any, Any, Prepared | None]]
    ) -> Prepared | ClaimError | None:
        """What ``do`` returns for one claim, which keeps no other waiting, or why it could not be done."""
        started = time.monotonic()
        answer = await self._decided(ref, do)
        outcome = str(answer.reason) if isinstance(answer, ClaimError) else "ok"
        self._node.observer.claim(self.driver, operation, outcome, time.monotonic() - started)
        self._refusals.pop(ref.uid, None)
        if isinstance(answer, ClaimError):
            log.warning("claim refused", driver=self.driver, claim=ref.key, why=str(answer))
            while len(self._refusals) >= MAX_REFUSALS:
                self._refusals.pop(next(iter(self._refusals)))
            self._refusals[ref.uid] = Refusal(ref=ref, operation=operation, why=str(answer), reason=answer.reason)
            if operation == "prepare":
                self._tell_pods(ref, str(answer))
        return answer

    def _tell_pods(self, ref: ClaimRef, why: str) -> None:
        """The kubelet's own Event names the first claim of a pod that fails, and no other."""
        pods = [
            pod for pod in self._node.pods.pods if pod.namespace == ref.namespace and ref.name in pod.claims.values()
        ]
        if pods:
            self._node.events.refused(pods, "ClaimRefused", why)

    async def _decided(
        self, ref: ClaimRef, do: Callable[[ClaimRef], Coroutine[Any, Any, Prepared | None]]
    ) -> Prepared | ClaimError | None:
        try:
            async with asyncio.timeout(self._timing.whole), self._turn(ref.uid):
                return await do(ref)
        except ClaimError as error:
            refused = error
        except StuckError as error:
            refused = ClaimError(f"ResourceClaim {ref.key}: the disk: {error}", reason=ClaimReason.DISK)
        except TimeoutError:
            why = f"no answer within {self._timing.whole:g} s"
            refused = ClaimError(f"ResourceClaim {ref.key}: {why}", reason=ClaimReason.TIMEOUT)
        except (OSError, CdiError) as error:
            refused = ClaimError(f"ResourceClaim {ref.key}: {error}", reason=ClaimReason.DISK)
        except HamiError as error:
            refused = ClaimError(f"ResourceClaim {ref.key}: {error}", reason=ClaimReason.FAILED)
        except Exception as error:
            log.exception("unexpected error about a claim", driver=self.driver, claim=ref.key)
            refused = ClaimError(f"ResourceClaim {ref.key}: {type(error).__name__}: {error}", reason=ClaimReason.FAILED)
        return refused

    async def _prepare(self, ref: ClaimRef) -> Prepared:
        known = self._claims.get(self.driver, ref.uid)
        if known and known.done:
            await self._discovered()
            self._require_there(known)
            await self._on_disk(partial(self._files.lay_out, known))
            return known
        if not self._accepting:
            raise ClaimError(
                f"ResourceClaim {ref.key}: this node serves {self.driver} by the device plugin",
                reason=ClaimReason.NOT_SERVED,
            )
        try:
            document = await self._cluster.get_claim(ref.namespace, ref.name)
        except ClusterError as error:
            raise ClaimError(
                f"ResourceClaim {ref.key} cannot be read: {error}", reason=ClaimReason.UNREADABLE
            ) from error
        claim = read_claim(document, uid=ref.uid, driver=self.driver, pool=self._node.rules.node)
        used = await self._used(claim)
        plan = await self._room(claim, used)
        try:
            one = await self._planned(plan, await self._made(plan))
            self._claims.note(one)
            await self._claims.written()
            await self._on_disk(partial(self._clean, plan.leftovers))
            await self._on_disk(partial(self._files.lay_out, one))
            one = replace(one, done=True)
            self._claims.note(one)
            await self._claims.written()
        except BaseException:
            await self._take_back(plan.entry)
            raise
        log.info("claim prepared", driver=self.driver, claim=claim.key, devices=[share.device for share in one.shares])
        return one

    def _require_there(self, known: Prepared) -> None:
        """``ClaimError`` where a partition of the claim is gone: what its containers were told names nothing."""
        for device_type, partitions in self._cut.items():
            for one in reservations(known, device_type):
                if gone := partitions.lost(one.owner.uid, one.owner.container):
                    raise ClaimError(
                        f"ResourceClaim {known.claim}: {gone}", hint="delete its pods", reason=ClaimReason.UNHEALTHY
                    )

    async def _made(self, plan: PreparePlan) -> Mapping[ResultKey, Partition]:
        """The claim's partitions, by what the scheduler gave: written down first, so that a killed daemon's successor
        knows whose they are.

        One that an ended pod still has open is waited for as a device is that another claim has.
        """
        found: dict[ResultKey, Partition] = {}
        for device_type, partitions in self._cut.items():
            wanted = reservations(plan.entry, device_type)
            if not wanted:
                continue
            self._claims.note(plan.entry)
            await self._claims.written()
            shares = [s for s in plan.entry.shares if s.profile and s.grant.device_type == device_type]
            made = await self._cut_out(plan.claim, partitions, wanted)
            found |= {_result_of(share): one for share, one in zip(shares, made, strict=True)}
        return found

    async def _cut_out(
        self, claim: Claim, partitions: Partitions, wanted: Sequence[PodReservation]
    ) -> Sequence[Partition]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timing.release
        while True:
            try:
                return await partitions.claimed(wanted)
            except NoRoomError as error:
                if loop.time() >= until:
                    raise ClaimError(
                        f"ResourceClaim {claim.key}: {error}",
                        hint="the kubelet asks again",
                        reason=ClaimReason.IN_USE,
                    ) from error
            await asyncio.sleep(min(AGAIN_S, self._timing.release))

    async def _discovered(self) -> None:
        """Until the first look at the devices: their own specs, which a reboot has taken away, are there with it.

        A driver that does not answer keeps no claim from being answered.
        """
        until = asyncio.get_running_loop().time() + self._timing.release
        while True:
            sources = [source.snapshot for source in self._sources]
            waiting = [one for one in sources if not one.value.ready and not one.value.devices]
            left = until - asyncio.get_running_loop().time()
            if not waiting or left <= 0:
                return
            await wait_any_changed([(one, one.version) for one in waiting], within=left)

    async def _unprepare(self, ref: ClaimRef) -> None:
        known = self._claims.get(self.driver, ref.uid)
        if known is None:
            return
        try:
            await self._remove(known)
        except (OSError, CdiError, StuckError) as error:
            # Of this the kubelet tells nobody: the pod stays, terminating, without a word.
            message = f"ResourceClaim {known.claim} is not released: {error}"
            pods = [pod for uid in known.pods if (pod := self._node.pods.get(uid))]
            self._node.events.refused(pods, "ClaimNotReleased", message)
            raise ClaimError(message, reason=ClaimReason.DISK) from error
        log.info("claim released", driver=self.driver, claim=known.claim)

    async def _remove(self, known: Prepared) -> None:
        """The spec, then the entry: killed in between, the next call finds the entry."""
        left = [one for one in self._claims.of(self.driver) if one.key != known.key]
        await self._on_disk(partial(self._files.remove, left))
        self._claims.drop(known.key)
        await self._claims.written()

    async def _take_back(self, one: Prepared) -> None:
        """Nothing was answered: whatever the disk says, the devices are free again."""
        left = [other for other in self._claims.of(self.driver) if other.key != one.key]
        self._claims.drop(one.key)
        with suppress(OSError, CdiError, StuckError):
            await asyncio.shield(asyncio.ensure_future(self._on_disk(partial(self._files.remove, left))))

    async def _used(self, claim: Claim) -> tuple[Use, ...]:
        """The containers that receive something. The kubelet may be ahead of our watch."""
        until = asyncio.get_running_loop().time() + self._timing.pod
        while True:
            changes, seen = self._node.pods.changes, self._node.pods.changes.version
            pods = [pod for uid in claim.consumers if (pod := self._node.pods.get(uid))]
            here = [pod for pod in pods if not pod.terminal and not pod.deleted]
            if here and all(claim.name in pod.claims.values() for pod in here):
                return uses_of_claim(claim, here)
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await changes.changed(seen, timeout=left)
        if pods and not here:
            raise ClaimError(
                f"ResourceClaim {claim.key} is for {pods[0].key}, which has ended or is being deleted",
                reason=ClaimReason.NO_POD,
            )
        raise ClaimError(
            f"ResourceClaim {claim.key}: no pod of this node is known that it is reserved for",
            hint="the watch of pods may be late; the kubelet asks again",
            reason=ClaimReason.NO_POD,
        )

    async def _room(self, claim: Claim, used: tuple[Use, ...]) -> PreparePlan:
        """The claim's shares, reserved in memory, once its devices are known and no other claim has what it needs.

        A kubelet asks a daemon that has just started at once. And a pod that was deleted by force still runs when its
        devices are given away: the kubelet's call that releases them comes a little later.
        """
        until = asyncio.get_running_loop().time() + self._timing.release
        while True:
            watched: list[Watched[Any]] = [self._claims.changes, *(source.snapshot for source in self._sources)]
            watched += [partitions.cuttable for partitions in self._cut.values()]
            seen = [(value, value.version) for value in watched]
            plan, why = self._fit(claim, used)
            if plan and not why:
                self._claims.reserve(plan.entry)
                return plan
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                raise ClaimError(
                    f"ResourceClaim {claim.key}: {why}",
                    hint="the kubelet asks again, and releases what has ended",
                    reason=ClaimReason.IN_USE if plan else ClaimReason.UNKNOWN_DEVICE,
                )
            await wait_any_changed(seen, within=left)

    def _fit(self, claim: Claim, used: tuple[Use, ...]) -> tuple[PreparePlan | None, str]:
        """The plan, and why it has to wait: other claims have what it needs, or its devices are not known yet."""
        devices = self._devices_of(claim)
        missing = next((result.device for result in claim.results if result.device not in devices), None)
        unknown = next((source.snapshot.value for source in self._sources if not source.snapshot.value.ready), None)
        if missing and unknown:
            return None, f"{missing} is not known yet: {unknown.message or unknown.reason}"
        uncut = next((one for one in self._cut.values() if one.cuttable.value is None), None)
        if missing and uncut:
            return None, f"{missing} is not known yet: {uncut.problem}"
        if missing:
            raise ClaimError(
                f"ResourceClaim {claim.key} has device {missing}, which is not on this node",
                reason=ClaimReason.UNKNOWN_DEVICE,
            )
        taken = self._taken()
        for result in claim.results:
            for one in devices[result.device].cards:
                self._require_free(claim, one, taken)
        beside = self._claims.beside((self.driver, claim.uid))
        own: list[PreparedShare] = []
        for result in claim.results:
            given = devices[result.device]
            if given.cut:
                own.append(_cut_held(result, given.family, given.cut))
                continue
            for one in given.cards:
                others = [held for shares in beside.values() for held in shares] + own
                own.append(_held(result, given.family, one, others))
        found = parts(claim, used, {name: one.counted for name, one in devices.items()})
        self._refuse_second_claim(claim, found)
        environments = self._environments(claim, devices)
        _refuse_differing_parameters(claim, found, environments)
        entry = Prepared(
            driver=self.driver,
            uid=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            pods=claim.consumers,
            shares=tuple(own),
            boot=self._boot,
        )
        plan = PreparePlan(entry=entry, claim=claim, parts=found, devices=devices, environments=environments)
        cards = [card for one in devices.values() for card in one.cards]
        return plan, excess(own, beside, cards) or overlap(own, beside, self._cuttable()) or self._still_cut(own)

    def _still_cut(self, own: Iterable[PreparedShare]) -> str:
        """What is left of partitions of a card that is given out whole; empty where nothing is."""
        for held in own:
            partitions = self._cut.get(held.grant.device_type)
            if partitions is None or held.profile or held.admin:
                continue
            there = [one for one in partitions.entries.values() if one.card == held.grant.uuid]
            if left := [one for one in there if one.state not in ABSENT]:
                return f"{held.device} is still cut: {left[0].profile} is {left[0].state}"
        return ""

    def _devices_of(self, claim: Claim) -> dict[str, GivenDevice]:
        """The devices that the claim was given and that are here, by name."""
        wanted, found = {result.device for result in claim.results}, dict[str, GivenDevice]()
        for one in cuts(self._cuttable()) if self._cut else ():
            if one.name in wanted:
                family = next(
                    s.family for s in self._sources if s.family.resources.device_type == one.card.device.family
                )
                found[one.name] = GivenDevice(family=family, cards=(one.card,), cut=one)
        for source in self._sources:
            side = source.family.node.partitions if source.family.resources.device_type in self._cut else None
            cards = _offers(source) if side is None or side.whole or side.sized else ()
            found |= {one.name: GivenDevice(family=source.family, cards=(one,)) for one in cards if one.name in wanted}
            for name in wanted - found.keys() if side is None else ():
                if members := members_of(name, cards):
                    found[name] = GivenDevice(family=source.family, cards=members)
        return found

    def _cuttable(self) -> tuple[CardProfiles, ...]:
        return tuple(
            one
            for source in self._sources
            if (partitions := self._cut.get(source.family.resources.device_type))
            for one in card_profiles(source.family, _offers(source), partitions.profiles)
        )

    def _require_free(self, claim: Claim, one: Offered, taken: Mapping[str, str]) -> None:
        """``ClaimError`` for a device that is unwell, or that a pod has by the device plugin."""
        if not one.device.health.offered:
            why = f"{one.device.health}: {one.device.reason} {one.device.message}".rstrip()
            raise ClaimError(
                f"ResourceClaim {claim.key} has device {one.name}, which is {why}", reason=ClaimReason.UNHEALTHY
            )
        if holder := taken.get(one.device.uuid):
            raise ClaimError(
                f"ResourceClaim {claim.key} has device {one.name}, which {holder} has", reason=ClaimReason.IN_USE
            )

    def _environments(self, claim: Claim, devices: Mapping[str, GivenDevice]) -> Mapping[str, Mapping[str, str]]:
        """The environment that each request's parameters stand for. ``ClaimError`` for what its devices do not know."""
        return {
            one.request: environment(claim, one.request, devices[one.device].family.node.parameters, self.driver)
            for one in claim.results
        }

    def _refuse_second_claim(self, claim: Claim, found: Sequence[Part]) -> None:
        """``ClaimError`` for a container that has devices of this driver by another claim: limits are one list."""
        receiving = {(part.use.pod.uid, part.use.container.name) for part in found if part.use}
        for other in self._claims.of(self.driver):
            both = [to for to in other.receivers if (to.uid, to.container) in receiving and other.uid != claim.uid]
            if both:
                raise ClaimError(
                    f"container {both[0].container} of {both[0].namespace}/{both[0].pod} has devices of {self.driver} "
                    f"by ResourceClaims {other.claim} and {claim.key}",
                    hint="ask for all of them in one claim",
                    reason=ClaimReason.UNSUPPORTED,
                )

    async def _planned(self, plan: PreparePlan, made: Mapping[ResultKey, Partition]) -> Prepared:
        """What containers receive, as it will be written and answered. ``made`` are its partitions."""
        common = ContainerEdits()
        names: dict[str, ContainerEdits] = {}
        receivers, injections = [], list[Injection]()
        for part in plan.parts:
            own = [one for one in plan.entry.shares if one.request in part.requests and not one.admin]
            if part.use is None or not own:
                continue
            families = {
                plan.devices[one.device].family.resources.device_type: plan.devices[one.device].family for one in own
            }
            if len(families) > 1:
                raise ClaimError(
                    f"container {part.use.container.name} of {part.use.pod.key} has devices of several types: "
                    f"{' and '.join(families)}",
                    hint="ask for one type, by its attribute",
                    reason=ClaimReason.UNSUPPORTED,
                )
            (family,) = families.values()
            cards = {card.device.uuid: card for one in own for card in plan.devices[one.device].cards}
            await self._require_host(family, list(cards.values()))
            shares = [Share(grant=one.grant, device=cards[one.grant.uuid].device) for one in own]
            shares.sort(key=lambda share: share.device.order)
            pod, container = part.use.pod, part.use.container
            assignment = Assignment(pod=pod, container=container, shares=tuple(shares))
            cut = [made[key] for one in own if (key := _result_of(one)) in made]
            inject = partial(_injected, family, assignment, cut, self._node.host)
            injection, shared = await self._guard.ask("inject", inject)
            common = common.merged(shared)
            plan.leftovers.append(family.node.leftovers(pod.uid, container.name, self._node.host.paths))
            injections.append(injection)
            edits = ContainerEdits(env=plan.environments[part.requests[0]])
            names |= dict.fromkeys(part.requests, injection.edits.merged(edits))
            receivers.append(
                Receiver(
                    uid=pod.uid,
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=container.name,
                    init=container.alone,
                    resource=family.resources.count,
                    uuids=tuple(share.device.uuid for share in shares),
                    requests=part.requests,
                )
            )
        named = {request: edits for request, edits in names.items() if edits != ContainerEdits()}
        return replace(
            plan.entry,
            devices=tuple(self._devices(plan, named)),
            receivers=tuple(receivers),
            spec=self._spec(plan.entry, named, common),
            directories=tuple(str(path) for each in injections for path in each.directories),
            files={str(path): text for each in injections for path, text in each.files.items()},
        )

    def _devices(self, plan: PreparePlan, named: Mapping[str, ContainerEdits]) -> Iterable[PreparedDevice]:
        """Each card goes by its own CDI name, and the first one of each request also by what the request adds.

        A set is one device to the kubelet, which passes on the names of all its cards.
        """
        begun: set[str] = set()
        for (request, device, share_id), shares in groupby(plan.entry.shares, key=_result_of):
            held = list(shares)
            family, admin = plan.devices[device].family, held[0].admin
            first = request in named and request not in begun and not admin
            begun |= {request} if first else set()
            added = (str(_kind(self.driver).device(_cdi_name(plan.entry.uid, request))),) if first else ()
            yield PreparedDevice(
                request=request,
                pool=self._node.rules.node,
                device=device,
                share_id=share_id,
                cdi_devices=(
                    *added,
                    *(family.node.delivery.name(one.grant.uuid) for one in held if not one.profile),
                ),
            )

    def _spec(self, entry: Prepared, named: Mapping[str, ContainerEdits], common: ContainerEdits) -> str:
        if not named:
            return ""
        devices = [SpecDevice(name=_cdi_name(entry.uid, request), edits=edits) for request, edits in named.items()]
        return to_json(Spec(kind=_kind(self.driver), devices=tuple(devices), edits=common), entry.file)

    async def _require_host(self, family: Family, devices: Sequence[Offered]) -> None:
        """``ClaimError`` while the host lacks what the containers' limits need."""
        if not family.node.needs_host or not any(family.node.limited(one.device) for one in devices):
            return
        problem = await self._guard.ask("host problem", partial(family.node.host_problem, self._node.host))
        if problem:
            raise ClaimError(problem, reason=ClaimReason.HOST)

    def _clean(self, leftovers: Sequence[Leftovers]) -> None:
        """What former starts have left of the containers: none of them runs yet."""
        for left in leftovers:
            if left.directory is not None and (folder := self._node.host.seen(left.directory)).is_dir():
                remove_files(folder, left.names, left.suffix)

    async def _on_disk(self, function: Callable[[], Any]) -> Any:
        return await self._thread.call(function, DISK_S)

    def _turn(self, uid: str) -> asyncio.Lock:
        """PreparedShare by the one call at a time about a claim. Nothing is kept of claims that nobody asks about."""
        return self._turns.setdefault(uid, asyncio.Lock())


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDevice:
    """A device of a slice, as it is here: a card, the cards of a set, or a ``cut`` of a card."""

    family: Family
    cards: tuple[Offered, ...]
    cut: Cut | None = None

    @property
    def counted(self) -> bool:
        """Whether what limits a container's part of it counts processes, and is no hardware."""
        return any(card.shared and not card.cut for card in self.cards)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan:
    """How a claim is to be made ready. ``devices`` are what it was given, by name, and ``environments`` the variables
    that each request's parameters stand for.
    """

    entry: Prepared
    claim: Claim
    parts: Sequence[Part]
    devices: Mapping[str, GivenDevice]
    environments: Mapping[str, Mapping[str, str]]
    leftovers: list[Leftovers] = field(default_factory=list)


def _refuse_differing_parameters(
    claim: Claim, found: Sequence[Part], environments: Mapping[str, Mapping[str, str]]
) -> None:
    """``ClaimError`` where a container's requests have parameters that differ: it has one environment."""
    for part in found:
        first = part.requests[0]
        other = next((one for one in part.requests if environments[one] != environments[first]), None)
        if other and part.use:
            raise ClaimError(
                f"container {part.use.container.name} of {part.use.pod.key} receives requests {first} and {other} of "
                f"ResourceClaim {claim.key}, whose parameters differ",
                hint="give both the same parameters, or put its devices into one request",
                reason=ClaimReason.UNSUPPORTED,
            )


def _shown(one: Prepared) -> Mapping[str, Any]:
    return {
        "driver": one.driver,
        "uid": one.uid,
        "namespace": one.namespace,
        "name": one.name,
        "state": "prepared" if one.done else "preparing",
        "containers": [
            {"namespace": to.namespace, "pod": to.pod, "uid": to.uid, "container": to.container} for to in one.receivers
        ],
        "devices": [
            {
                "request": held.request,
                "device": held.device,
                "uuid": held.grant.uuid,
                "memory": held.memory,
                "cores": held.cores,
                "slots": held.slots,
                "admin": held.admin,
            }
            for held in one.shares
        ],
        "spec": one.file if one.spec else "",
    }


def _offers(source: FamilySource) -> tuple[Offered, ...]:
    return offered_devices(source.family, source.snapshot.value)


def _held(result: Result, family: Family, one: Offered, others: Sequence[PreparedShare]) -> PreparedShare:
    """The share as the family grants it, placed beside the others' on the same device.

    One that was given out without a share is whole: an API server without DRAConsumableCapacity knows no shares.
    """
    part = one.shared and (bool(result.share_id) or result.admin)
    if part and not result.slots and not result.admin:
        raise ClaimError(
            f"{one.name} is shared, and nothing says how much of it was allocated",
            hint="the API server, the scheduler or an old ResourceSlice knows no DRAConsumableCapacity",
        )
    memory = result.memory if part else one.memory
    cores, slots = (result.cores, result.slots) if part else (0, one.slots)
    grant = one.grant(memory or one.memory, cores, slots)
    sized = family.node.partitions.sized if one.cut and family.node.partitions and not result.admin else None
    beside = [held.grant for held in others if held.grant.uuid == grant.uuid and not held.admin]
    return PreparedShare(
        request=result.request,
        device=result.device,
        share_id=result.share_id,
        memory=memory,
        cores=cores,
        slots=slots,
        admin=result.admin,
        grant=grant if result.admin else family.node.place(grant, one.device, beside),
        profile=sized.profile(grant.cores, grant.memory) if sized else "",
    )


def _cut_held(result: Result, family: Family, cut: Cut) -> PreparedShare:
    grant = Grant(
        uuid=cut.card.device.uuid,
        device_type=family.resources.device_type,
        memory=cut.profile.memory,
        cores=cut.profile.cores,
    )
    return PreparedShare(
        request=result.request,
        device=result.device,
        share_id=result.share_id,
        memory=cut.profile.memory,
        cores=cut.profile.cores,
        admin=result.admin,
        grant=grant,
        profile=cut.profile.name,
        placement=cut.placement,
    )


def _injected(
    family: Family, assignment: Assignment, made: Sequence[Partition], host: HostFiles
) -> tuple[Injection, ContainerEdits]:
    """What a container receives, and what all with partitions do. A partition's own edits are in the claim's spec."""
    node = family.node
    if not made or node.partitions is None:
        return node.inject(assignment, host), ContainerEdits()
    injection = node.partitions.inject(assignment, made, host)
    devices = {share.device.uuid: share.device for share in assignment.shares}
    edits = injection.edits
    for one in made:
        edits = edits.merged(node.partitions.edits(devices[one.card], one, host))
    return replace(injection, edits=edits), node.shared_edits(host)


def _result_of(one: PreparedShare) -> ResultKey:
    """What the scheduler gave: several shares are of one set."""
    return one.request, one.device, one.share_id


def _kind(driver: str) -> Kind:
    return Kind(vendor=driver, cls=CLASS)


def _cdi_name(uid: str, request: str) -> str:
    return f"{uid}-{request}"
