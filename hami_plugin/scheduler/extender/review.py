"""Admission: which pods are taken, with which defaults, and whose limits become ResourceClaims."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial

from hami_plugin.dra.conversion import ClaimVendor, ConvertedPod, convert, quota_excess
from hami_plugin.errors import WireError
from hami_plugin.model.views import PodView, crowded
from hami_plugin.process.concurrency import run_in_slices
from hami_plugin.scheduler.engine.admission import Allowed, Scheduling, Views, review_pausing
from hami_plugin.scheduler.engine.capacity import why_impossible
from hami_plugin.scheduler.engine.requests import Denied
from hami_plugin.scheduler.extender.cache import SchedulerCache
from hami_plugin.scheduler.extender.claiming import ClaimTemplates
from hami_plugin.scheduler.extender.payloads import (
    Json,
    admission_response,
    member,
    name,
    require_pod_shape,
)


class Reviewer:
    """Decides which pods are taken, and with which defaults. ``refuse_impossible``: not those that can never run.

    Pods that ask for devices of ``vendors`` get claims in place of their limits.
    """

    def __init__(
        self,
        cache: SchedulerCache,
        scheduling: Scheduling,
        *,
        refuse_impossible: bool,
        vendors: Sequence[ClaimVendor],
        templates: ClaimTemplates,
    ) -> None:
        self._cache = cache
        self._scheduling = scheduling
        self._refuse_impossible = refuse_impossible
        self._vendors = tuple(vendors)
        self._templates = templates

    async def review(self, asked: Json) -> Json:
        """Answer in the version that was asked in. WireError when there is no request in it.

        What is no pod that is being created is let through. Before the cluster is known only the pod itself is judged.
        """
        request = asked.get("request")
        if not isinstance(request, Mapping):
            raise WireError("admission review: no request", hint="send what the API server sends")
        response = admission_response(str(request.get("uid", "")), await self._decided(request))
        version = str(asked.get("apiVersion") or "admission.k8s.io/v1")
        return {"apiVersion": version, "kind": "AdmissionReview", "response": response}

    async def _decided(self, request: Json) -> Allowed | Denied:
        pod = request.get("object")
        kind = member(request, "kind", "admission review")
        if not isinstance(pod, Mapping) or kind.get("kind") != "Pod" or request.get("operation") != "CREATE":
            return Allowed()
        if not isinstance(pod.get("spec"), Mapping):
            raise WireError("admission review: a pod without a spec", hint="send what the API server sends")
        if not crowded(pod):
            require_pod_shape(pod, "admission review")
        metadata = {**member(pod, "metadata", "admission review")}
        metadata["namespace"] = metadata.get("namespace") or name(request, "namespace", "admission review") or "default"
        whole = {**pod, "metadata": metadata}  # a pod that is being created may not say its namespace yet
        cache = self._cache
        namespace, token = metadata["namespace"], secrets.token_hex(8)
        quota = cache.quota(namespace, without=str(metadata.get("uid", "")))
        rewrite = partial(self._rewrite, namespace, token)
        taken = False
        try:
            decided = await run_in_slices(
                review_pausing(whole, cache.families, self._scheduling, quota, self._impossible, rewrite=rewrite)
            )
            if (
                isinstance(decided, Allowed)
                and isinstance(decided.rewritten, ConvertedPod)
                and not request.get("dryRun")
            ):
                if why := await self._templates.ensure(namespace, decided.rewritten.templates):
                    return Denied(why=why)
                taken = True
            return decided
        finally:
            if not taken:
                cache.pods.claimed.forget(token)

    def _rewrite(self, namespace: str, token: str, stored: Json, pods: Views) -> ConvertedPod | Denied | None:
        """The pod with claims, if its namespace may have so much. It counts from now on, whoever asks next."""
        found = convert(stored, pods, self._vendors, token) if self._vendors else None
        if not isinstance(found, ConvertedPod):
            return found
        cache = self._cache
        used = cache.counted(namespace, [family for vendor in self._vendors for family in vendor.families])
        if why := quota_excess(found.claimed, self._vendors, cache.quotas.hard(namespace), used):
            return Denied(why=f"exceeding resource quota: {why}")
        cache.pods.claimed.expect(namespace, found.claimed, time.monotonic())
        return found

    def _impossible(self, pod: PodView) -> str:
        if not self._refuse_impossible:
            return ""
        return why_impossible(pod, self._cache.families, self._cache.nodes.largest)
