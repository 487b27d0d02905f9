"""A node and its cluster as processes: the daemon and the scheduler are the commands; all else is simulated."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hami_plugin.demo.stage import CONFIGURATION, NODE, Stage, staged
from hami_plugin.model.delivery import Answer
from hami_plugin.model.views import pod_view
from hami_plugin.protocol import keys
from tests.scheduler.extender.test_process import review
from tests.support.scheduler_process import Running, started
from tests.support.scheduling import ask, binding, until

HERE = Path(__file__).parent
NAMESPACE = "team"


def examples(name: str) -> list[dict[str, Any]]:
    """The documents of one of the files here, in their order."""
    return [one for one in yaml.safe_load_all((HERE / name).read_text(encoding="utf-8")) if one]


@dataclass
class Live:
    """What pods meet on their way: webhook, filter and bind by HTTP, then the kubelet, which asks the daemon."""

    stage: Stage
    scheduler: Running
    answers: dict[str, Answer] = field(default_factory=dict)

    async def created(self, manifest: Mapping[str, Any], name: str = "", **annotations: str) -> dict[str, Any]:
        """The pod as admission leaves it. A ``name`` and ``annotations`` may stand in place of the manifest's."""
        pod = copy.deepcopy(dict(manifest))
        meta = pod["metadata"] = {**pod["metadata"], "namespace": NAMESPACE}
        meta["name"] = name or meta["name"]
        meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
        for container in pod["spec"]["containers"]:
            limits = container.get("resources", {}).get("limits", {})
            limits.update({key: str(amount) for key, amount in limits.items()})
        answer = (await self.scheduler.post("/webhook?timeout=10s", review(pod)))["response"]
        assert answer["allowed"], answer
        if "patch" in answer:
            for change in json.loads(base64.b64decode(answer["patch"])):
                apply(pod, change)
        return dict(self.stage.api.create_pod(pod))

    async def filtered(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """The extender's answer about the one node."""
        return dict(await self.scheduler.post("/filter", ask(self.stage.api, pod)))

    async def chosen(self, pod: Mapping[str, Any]) -> None:
        """Filter until the node is chosen: what has ended is known a moment later."""
        async with asyncio.timeout(30):
            while not (await self.filtered(pod))["NodeNames"]:  # noqa: ASYNC110  # the scheduler tells nobody
                await asyncio.sleep(0.02)

    async def bound(self, pod: Mapping[str, Any]) -> None:
        """Filter and bind, which must both succeed."""
        answer = await self.filtered(pod)
        assert answer["NodeNames"] == [NODE], answer
        assert await self.scheduler.post("/bind", binding(pod, NODE)) == {"Error": ""}

    async def run(self, manifest: Mapping[str, Any], name: str = "", **annotations: str) -> dict[str, Any]:
        """The whole way until the pod runs; the pod as the API server then has it."""
        pod = await self.created(manifest, name, **annotations)
        await self.bound(pod)
        return await self.served(pod)

    async def served(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """The kubelet admits the bound pod, and starts its containers."""
        name = pod["metadata"]["name"]
        view = pod_view(self.stage.api.pod(NAMESPACE, name))
        await self.stage.kubelet.admit(view)
        for container in view.containers:
            self.answers[name] = await self.stage.kubelet.start_container(view.uid, container.name)
        self.stage.api.set_phase(NAMESPACE, name, "Running")
        await until(lambda: self.noted(name).get(keys.BIND_PHASE) == keys.PHASE_SUCCESS)
        return dict(self.stage.api.pod(NAMESPACE, name))

    def end(self, name: str) -> None:
        """The pod is over, and deleted."""
        self.stage.kubelet.remove(self.stage.api.pod(NAMESPACE, name)["metadata"]["uid"])
        self.stage.api.delete_pod(NAMESPACE, name)

    def noted(self, name: str) -> Mapping[str, str]:
        """The pod's annotations."""
        return dict(self.stage.api.pod(NAMESPACE, name)["metadata"].get("annotations") or {})

    def written(self, key: str) -> str:
        """An annotation of the node."""
        return self.stage.annotation(key)

    async def restart_scheduler(self, stack: AsyncExitStack, folder: Path) -> None:
        """Killed, not stopped: its successor knows what the annotations say, and nothing more."""
        self.scheduler.process.kill()
        await self.scheduler.process.wait()
        self.scheduler = await stack.enter_async_context(started(self.stage.api, folder))
        await self.scheduler.ready()


@asynccontextmanager
async def living(profile: str, folder: Path, **configuration: Any) -> AsyncIterator[tuple[Live, AsyncExitStack]]:
    """A machine with our daemon, and our scheduler beside it. Both are ready, and the kubelet counts the devices."""
    async with AsyncExitStack() as stack:
        configuration = {**CONFIGURATION, **configuration}
        stage = await stack.enter_async_context(staged(profile, configuration=configuration))
        await stage.start_daemon()
        counts = stage.counted(*stage.devices)
        await until(lambda: all(stage.kubelet.allocatable(one) == count for one, count in counts.items()))
        written = {one: str(stage.kubelet.capacity(one)) for one in counts}
        stage.api.store.patch(
            ("nodes", "", NODE), {"status": {"allocatable": written, "capacity": written}}, part="status"
        )
        await until(lambda: {info.id for info in stage.registered()} == {device.uuid for device in stage.devices})
        scheduler = await stack.enter_async_context(started(stage.api, folder))
        await scheduler.ready()
        yield Live(stage=stage, scheduler=scheduler), stack


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
