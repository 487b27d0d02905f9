"""After a restart: which shares in the journal are real, which it has lost, and which have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from hami_plugin.allocation.identity import HeldShare, Key
from hami_plugin.allocation.ledger import Ledger
from hami_plugin.allocation.pods import PodTable
from hami_plugin.allocation.settlement import Settlement
from hami_plugin.errors import HamiError, WireError
from hami_plugin.model.device import physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.model.ports import Checkpoint, CheckpointEntry, Holder
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.process.log import logger
from hami_plugin.protocol.pods import DecidedShare, Question, decided_shares, requesting_containers

log = logger(__name__)


class Recovery:
    """Compares the journal with the pods and with the kubelet's checkpoint until nothing is open.

    ``ask`` before anything is served, and ``restore`` with the first list of pods, before anybody can be found among
    them: so nothing that is in use is handed out again, whatever became of the journal. ``problem`` says why that is
    known in part only; empty when it is known.

    A share counts as delivered when the kubelet keeps the answer that was made for it. One that is not delivered stays
    reserved while its pod lives: either the kubelet repeats the call, or it fails the pod, and the pod's end frees it.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        pods: PodTable,
        settlement: Settlement,
        checkpoint: Checkpoint,
        period: float = 5.0,
    ) -> None:
        self._ledger = ledger
        self._pods = pods
        self._settlement = settlement
        self._checkpoint = checkpoint
        self._period = period
        self._kept: dict[str, tuple[CheckpointEntry, ...]] = {}
        self._guessed: set[Key] = set()
        self._silence = ""

    @property
    def problem(self) -> str:
        if not self._guessed:
            return ""
        return f"what {len(self._guessed)} containers hold is known by their pods' annotations alone: {self._silence}"

    async def ask(self) -> None:
        """Read what the kubelet keeps. It can keep nothing new before something is answered."""
        resources = sorted({question.resource for question in self._settlement.questions})
        for resource, kept in zip(resources, await asyncio.gather(*map(self._ask, resources)), strict=True):
            if kept is not None:
                self._kept[resource] = kept

    def restore(self) -> None:
        """Hold again what the kubelet keeps for pods that live, and the journal does not know."""
        found = [
            held
            for question in self._settlement.questions
            for held in missing_shares(self._pods.pods, question, self._ledger.held, self._kept.get(question.resource))
        ]
        for held in found:
            self._ledger.reserve(held)
            self._ledger.write(held)
        self._guessed = {held.key for held in found if not held.ids}
        if found:
            log.warning(
                "shares that the journal had lost are held again", shares=len(found), guessed=len(self._guessed)
            )

    async def run(self) -> None:
        """Wait for the first list of pods, then reconcile until all shares of a former life are settled or gone."""
        inherited = set(self._ledger.held)
        while not self._pods.changes.value:
            await self._pods.changes.changed(self._pods.changes.version)
        while True:
            self._drop_ended()
            await self._guess_no_more()
            opened = [h for key, h in self._ledger.held.items() if key in inherited and not h.settled]
            if not opened and not self._guessed:
                return
            for resource in sorted({held.resource for held in opened}):
                await self._settle_delivered(resource, [held for held in opened if held.resource == resource])
            await asyncio.sleep(self._period)

    def _drop_ended(self) -> None:
        """Shares of pods that are gone or have ended while the daemon was down."""
        pods = {pod.uid: pod for pod in self._pods.pods}
        ended = [h.key for h in self._ledger.held.values() if h.uid not in pods or pods[h.uid].terminal]
        if ended:
            log.info("shares of ended pods dropped", shares=len(ended))
            self._ledger.drop(ended)

    async def _ask(self, resource: str) -> tuple[CheckpointEntry, ...] | None:
        try:
            return await self._checkpoint.kept(resource)
        except HamiError as error:
            if error.message != self._silence:
                log.warning("what the kubelet keeps is not known", resource=resource, problem=error.message)
            self._silence = error.message
            return None

    async def _guess_no_more(self) -> None:
        """What annotations alone say gives way to the kubelet's account, once that can be read."""
        self._guessed &= set(self._ledger.held)
        if not self._guessed:
            return
        await self.ask()
        known = [key for key in self._guessed if key[2] in self._kept]
        if known:
            self._ledger.drop(known)
            self.restore()

    async def _settle_delivered(self, resource: str, opened: list[HeldShare]) -> None:
        try:
            kept = await self._checkpoint.kept(resource)
        except HamiError as error:
            log.warning("what the kubelet was answered is not known", resource=resource, problem=error.message)
            return
        answered = {(one.uid, one.container, one.ids) for one in kept if one.right}
        for held in opened:
            if (held.uid, held.container, held.ids) in answered:
                self._settlement.note(held.uid)


