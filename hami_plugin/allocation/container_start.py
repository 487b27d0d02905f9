"""Before a container starts: was the answer that it will start with made for it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from hami_plugin.allocation.capacity import NodeState
from hami_plugin.allocation.identity import HeldShare
from hami_plugin.errors import HamiError, RefusalReason, RefusedError, WireError
from hami_plugin.model.device import physical_counts
from hami_plugin.model.ports import CheckpointEntry
from hami_plugin.model.views import ContainerView
from hami_plugin.process.log import logger
from hami_plugin.protocol.pods import Question, decided_shares

log = logger(__name__)


class StartCheck:
    """Reads in the kubelet's checkpoint which container has the ids, and for which one they were answered.

    What a former start of that container left on the host is then removed by ``clean``.

    The answer itself says so, so neither a restart nor a lost journal, nor a pod's end, can hide an exchange. Answers
    of another plugin, from before this one served the node, say nothing: there the pod's own decision counts.
    """

    def __init__(
        self, question: Question, node: NodeState, *, clean: Callable[[Iterable[tuple[str, str]]], Awaitable[None]]
    ) -> None:
        self._question = question
        self._node = node
        self._clean = clean

    async def confirm(self, ids: Sequence[str]) -> None:
        """Return if the container may start; ``RefusedError`` otherwise. The kubelet will ask again at each start."""
        outcome = "failed"
        try:
            owners = await self._owners(frozenset(ids))
            for kept in owners:
                self._judge(kept)
            await self._clean([(kept.uid, kept.container) for kept in owners])
            outcome = "ok"
        except RefusedError as refusal:
            outcome = refusal.reason
            log.warning("container start refused", resource=self._question.resource, why=refusal.message)
            raise
        finally:
            self._node.observer.container_start(self._question.resource, outcome)

    async def _owners(self, ids: frozenset[str]) -> list[CheckpointEntry]:
        """Who has exactly these ids: one container, or several of a pod where one takes an init container's."""
        if not ids:
            raise RefusedError(RefusalReason.INVALID_REQUEST, "no device ids were named", code="INVALID_ARGUMENT")
        try:
            found = await self._node.checkpoint.kept(self._question.resource, ids)
        except HamiError as error:
            raise _unknown(f"nobody can tell who has {min(ids)}: {error.message}", hint=error.hint) from error
        if not found:
            raise _unknown(f"the kubelet's checkpoint does not say yet who has {min(ids)}")
        if len({one.uid for one in found}) > 1:  # which of them starts nobody can tell, and another may be running
            names = " and ".join(self._named(one) for one in found)
            raise _unknown(f"the kubelet's checkpoint has {min(ids)} at {names}")
        return list(found)

    def _judge(self, kept: CheckpointEntry) -> None:
        if not kept.answered_for:
            self._judge_by_decision(kept)
        elif not kept.right:
            given = self._given(kept)
            to = f"container {given.container} of pod {given.namespace}/{given.pod}" if given else kept.answered_for
            raise self._wrong(f"{self._named(kept)} would start with what was answered for {to}", kept, given)

    def _judge_by_decision(self, kept: CheckpointEntry) -> None:
        """The pod's own decision must name the devices that the container has."""
        pod = self._node.pods.get(kept.uid)
        if pod is None:
            raise _unknown(f"{self._named(kept)} is not known from the API server yet")
        if self._question.allocated not in pod.annotations:
            return  # served whole devices by the kubelet's own ids: what it holds is what it was given
        try:
            shares = decided_shares(pod, self._question)
        except WireError as error:
            raise self._wrong(str(error), kept) from error
        # An init container's devices pass on to later containers, whatever was decided for those.
        own = [s for s in shares if s.container.name == kept.container or _passes_on(s.container)]
        if not any(Counter(share.devices) == physical_counts(kept.ids) for share in own):
            raise self._wrong(f"the decision for pod {pod.key} does not name the devices that it holds", kept)

    def _given(self, kept: CheckpointEntry) -> HeldShare | None:
        """The share that reached another container than its own, if it is still on record."""
        uid, _, container = kept.answered_for.partition("/")
        held = self._node.ledger.held.get((uid, container, self._question.resource))
        return held if held and held.ids == kept.ids else None

    def _named(self, kept: CheckpointEntry) -> str:
        pod = self._node.pods.get(kept.uid)
        return f"container {kept.container} of {f'pod {pod.key}' if pod else f'the pod with UID {kept.uid}'}"

    def _wrong(self, message: str, kept: CheckpointEntry, given: HeldShare | None = None) -> RefusedError:
        """Take back what was ``given`` to the wrong one, so that it can be handed out again, and say so."""
        if given and not given.settled:
            self._node.ledger.drop([given.key])
        if given:
            self._fail_if_shifted(given)
        refusal = RefusedError(
            RefusalReason.WRONG_HOLDER, message, hint="delete the pod; its controller will start another one"
        )
        pod = self._node.pods.get(kept.uid)
        if pod:
            self._node.events.refused([pod], RefusalReason.WRONG_HOLDER, str(refusal))
            self._node.settlement.fail(
                pod
            )  # its admission is over: what it still seems to wait for, it will never ask for
        return refusal

    def _fail_if_shifted(self, lost: HeldShare) -> None:
        """Fail a pod that got shares after the one that it ``lost``: each of them reached the container before."""
        pod = self._node.pods.get(lost.uid)
        order = [container.name for container in pod.containers] if pod else []
        if pod is None or lost.container not in order:
            return
        later = order[order.index(lost.container) + 1 :]
        shifted = [
            h for h in self._node.ledger.held.of_pod(lost.uid) if h.resource == lost.resource and h.container in later
        ]
        if shifted:
            self._node.ledger.drop([held.key for held in shifted])
            self._node.settlement.fail(pod)


def _passes_on(container: ContainerView) -> bool:
    return container.init and not container.restartable


def _unknown(message: str, *, hint: str = "") -> RefusedError:
    return RefusedError(
        RefusalReason.HOLDER_UNKNOWN,
        message,
        code="UNAVAILABLE",
        hint=hint or "the kubelet tries the container again by itself",
    )
