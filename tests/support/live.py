"""A node and its cluster as processes: the daemon and the scheduler are the commands; all else is simulated.

A pod goes the way of any other: webhook, filter and bind over HTTP, then Allocate over a socket.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from hami_plugin.demo.node import CONFIGURATION, NODE, SimulatedNode, simulated_node
from hami_plugin.model.delivery import Answer
from hami_plugin.model.views import pod_view
from hami_plugin.protocol import keys
from hami_plugin.scheduler.engine.filter import UNREGISTERED
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.kubelet import AdmissionError
from tests.support.forked import launch
from tests.support.scheduler_process import Running, started
from tests.support.scheduling import ask, binding, until

NAMESPACE = "default"
"""Of pods whose manifest names none."""


class RefusedError(Exception):
    """Somebody on a pod's way said no: ``at`` the webhook, filter, bind or kubelet."""

    def __init__(self, at: str, why: str) -> None:
        super().__init__(f"{at}: {why}")
        self.at = at
        self.why = why


@dataclass(kw_only=True)
class Ended:
    """What became of a pod: the answer for each container, or where and why it was refused."""

    node: str = ""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    refused_at: str = ""
    why: str = ""


@dataclass(kw_only=True)
class Live:
    """One node and its two processes. ``answers`` are those of each pod's last container."""

    stage: SimulatedNode
    scheduler: Running
    stack: AsyncExitStack
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def api(self) -> SimulatedApiServer:
        return self.stage.api

    def count(self) -> None:
        """The kubelet tells the API server how many devices it counts."""
        kubelet = self.stage.kubelet
        capacity = {name: str(kubelet.capacity(name)) for name in kubelet.ledger.resources}
        allocatable = {name: str(kubelet.allocatable(name)) for name in kubelet.ledger.resources}
        status = {"capacity": capacity, "allocatable": allocatable}
        self.api.store.patch(("nodes", "", self.stage.node), {"status": status}, part="status")

    async def created(self, manifest: Mapping[str, Any], name: str = "", **annotations: str) -> dict[str, Any]:
        """The pod as admission leaves it. A ``name`` and ``annotations`` may stand in place of the manifest's."""
        pod = copy.deepcopy(dict(manifest))
        meta = pod["metadata"] = {"namespace": NAMESPACE, **pod["metadata"]}
        meta["name"] = name or meta["name"]
        meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
        for container in pod["spec"]["containers"]:
            limits = container.get("resources", {}).get("limits", {})
            limits.update({key: str(amount) for key, amount in limits.items()})
        answer = (await self.scheduler.post("/webhook?timeout=10s", review(pod)))["response"]
        if not answer["allowed"]:
            raise RefusedError("webhook", str(answer["status"]["message"]))
        for change in json.loads(base64.b64decode(answer.get("patch", "W10="))):
            apply(pod, change)
        return dict(self.api.create_pod(pod))

    async def filtered(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """The extender's answer about the one node, once its watch has told it of the devices.

        As kube-scheduler does, it sends the pod with what became of the last decision about it.
        """
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        async with asyncio.timeout(60):
            while True:
                answer = dict(await self.scheduler.post("/filter", ask(self.api, self.api.pod(namespace, name))))
                if answer.get("FailedNodes", {}).get(self.stage.node) != UNREGISTERED:
                    return answer
                await asyncio.sleep(0.05)

    async def chosen(self, pod: Mapping[str, Any]) -> None:
        """Filter until the node is chosen: what has ended is known a moment later. Nobody binds the pod, so the
        decision is written a moment later too, which is waited for.
        """
        name = pod["metadata"]["name"]
        before = self.revision(name)
        async with asyncio.timeout(60):
            while not (await self.filtered(pod)).get("NodeNames"):  # noqa: ASYNC110  # the scheduler tells nobody
                await asyncio.sleep(0.02)
        await until(lambda: keys.ASSIGNED_NODE in self.noted(name) and self.revision(name) != before)

    async def bound(self, pod: Mapping[str, Any]) -> None:
        """Filter and bind, as often as kube-scheduler is told to: what was decided may be another's by the time of the
        bind, as the places of an instance that is being destroyed. ``RefusedError`` where either says no.
        """
        async with asyncio.timeout(60):
            while True:
                verb, answer = "filter", await self.filtered(pod)
                if not (error := answer["Error"]) and answer["NodeNames"] != [self.stage.node]:
                    raise RefusedError("filter", answer["FailedNodes"][self.stage.node])
                if not error:
                    verb, answer = "bind", await self.scheduler.post("/bind", binding(pod, self.stage.node))
                    if not (error := answer["Error"]):
                        return
                if "scheduled again" not in error:
                    raise RefusedError(verb, error)
                await asyncio.sleep(0.1)

    async def run(self, manifest: Mapping[str, Any], name: str = "", **annotations: str) -> dict[str, Any]:
        """The whole way until the pod runs; the pod as the API server then has it. ``RefusedError`` on the way."""
        pod = await self.created(manifest, name, **annotations)
        await self.bound(pod)
        await self.served(pod)
        await until(lambda: self.noted(pod["metadata"]["name"]).get(keys.BIND_PHASE) == keys.PHASE_SUCCESS)
        return dict(self.api.pod(pod["metadata"]["namespace"], pod["metadata"]["name"]))

    async def tried(self, manifest: Mapping[str, Any]) -> Ended:
        """A pod's way, as far as it gets."""
        try:
            pod = await self.created(manifest)
            await self.bound(pod)
            return Ended(node=self.stage.node, answers=await self.served(pod))
        except RefusedError as error:
            return Ended(refused_at=error.at, why=error.why)

    async def served(self, pod: Mapping[str, Any]) -> dict[str, Answer]:
        """The kubelet admits the bound pod, and starts its containers."""
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        view = pod_view(self.api.pod(namespace, name))
        kubelet = self.stage.kubelet
        try:
            await kubelet.admit(view)
            answers = {one.name: await kubelet.start_container(view.uid, one.name) for one in view.containers}
        except AdmissionError as error:
            self.api.set_phase(namespace, name, "Failed")
            raise RefusedError("kubelet", str(error)) from error
        self.answers[name] = answers[view.containers[-1].name]
        self.api.set_phase(namespace, name, "Running")
        return answers

    def end(self, name: str) -> None:
        """The pod is over, and deleted."""
        self.stage.kubelet.remove(self.api.pod(NAMESPACE, name)["metadata"]["uid"])
        self.api.delete_pod(NAMESPACE, name)

    def noted(self, name: str) -> Mapping[str, str]:
        """The pod's annotations."""
        return dict(self.api.pod(NAMESPACE, name)["metadata"].get("annotations") or {})

    def revision(self, name: str) -> str:
        """The pod's resource version."""
        return str(self.api.pod(NAMESPACE, name)["metadata"]["resourceVersion"])

    def written(self, key: str) -> str:
        """An annotation of the node."""
        return self.stage.annotation(key)

    async def restart_scheduler(self) -> None:
        """Killed, not stopped: its successor knows what the annotations say, and nothing more."""
        self.scheduler.process.kill()
        await self.scheduler.process.wait()
        self.scheduler = await self.stack.enter_async_context(started(self.api, scheduling_folder(self.stage)))
        await self.scheduler.ready()


@asynccontextmanager
async def live(
    profile: str,
    *,
    node: str = NODE,
    prepare: Callable[[SimulatedNode], None] = lambda _stage: None,
    scheduler: Mapping[str, Any] | None = None,
    **configuration: Any,
) -> AsyncIterator[Live]:
    """A node that serves the machine of a profile, and our scheduler beside it: the kubelet counts, both are ready.

    ``prepare`` is done to the machine before the daemon starts. ``scheduler`` are settings of the scheduler's section.
    """
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(
            simulated_node(profile, configuration={**CONFIGURATION, **configuration}, node=node)
        )
        stage.launch = launch
        prepare(stage)
        await stage.start_daemon()
        process = await stack.enter_async_context(started(stage.api, scheduling_folder(stage), **(scheduler or {})))
        one = Live(stage=stage, scheduler=process, stack=stack)
        async with asyncio.timeout(60):
            while not (await is_ready(stage) and all_offered(stage)):  # noqa: ASYNC110  # it is another process
                await asyncio.sleep(0.05)
        one.count()  # after the annotations: a scheduler that has seen this has seen those
        await process.ready()
        yield one


async def is_ready(stage: SimulatedNode) -> bool:
    """Whether the daemon says that all is well; before it listens it says nothing."""
    assert stage.daemon
    assert stage.daemon.returncode is None, stage.log_tail()
    with suppress(aiohttp.ClientError):
        return (await stage.get("/readyz"))[0] == 200
    return False


def all_offered(stage: SimulatedNode) -> bool:
    """Whether the registers list healthy devices only: a tool that answers late leaves some out at first, and the
    annotations follow the readiness.
    """
    annotations = stage.api.store.get("nodes", "", stage.node)["metadata"].get("annotations") or {}
    lists = [json.loads(text) for key, text in annotations.items() if "register" in key and text.startswith("[")]
    return all(device.get("health") for devices in lists for device in devices)


def scheduling_folder(stage: SimulatedNode) -> Path:
    """The scheduler's own, beside the daemon's."""
    folder = stage.directory / "scheduler"
    folder.mkdir(exist_ok=True)
    return folder


def review(pod: Mapping[str, Any]) -> dict[str, Any]:
    """What the API server asks the webhook about a new pod."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    namespace = pod["metadata"]["namespace"]
    request = {"uid": "r", "kind": kind, "operation": "CREATE", "namespace": namespace, "object": pod}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def apply(document: dict[str, Any], change: Mapping[str, Any]) -> None:
    """One operation of a JSON patch, as the API server carries it out."""
    *way, last = (part.replace("~1", "/").replace("~0", "~") for part in change["path"].split("/")[1:])
    at: Any = document
    for part in way:
        at = at[int(part)] if isinstance(at, list) else at[part]
    if change["op"] == "remove":
        del at[last]
    elif isinstance(at, list):
        at.insert(len(at) if last == "-" else int(last), change["value"])
    else:
        at[last] = change["value"]
