"""A node with the real processes, `hami-plugin run` and `hami-plugin scheduler`, among a simulated machine, kubelet and
API server. A pod goes the way of any other: webhook, filter and bind over HTTP, then Allocate over a socket.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from hami_plugin.demo.stage import daemon_options, environment, install_core
from hami_plugin.model.delivery import Answer
from hami_plugin.model.machine import Machine
from hami_plugin.model.views import pod_view
from hami_plugin.scheduler.engine.filtering import UNREGISTERED
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.kubelet import AdmissionError, FakeKubelet
from hami_plugin.simulation.machines import load_machine
from tests.support.scheduler_process import ROOT, Running, started

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
JSON_PATCHES = ("add", "replace")


@dataclass(kw_only=True)
class Ended:
    """What became of a pod: the answer for each container, or where and why it was refused."""

    node: str = ""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    refused_at: str = ""
    why: str = ""


@dataclass(kw_only=True)
class Live:
    """One node of a cluster, and its two processes."""

    node: str
    machine: Machine
    api: SimulatedApiServer
    kubelet: FakeKubelet
    scheduler: Running
    log: Path

    def annotation(self, key: str) -> str:
        return str((self.api.node(self.node)["metadata"].get("annotations") or {}).get(key, ""))

    def count(self) -> None:
        """The kubelet tells the API server how many devices it counts."""
        numbers = {name: str(self.kubelet.capacity(name)) for name in self.kubelet.ledger.resources}
        free = {name: str(self.kubelet.allocatable(name)) for name in self.kubelet.ledger.resources}
        self.api.store.patch(
            ("nodes", "", self.node), {"status": {"capacity": numbers, "allocatable": free}}, part="status"
        )

    async def run(self, manifest: Mapping[str, Any]) -> Ended:
        """A pod's way, as far as it gets."""
        namespace = manifest["metadata"].get("namespace", "default")
        pod = {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
        admitted = await self._admitted(pod)
        if isinstance(admitted, str):
            return Ended(refused_at="webhook", why=admitted)
        stored = self.api.create_pod(admitted)
        offer = {"Pod": stored, "Nodes": None, "NodeNames": [self.node]}
        chosen = await self.scheduler.post("/filter", offer)
        async with asyncio.timeout(30):
            while UNREGISTERED in chosen["FailedNodes"].values():  # its watch has not told it of the devices yet
                await asyncio.sleep(0.05)
                chosen = await self.scheduler.post("/filter", offer)
        if not chosen["NodeNames"]:
            return Ended(refused_at="filter", why=chosen["Error"] or chosen["FailedNodes"][self.node])
        meta = stored["metadata"]
        binding = {"PodName": meta["name"], "PodNamespace": namespace, "PodUID": meta["uid"], "Node": self.node}
        bound = await self.scheduler.post("/bind", binding)
        if bound["Error"]:
            return Ended(refused_at="bind", why=bound["Error"])
        try:
            return Ended(node=self.node, answers=await self._started(namespace, meta["name"]))
        except AdmissionError as error:
            self.api.set_phase(namespace, meta["name"], "Failed")
            return Ended(refused_at="kubelet", why=str(error))

    async def _admitted(self, pod: Mapping[str, Any]) -> Mapping[str, Any] | str:
        kind = {"group": "", "version": "v1", "kind": "Pod"}
        request = {"uid": "r", "kind": kind, "operation": "CREATE", "namespace": "default", "object": pod}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        answer = (await self.scheduler.post("/webhook", body))["response"]
        if not answer["allowed"]:
            return str(answer["status"]["message"])
        changes = json.loads(base64.b64decode(answer["patch"])) if "patch" in answer else []
        return patched(pod, changes)

    async def _started(self, namespace: str, name: str) -> Mapping[str, Answer]:
        pod = pod_view(self.api.pod(namespace, name))
        await self.kubelet.admit(pod)
        answers = {one.name: await self.kubelet.start_container(pod.uid, one.name) for one in pod.containers}
        self.api.set_phase(namespace, name, "Running")
        return answers


def patched(document: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A JSON patch of the kinds that the webhook writes."""
    after = json.loads(json.dumps(document))
    for change in changes:
        assert change["op"] in JSON_PATCHES, change
        *way, last = [one.replace("~1", "/").replace("~0", "~") for one in change["path"].split("/")[1:]]
        there: Any = after
        for step in way:
            there = there[int(step)] if isinstance(there, list) else there[step]
        if isinstance(there, list):
            there.insert(len(there) if last == "-" else int(last), change["value"])
        else:
            there[last] = change["value"]
    return after


@asynccontextmanager
async def live(
    profile: str, *, node: str = "node1", configuration: Mapping[str, Any] | None = None
) -> AsyncIterator[Live]:
    """A node that serves the machine of a profile, with its whole register at the API server.

    Its folder has a short name: so has a socket.
    """
    with TemporaryDirectory(prefix="hami-") as folder:
        async with _living(Path(folder), profile, node, configuration or {}) as one:
            yield one


@asynccontextmanager
async def _living(folder: Path, profile: str, node: str, configuration: Mapping[str, Any]) -> AsyncIterator[Live]:
    install_core(folder / "hook" / "vgpu")
    (folder / "config.yaml").write_text(json.dumps(configuration), encoding="utf-8")
    kubelet = FakeKubelet(folder / "device-plugins", folder / "pod-resources" / "kubelet.sock")
    machine = load_machine(profile)
    log = folder / "daemon.log"
    async with SimulatedApiServer() as api:
        kind = str(machine.extra.get("instance_type", ""))
        api.create_node(node, labels={INSTANCE_TYPE: kind} if kind else {})
        options = daemon_options(profile, node, folder, api.write_kubeconfig(folder / "kubeconfig"))
        words = [device_type for option in options.items() for device_type in option]
        await kubelet.start()
        with log.open("ab") as out:
            daemon = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "hami_plugin", "run", *words, stdout=out, stderr=out, env=environment(), cwd=ROOT
            )
        (folder / "scheduler").mkdir()
        try:
            async with started(api, folder / "scheduler") as scheduler:
                one = Live(node=node, machine=machine, api=api, kubelet=kubelet, scheduler=scheduler, log=log)
                await _settled(one, daemon, f"http://{options['--http']}/readyz")
                yield one
        finally:
            if daemon.returncode is None:
                daemon.kill()
            await daemon.wait()
            await kubelet.stop()


async def _settled(one: Live, daemon: asyncio.subprocess.Process, readiness: str) -> None:
    """The kubelet counts all devices, the node says what the daemon has to say, and the scheduler answers."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            assert daemon.returncode is None, one.log.read_text()
            with suppress(aiohttp.ClientError):
                async with session.get(readiness) as answer:
                    if answer.status == 200:
                        break
            await asyncio.sleep(0.05)
    one.count()  # after the annotations: a scheduler that has seen this has seen those
    await one.scheduler.ready()
