"""Errors for the kubelet that the pods they are about are told of as well."""

from __future__ import annotations

from collections.abc import Sequence

from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.model.views import PodView
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.settlement import Settlement


class Refusals:
    """Makes the error and tells of it; whoever asked for it raises it."""

    def __init__(self, settlement: Settlement, events: EventRecorder) -> None:
        self._settlement = settlement
        self._events = events

    def refused(
        self,
        reason: RefusalReason,
        message: str,
        pods: Sequence[PodView],
        *,
        code: str = "FAILED_PRECONDITION",
        hint: str = "",
    ) -> RefusedError:
        """The error for the kubelet, and an Event at every pod that it is about."""
        refusal = RefusedError(reason, message, code=code, hint=hint)
        self._events.refused(pods, reason, str(refusal))
        return refusal

    def failed(
        self, reason: RefusalReason, message: str, pod: PodView, *, code: str = "FAILED_PRECONDITION", hint: str = ""
    ) -> RefusedError:
        """As ``refused``, for the one pod that has asked: its decision cannot be carried out, which it will tell."""
        self._settlement.fail(pod)
        return self.refused(reason, message, (pod,), code=code, hint=hint)
