"""The API server's process, and what the others do there: a scheduler that decides, a kubelet that reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from bench.processes import running
from hami_plugin.model.placement import Grant
from hami_plugin.protocol import keys
from hami_plugin.protocol.nodes import NodeLock, render_lock
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.sdk import Family
from hami_plugin.simulation.apiserver import REQUESTS

NODE = "bench-node"
NAMESPACE = "bench"
DAEMON = "hami-plugin"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_MERGE = {"Content-Type": "application/merge-patch+json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What a process asked of the API server. Watches and the lists that begin them are not in it."""

    reads: int
    writes: int
    refused: int


class Cluster:
    """A client for everybody but the daemon."""

    def __init__(self, url: str, session: aiohttp.ClientSession, family: Family) -> None:
        self.url = url
        self._session = session
        self._family = family

    async def create_pod(
        self,
        name: str,
        decision: Sequence[Sequence[Grant]],
        *,
        lock: bool,
        wants: int = 0,
        bound: bool = True,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """A pod that is ``bound`` to the node already, with its decision; one container for each piece of it.

        With ``lock`` it waits for the node lock and takes it first, as HAMi's scheduler does. Without a decision it is
        a pod that nobody scheduled, and ``wants`` so many devices. ``annotations`` go beside the decision's. Return the
        pod as the server has it.
        """
        if lock:
            text = render_lock(NodeLock(time=datetime.now(tz=UTC), namespace=NAMESPACE, pod=name))
            async with asyncio.timeout(20):
                while keys.NODE_LOCK in await self.node_annotations():  # noqa: ASYNC110  # it is another process's
                    await asyncio.sleep(0.001)
            await self._patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {keys.NODE_LOCK: text}}})
        body = self._manifest(name, decision) if decision else self._unscheduled(name, wants)
        if not bound:
            del body["spec"]["nodeName"]
        body["metadata"].setdefault("annotations", {}).update(annotations or {})
        return dict(await self._ask("POST", _PODS, body))

    async def bind(self, name: str) -> None:
        """Place a pod that is not bound yet on the node."""
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self._ask("POST", f"{_PODS}/{name}/binding", body)

    async def set_running(self, name: str) -> None:
        await self._patch(f"{_PODS}/{name}/status", {"status": {"phase": "Running"}})

    async def delete_pod(self, name: str) -> None:
        await self._ask("DELETE", f"{_PODS}/{name}")

    async def recorded(self) -> None:
        """Wait until every pod says that it has its devices, and the node is not locked."""
        async with asyncio.timeout(60):
            while not await self._all_recorded():  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.05)

    async def _all_recorded(self) -> bool:
        pods = (await self._ask("GET", _PODS))["items"]
        phases = {pod["metadata"]["annotations"][keys.BIND_PHASE] for pod in pods}
        return phases <= {keys.PHASE_SUCCESS} and keys.NODE_LOCK not in await self.node_annotations()

    async def node_annotations(self) -> dict[str, str]:
        return dict((await self._ask("GET", f"/api/v1/nodes/{NODE}"))["metadata"].get("annotations", {}))

    async def calls(self, since: float) -> Calls:
        """The daemon's calls that began after ``since`` on the monotonic clock, which all processes share."""
        asked = [r for r in await self._ask("GET", REQUESTS) if r["agent"] == DAEMON and r["at"] >= since]
        lists = [r for r in asked if "fieldSelector" in r["query"]]
        own = [r for r in asked if r not in lists]
        return Calls(
            reads=sum(r["verb"] == "GET" for r in own),
            writes=sum(r["verb"] != "GET" for r in own),
            refused=sum(r["status"] >= 300 for r in own),
        )

    def _manifest(self, name: str, decision: Sequence[Sequence[Grant]]) -> dict[str, Any]:
        text, now = encode_devices([tuple(piece) for piece in decision]), str(int(time.time()))
        annotations = {
            keys.ASSIGNED_NODE: NODE,
            keys.ASSIGNED_TIME: now,
            self._family.rules.annotations.to_allocate: text,
            self._family.rules.annotations.allocated: text,
            keys.BIND_PHASE: keys.PHASE_ALLOCATING,
            keys.BIND_TIME: now,
        }
        containers = [
            {"name": f"c{number}", "image": "example", "resources": {"limits": self._limits(piece)}}
            for number, piece in enumerate(decision)
        ]
        return {
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": {"nodeName": NODE, "schedulerName": "hami-scheduler", "containers": containers},
        }

    def _unscheduled(self, name: str, wants: int) -> dict[str, Any]:
        limits = {self._family.resources.count: str(wants)}
        return {
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "c0", "image": "example", "resources": {"limits": limits}}],
            },
        }

    def _limits(self, piece: Sequence[Grant]) -> dict[str, str]:
        names, grant = self._family.resources, piece[0]
        return {names.count: str(len(piece)), names.memory: str(grant.memory), names.cores: str(grant.cores)}

    async def _patch(self, path: str, body: dict[str, Any]) -> None:
        await self._ask("PATCH", path, body, _MERGE)

    async def _ask(self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        async with self._session.request(verb, self.url + path, json=body, headers=headers) as answer:
            answer.raise_for_status()
            return await answer.json()


@asynccontextmanager
async def cluster(kubeconfig: Path, family: Family) -> AsyncIterator[Cluster]:
    """An API server in a process of its own, with the node in it; ``kubeconfig`` will lead to it."""
    arguments = ("-m", "hami_plugin.simulation.apiserver", "--port", "0", "--kubeconfig", kubeconfig)
    timeout = aiohttp.ClientTimeout(total=10)
    async with running(*arguments) as url, aiohttp.ClientSession(timeout=timeout) as session:
        async with session.post(f"{url}/api/v1/nodes", json={"metadata": {"name": NODE}}) as answer:
            answer.raise_for_status()
        yield Cluster(url, session, family)
