"""Before a container starts: is the pod that holds these devices the one whose limits were handed out?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hami_plugin.errors import HamiError, RefusalReason, RefusedError, WireError
from hami_plugin.log import logger
from hami_plugin.model.views import PodView
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.ledger import Key, Ledger
from hami_plugin.node.pods import PodTable
from hami_plugin.node.ports import Holder, Observer, PodResources
from hami_plugin.policy.claims import Question, claims
from hami_plugin.policy.identity import Held, pending
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
        fail: Callable[[PodView], None] = lambda _pod: None,
    ) -> None:
        self._question = question
        self._resources = resources
        self._pods = pods
        self._ledger = ledger
        self._events = events
        self._observer = observer
        self._fail = fail
        self._begun: set[Key] = set()

    async def confirm(self, ids: Sequence[str]) -> None:
        """Return if the container may start; ``RefusedError`` otherwise. The kubelet will ask again at each start."""
        outcome = "failed"
        try:
            self._judge(frozenset(ids), await self._account(ids))
            outcome = "ok"
        except RefusedError as refusal:
            outcome = refusal.reason
            log.warning("container start refused", resource=self._question.resource, why=refusal.message)
            raise
        finally:
            self._observer.container_start(self._question.resource, outcome)

    async def _account(self, ids: Sequence[str]) -> Sequence[Holder]:
        if not ids:
            raise RefusedError(RefusalReason.INVALID_REQUEST, "no device ids were named", code="INVALID_ARGUMENT")
        try:
            return await self._resources.holders(self._question.resource)
        except HamiError as error:
            raise _unknown(
                f"the kubelet could not be asked who holds {min(ids)}: {error.message}", hint=error.hint
            ) from error

    def _judge(self, ids: frozenset[str], account: Sequence[Holder]) -> None:
        holders = [holder for holder in account if holder.ids & ids]
        owners = {(holder.namespace, holder.pod) for holder in holders}
        if len(owners) > 1:
            raise self._wrong(f"the kubelet says that {_names(owners)} hold the same devices", holders)
        handed = [h for h in self._ledger.held.values() if h.resource == self._question.resource and h.ids == ids]
        if handed:
            self._judge_by_siblings(handed, account)
            self._judge_by_ledger(ids, holders, handed)
            self._begun = {held.key for held in self._ledger.held.values() if held.key in self._begun}
            self._begun |= {held.key for held in handed if held.init}
        elif self._ledger.lapsed(self._question.resource, ids) or self._has_others(holders):
            raise self._wrong(f"{min(ids)} was handed out with the limits of another container", holders)
        else:
            self._judge_by_annotation(ids, holders)

    def _judge_by_siblings(self, handed: list[Held], account: Sequence[Holder]) -> None:
        """What another pod has of the other containers' shares went to it in one go, and so did these.

        This tells plain init containers apart, which the account leaves out.
        """
        given = {(held.namespace, held.pod) for held in handed}
        shares = [s for held in handed for s in self._ledger.of_pod(held.uid) if s.resource == self._question.resource]
        astray = [h for h in account if (h.namespace, h.pod) not in given and any(h.ids & s.ids for s in shares)]
        if astray:
            owners = {(holder.namespace, holder.pod) for holder in astray}
            what = f"limits were handed out to {_names(given)}, but {_names(owners)} holds devices of the same pod"
            raise self._wrong(what, astray, handed)

    def _judge_by_ledger(self, ids: frozenset[str], holders: list[Holder], handed: list[Held]) -> None:
        skipped = self._skipped(handed)
        if skipped:
            what = f"limits of container {handed[0].container} of pod {handed[0].namespace}/{handed[0].pod} are used"
            raise self._wrong(f"{what} before container {skipped} has started", holders, handed)
        if not holders and any(held.init for held in handed):
            self._judge_without_account(ids)
            return
        if not holders:
            raise _unknown(f"the kubelet does not say yet who holds {min(ids)}")
        owners = {(holder.namespace, holder.pod) for holder in holders}
        given = {(held.namespace, held.pod) for held in handed}
        if owners != given or any(self._is_another(held) for held in handed):
            what = f"limits were handed out to {_names(given)}, but {_names(owners)} holds the devices"
            raise self._wrong(what if owners != given else f"{what} as another pod of that name", holders, handed)
        # Several containers, if later ones have an init container's devices. Each has its own hand-out.
        known = {(held.container, held.ids) for held in self._ledger.of_pod(handed[0].uid)}
        stray = next((holder for holder in holders if (holder.container, holder.ids) not in known), None)
        if stray:
            names = ", ".join(sorted({held.container for held in handed}))
            what = f"limits of container {names} reached container {stray.container}"
            raise self._wrong(f"{what} of pod {_names(owners)}", holders, handed)

    def _judge_without_account(self, ids: frozenset[str]) -> None:
        """The kubelet's account leaves plain init containers out. They start when nobody else can have been meant."""
        rivals: list[PodView] = []
        for pod in self._pods.pods:
            waiting = pending((pod,), self._ledger.held, self._question, pod.node)
            counts = [len(claim.devices) for claim in waiting.next]
            counts += [stranger.container.amount(self._question.resource) for stranger in waiting.unannotated]
            if len(ids) in counts:
                rivals.append(pod)
        if rivals:
            names = ", ".join(pod.key for pod in rivals)
            raise _unknown(f"{names} may wait for {min(ids)} as well, and the kubelet does not say who has it")

    def _skipped(self, handed: list[Held]) -> str:
        """An init container that comes before these, has devices, and has not started; empty when there is none.

        Init containers start one after the other. So the limits that it should have went to somebody else, and the one
        that starts now has those of a container after it. What a former life of the daemon started is not known.
        """
        pod = self._pods.get(handed[0].uid)
        order = [container.name for container in pod.containers] if pod else []
        known = [h for h in self._ledger.of_pod(handed[0].uid) if h.init and h.resource == self._question.resource]
        expected = [h for h in known if h.key not in self._begun and h.key not in self._ledger.inherited]
        names = [h.container for h in expected if h not in handed]
        first = min((order.index(h.container) for h in handed if h.container in order), default=0)
        return next((name for name in order[:first] if name in names), "")

    def _has_others(self, holders: list[Holder]) -> bool:
        """Whether shares are on record for the pod that holds the ids, so that these would be as well."""
        pods = {pod.uid for pod in (self._pods.named(h.namespace, h.pod) for h in holders) if pod}
        return any(h.uid in pods and h.resource == self._question.resource for h in self._ledger.held.values())

    def _is_another(self, held: Held) -> bool:
        """Whether the pod that now has the name is not the one that the share was handed out to."""
        pod = self._pods.named(held.namespace, held.pod)
        return pod is not None and pod.uid != held.uid

    def _judge_by_annotation(self, ids: frozenset[str], holders: list[Holder]) -> None:
        """After a restart that lost the journal: the pod's own decision must name the devices that it holds."""
        if not holders:
            raise _unknown(f"nobody is known to hold {min(ids)}")
        holder = holders[0]
        pod = self._pods.named(holder.namespace, holder.pod)
        if pod is None:
            raise _unknown(f"pod {holder.namespace}/{holder.pod} is not known from the API server yet")
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
        if not any(Counter(share.devices) == physical for share in own):
            raise self._wrong(f"the decision for pod {pod.key} does not name the devices that it holds", holders)

    def _wrong(self, message: str, holders: Sequence[Holder], handed: Sequence[Held] = ()) -> RefusedError:
        """Take back what was ``handed`` to the wrong one, so that it can be handed out again, and say so."""
        self._ledger.drop([held.key for held in handed if not held.settled])
        for held in handed:
            self._fail_if_shifted(held)
        refusal = RefusedError(
            RefusalReason.WRONG_HOLDER, message, hint="delete the pod; its controller will start another one"
        )
        pods = [self._pods.named(h.namespace, h.pod) for h in (holders or handed)]
        self._events.refused([pod for pod in pods if pod], RefusalReason.WRONG_HOLDER, str(refusal))
        return refusal

    def _fail_if_shifted(self, lost: Held) -> None:
        """Fail a pod that got shares after the one that it ``lost``: each of them reached the container before."""
        pod = self._pods.get(lost.uid)
        order = [container.name for container in pod.containers] if pod else []
        if pod is None or lost.container not in order:
            return
        later = order[order.index(lost.container) + 1 :]
        shifted = [h for h in self._ledger.of_pod(lost.uid) if h.resource == lost.resource and h.container in later]
        if shifted:
            self._ledger.drop([held.key for held in shifted])
            self._fail(pod)


def _unknown(message: str, *, hint: str = "") -> RefusedError:
    return RefusedError(
        RefusalReason.HOLDER_UNKNOWN,
        message,
        code="UNAVAILABLE",
        hint=hint or "the kubelet tries the container again by itself",
    )


def _names(pods: set[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"{namespace}/{name}" for namespace, name in pods))
