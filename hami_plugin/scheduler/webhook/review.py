"""Admission: an AdmissionReview in, the same with its response out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hami_plugin.aio import in_slices
from hami_plugin.errors import WireError
from hami_plugin.model.views import PodView
from hami_plugin.scheduler.engine.capacity import impossible
from hami_plugin.scheduler.engine.requests import Denied
from hami_plugin.scheduler.extender.cache import SchedulerCache
from hami_plugin.scheduler.extender.payloads import admission_response, member, name, readable
from hami_plugin.scheduler.webhook.admission import Allowed, Scheduling, crowded, reviewing

Json = Mapping[str, Any]


class Reviewer:
    """Decides which pods are taken, and with which defaults. ``refuse_impossible``: not those that can never run."""

    def __init__(self, cache: SchedulerCache, scheduling: Scheduling, *, refuse_impossible: bool) -> None:
        self._cache = cache
        self._scheduling = scheduling
        self._refuse_impossible = refuse_impossible

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
            readable(pod, "admission review")
        metadata = {**member(pod, "metadata", "admission review")}
        metadata["namespace"] = metadata.get("namespace") or name(request, "namespace", "admission review") or "default"
        whole = {**pod, "metadata": metadata}  # a pod that is being created may not say its namespace yet
        cache = self._cache
        quota = cache.quotas.quota(metadata["namespace"], cache.pods.index, without=str(metadata.get("uid", "")))
        return await in_slices(reviewing(whole, cache.families, self._scheduling, quota, self._impossible))

    def _impossible(self, pod: PodView) -> str:
        if not self._refuse_impossible:
            return ""
        return impossible(pod, self._cache.families, self._cache.nodes.largest)