def missing_shares(
    pods: Sequence[PodView],
    question: Question,
    held: Mapping[Key, HeldShare],
    kept: Sequence[CheckpointEntry] | None,
) -> Iterator[HeldShare]:
    """What containers of living pods hold of a resource beyond what is ``held``.

    The ids are those that the kubelet has ``kept``, the shares those that were decided. A container whose answer was
    made for another one does not start, and holds nothing. Where nobody can tell what the kubelet keeps (None), a
    share counts once its pod runs, or is recorded as handed out.
    """
    owners = {(one.uid, one.container): one for one in kept or ()}
    for pod in pods:
        if pod.terminal:
            continue
        shares = _shares(pod, question)
        for container in requesting_containers(pod, question.resource):
            if (pod.uid, container.name, question.resource) in held:
                continue
            owner, share = owners.get((pod.uid, container.name)), shares.get(container.name)
            if kept is None:
                if share and (share.piece is None or pod.phase != "Pending"):
                    yield _again(pod, container, question, grants=share.grants, settled=share.piece is None)
            elif owner and (owner.right or not owner.answered_for):
                whole = tuple(Grant(uuid=uuid, device_type="") for uuid in sorted(set(map(physical_id, owner.ids))))
                yield _again(
                    pod,
                    container,
                    question,
                    ids=owner.ids,
                    grants=share.grants if share else whole,
                    settled=share is None or share.piece is None or not owner.right,
                    undecided=question.decision not in pod.annotations,
                )


def _shares(pod: PodView, question: Question) -> Mapping[str, DecidedShare]:
    """By container; none where nothing was decided, or nobody can read what."""
    if question.decision not in pod.annotations:
        return {}
    try:
        return {claim.container.name: claim for claim in decided_shares(pod, question)}
    except WireError:
        return {}


def _again(
    pod: PodView,
    container: ContainerView,
    question: Question,
    *,
    grants: tuple[Grant, ...],
    settled: bool,
    ids: frozenset[str] = frozenset(),
    undecided: bool = False,
) -> HeldShare:
    return HeldShare(
        uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        container=container.name,
        resource=question.resource,
        ids=ids,
        grants=grants,
        init=container.init and not container.restartable,
        settled=settled,
        undecided=undecided,
        resized=not undecided,  # whether it was, nobody knows any more: it is held to what its pod says
    )


class HolderSource(Protocol):
    """The kubelet's whole account."""

    async def everything(self) -> Mapping[str, tuple[Holder, ...]]:
        """Every container that holds devices, by resource. ``HamiError`` when the kubelet cannot be asked."""


class KubeletAccount:
    """The last answer. Nobody asks a kubelet while nothing is handed out; ``deadline`` in seconds.

    ``lending`` are the resources of which the kubelet alone knows who has what.
    """

    def __init__(
        self,
        holdings: HolderSource,
        ledger: Ledger,
        *,
        lending: Callable[[], Collection[str]] = tuple,
        deadline: float = 1.0,
    ) -> None:
        self.lent: tuple[HeldShare, ...] = ()
        """What containers have of these resources."""
        self._holdings = holdings
        self._ledger = ledger
        self._lending = lending
        self._deadline = deadline
        self._known: frozenset[tuple[object, ...]] | None = frozenset()
        self._asking = asyncio.Lock()

    @property
    def readable(self) -> bool:
        """Whether the kubelet answered when it was asked last."""
        return self._known is not None

    async def refresh(self) -> None:
        """Ask anew, and wait for the answer at most until the deadline. Without one, nothing is confirmed or denied."""
        async with self._asking:
            lending = self._lending()
            if not self._ledger.held and not lending:
                self._known, self.lent = frozenset(), ()
                return
            try:
                async with asyncio.timeout(self._deadline):
                    answer = await self._holdings.everything()
            except (HamiError, TimeoutError):
                self._known = None
                return
        self.lent = tuple(_lent(resource, one) for resource in lending for one in answer.get(resource, ()))
        self._known = frozenset(
            (resource, one.namespace, one.pod, one.container, one.ids)
            for resource, holders in answer.items()
            for one in holders
        )

    def confirms(self, held: HeldShare) -> bool | None:
        """Whether the kubelet says that this container has exactly these ids. None: it does not say.

        Plain init containers are never in its account.
        """
        if self._known is None or held.init:
            return None
        return (held.resource, held.namespace, held.pod, held.container, held.ids) in self._known


def _lent(resource: str, holder: Holder) -> HeldShare:
    """What a container has of a resource that no scheduler decides about. The kubelet does not tell the pod's UID."""
    return HeldShare(
        uid=f"{holder.namespace}/{holder.pod}",
        namespace=holder.namespace,
        pod=holder.pod,
        container=holder.container,
        resource=resource,
        ids=holder.ids,
        grants=tuple(Grant(uuid=one, device_type="") for one in sorted(holder.ids)),
        undecided=True,
    )
