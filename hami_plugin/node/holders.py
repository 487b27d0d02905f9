"""Before a container starts: is the pod that holds these devices the one whose limits were handed out?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hami_plugin.errors import HamiError, RefusalReason, RefusedError, WireError
from hami_plugin.log import logger
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.pods import PodTable
from hami_plugin.node.ports import Holder, Observer, PodResources
from hami_plugin.policy.claims import Question, claims
from hami_plugin.policy.identity import Held
from hami_plugin.policy.replicas import physical_counts

log = logger(__name__)


class HolderCheck:
    """Compares the kubelet's account with the ledger, or with the pod's own annotation when the ledger is empty."""

    def __init__(
        self,
        question: Question,
        *,
        resources: PodResources,
        pods: PodTable,
        ledger: Ledger,
        events: EventRecorder,
        observer: Observer,
    ) -> None:
        self._question = question
        self._resources = resources
        self._pods = pods
        self._ledger = ledger
        self._events = events
        self._observer = observer

    async def confirm(self, ids: Sequence[str]) -> None:
        """Return if the container may start; ``RefusedError`` otherwise. The kubelet will ask again at each start."""
        outcome = "failed"
        try:
            self._judge(frozenset(ids), await self._holders(frozenset(ids)))
            outcome = "ok"
        except RefusedError as refusal:
            outcome = refusal.reason
            log.warning("container start refused", resource=self._question.resource, why=refusal.message)
            raise
        finally:
            self._observer.container_start(self._question.resource, outcome)

    async def _holders(self, ids: frozenset[str]) -> list[Holder]:
        if not ids:
            raise RefusedError(RefusalReason.INVALID_REQUEST, "no device ids were named", code="INVALID_ARGUMENT")
        try:
            return [h for h in await self._resources.holders(self._question.resource) if h.ids & ids]
        except HamiError as error:
            raise RefusedError(
                RefusalReason.HOLDER_UNKNOWN,
                f"the kubelet could not be asked who holds {min(ids)}: {error.message}",
                code="UNAVAILABLE",
                hint=error.hint or "the kubelet tries the container again by itself",
            ) from error

    def _judge(self, ids: frozenset[str], holders: list[Holder]) -> None:
        owners = {(holder.namespace, holder.pod) for holder in holders}
        if len(owners) > 1:
            raise self._wrong(f"the kubelet says that {_names(owners)} hold the same devices", holders)
        if self._ledger.spoiled(self._question.resource, ids):
            raise self._wrong(f"{min(ids)} was handed out with the limits of another container", holders)
        handed = [h for h in self._ledger.held.values() if h.resource == self._question.resource and h.ids == ids]
        handed = [held for held in handed if self._pods.get(held.uid) or not self._pods.changes.value]
        if not handed:
            self._judge_by_annotation(ids, holders)
            return
        if not holders:
            # The kubelet's account leaves plain init containers out. Nobody else holds the ids, so the start is safe.
            if any(held.init for held in handed):
                return
            raise RefusedError(
                RefusalReason.HOLDER_UNKNOWN,
                f"the kubelet does not say yet who holds {min(ids)}",
                code="UNAVAILABLE",
                hint="the kubelet tries the container again by itself",
            )
        given = {(held.namespace, held.pod) for held in handed}
        if owners != given:
            raise self._wrong(
                f"limits were handed out to {_names(given)}, but {_names(owners)} holds the devices", holders, handed
            )
        containers = {held.container for held in handed}
        if not any(held.init for held in handed) and not containers & {holder.container for holder in holders}:
            what = f"limits of container {', '.join(sorted(containers))} reached container {holders[0].container}"
            raise self._wrong(f"{what} of pod {_names(owners)}", holders, handed)

    def _judge_by_annotation(self, ids: frozenset[str], holders: list[Holder]) -> None:
        """After a restart that lost the journal: the pod's own decision must name the devices that it holds."""
        if not holders:
            raise RefusedError(
                RefusalReason.HOLDER_UNKNOWN,
                f"nobody is known to hold {min(ids)}",
                code="UNAVAILABLE",
                hint="the kubelet tries the container again by itself",
            )
        holder = holders[0]
        pod = self._pods.named(holder.namespace, holder.pod)
        if pod is None:
            raise RefusedError(
                RefusalReason.HOLDER_UNKNOWN,
                f"pod {holder.namespace}/{holder.pod} is not known from the API server yet",
                code="UNAVAILABLE",
                hint="the kubelet tries the container again by itself",
            )
        if self._question.allocated not in pod.annotations:
            return  # served whole devices by the kubelet's own ids: what it holds is what it was given
        try:
            shares = claims(pod, self._question)
        except WireError as error:
            raise self._wrong(str(error), holders) from error
        # An init container's devices pass on to later containers, whatever was decided for those.
        names = {holder.container for holder in holders}
        own = [s for s in shares if s.container.name in names or (s.container.init and not s.container.restartable)]
        physical = physical_counts(ids)
        if not any(Counter(grant.uuid for grant in share.grants) == physical for share in own):
            raise self._wrong(f"the decision for pod {pod.key} does not name the devices that it holds", holders)

    def _wrong(self, message: str, holders: Sequence[Holder], handed: Sequence[Held] = ()) -> RefusedError:
        """Take back what was ``handed`` to the wrong one, so that it can be handed out again, and say so."""
        for held in handed:
            self._ledger.spoil(held.resource, held.ids)
        self._ledger.drop([held.key for held in handed if not held.settled])
        refusal = RefusedError(
            RefusalReason.WRONG_HOLDER, message, hint="delete the pod; its controller will start another one"
        )
        pods = [self._pods.named(holder.namespace, holder.pod) for holder in holders]
        self._events.refused([pod for pod in pods if pod], RefusalReason.WRONG_HOLDER, str(refusal))
        return refusal


def _names(pods: set[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"{namespace}/{name}" for namespace, name in pods))
