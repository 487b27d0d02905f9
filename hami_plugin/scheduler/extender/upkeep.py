"""What is done from time to time: nodes are asked whether their daemons live, and assumed pods are looked after."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NoReturn

from hami_plugin.errors import ClusterError
from hami_plugin.log import logger
from hami_plugin.scheduler.extender.cache import AssumedPod, Binding, NodeCache, PodCache
from hami_plugin.scheduler.extender.ports import Cluster

log = logger(__name__)

AT_ONCE = 8
"""So many calls to the API server at the same time."""


class Upkeep:
    """One round in ``every`` seconds, for ever."""

    def __init__(self, cluster: Cluster, nodes: NodeCache, pods: PodCache, *, every: float) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._pods = pods
        self._every = every
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> NoReturn:
        await self._nodes.listed.changed(0)
        old: Mapping[str, AssumedPod] = {}
        unsettled: Mapping[str, Binding] = {}
        standing = self._pods.standing
        while True:
            async with asyncio.TaskGroup() as group:
                for name, annotations in self._nodes.judge().items():
                    group.create_task(self._write(name, annotations), name=f"handshake of {name}")
                for uid, assumed in old.items():
                    if self._pods.assumed.get(uid) == assumed:
                        group.create_task(self._look_after(uid, assumed), name=f"assumed pod {assumed.entry.pod.key}")
                for uid, binding in unsettled.items():
                    if standing.unsettled.get(uid) is binding:
                        group.create_task(self._settle(binding), name=f"binding of {binding.pod.key}")
            unsettled = dict(standing.unsettled)
            old = {uid: assumed for uid, assumed in self._pods.assumed.items() if assumed.revision}
            await asyncio.sleep(self._every)

    async def _write(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Ask, or take a question back. If another replica was faster the node has changed, and the next round sees."""
        node = self._nodes.live(name).value
        if node is None:
            return
        async with self._turn:
            try:
                after = await self._cluster.patch_node(name, annotations, resource_version=node.resource_version)
            except ClusterError as error:
                if not error.conflict:
                    log.warning("handshake not written", node=name, problem=error.message)
                return
        self._nodes.answered(after)

    async def _look_after(self, uid: str, assumed: AssumedPod) -> None:
        """The watch has not shown a decision that the API server took: the pod may have gone in a gap of the watch."""
        pod = assumed.entry.pod
        async with self._turn:
            try:
                found = await self._cluster.get_pod(pod.namespace, pod.name)
            except ClusterError as error:
                log.info("pod not looked at", pod=pod.key, problem=error.message)
                return
        if found is None or found.uid != uid:
            self._pods.remove(uid)
        else:
            self._pods.answered(found)

    async def _settle(self, binding: Binding) -> None:
        """The watch has not shown what became of a bind: the pod may have gone in a gap of the watch."""
        pod = binding.pod
        async with self._turn:
            try:
                found = await self._cluster.get_pod(pod.namespace, pod.name)
            except ClusterError as error:
                log.info("pod not looked at", pod=pod.key, problem=error.message)
                return
        if found is None or found.uid != pod.uid:
            self._pods.remove(pod.uid)
        elif found.node or found.terminal:
            self._pods.answered(found)
            self._pods.standing.end(pod.uid)
        elif binding.doubtful:
            self._pods.standing.end(pod.uid)
