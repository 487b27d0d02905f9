"""A large cluster: how fast the scheduler process places pods, when it is ready, and what it holds in memory.

The process is the real one. So many nodes with eight cards each and so many bound pods are at an API server, and a
caller asks as kube-scheduler does: a filter for one pod after the other, every node by its name, and binds beside them.
What daemons do at their nodes once a pod is bound is done by ``HollowDaemons``. Here the API server is the simulated
one, in a process of its own; ``python -m tests.realnode.scale`` does the same with real servers.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.figures import Figure, Spread
from bench.occupation import CORES, COUNT, MEMORY, PARTS, node_view_of, nvidia, part
from bench.processes import THIS, Interpreter, cpu_seconds, end, memory, peak_memory, running, spawn
from bench.selection import profile
from bench.shipped import packages
from hami_plugin.demo.node import reserved_port
from hami_plugin.errors import HamiError
from hami_plugin.protocol import keys
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.sdk import Family

MACHINE, CARDS, SHARES = "dgx-h100", 8, 80
NAMESPACE = "scale"
NODES_PATH, PODS_PATH = "/api/v1/nodes", f"/api/v1/namespaces/{NAMESPACE}/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}
CREATORS = 16
"""So many clients create objects at the same time."""
BINDS = 64
"""So many binds may run beside the filters, of which there is one at a time, as kube-scheduler has it."""
READY_S, FILTER_MS, RESIDENT_MIB = 3.0, 50.0, 300.0
"""What is wanted on an idle machine. Only memory is a limit here: a slower machine fails nothing."""
LARGE, STARTING, FILTERING = 1000, 8.0, 0.1
"""From so many nodes on, how many times as long as parsing all objects the start and a filter may take."""
HURRY_S = 300.0

ASKED = "Requesting_2026-01-01 00:00:00"
"""What schedulers have left on a node of a daemon that the kubelet's count answers for."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many nodes and bound pods there are, and how many pods are placed."""

    nodes: int
    bound: int
    placed: int

    def __str__(self) -> str:
        return f"{self.nodes:,} nodes, {self.bound:,} pods"


def node_name(number: int) -> str:
    return f"node-{number:05}"


def nodes(count: int, family: Family) -> Iterator[Object]:
    """Node objects as a kubelet and our daemon write them, eight cards each."""
    scores = profile(MACHINE)
    for number in range(count):
        name = node_name(number)
        offered = {
            "cpu": "128",
            "memory": "2113548Ki",
            "pods": "110",
            "ephemeral-storage": "1843269236Ki",
            COUNT: str(SHARES),
        }
        conditions = [
            {"type": kind, "status": status, "reason": reason, "message": f"kubelet has {reason}"}
            for kind, status, reason in (
                ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                ("PIDPressure", "False", "KubeletHasSufficientPID"),
                ("Ready", "True", "KubeletReady"),
            )
        ]
        images = [
            {
                "names": [
                    f"registry.example/team/image-{one}@sha256:{one:064x}",
                    f"registry.example/team/image-{one}:v1.{one}",
                ],
                "sizeBytes": 40_000_000 + one,
            }
            for one in range(20)
        ]
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "topology.kubernetes.io/zone": f"zone-{number % 3}",
                    "gpu": "on",
                },
                "annotations": {
                    **node_view_of(name, family, scores).annotations,
                    family.rules.annotations.handshake: ASKED,
                },
            },
            "status": {
                "capacity": offered,
                "allocatable": offered,
                "conditions": conditions,
                "addresses": [
                    {"type": "InternalIP", "address": f"10.{number >> 8 & 255}.{number & 255}.1"},
                    {"type": "Hostname", "address": name},
                ],
                "nodeInfo": {
                    "machineID": f"{number:032x}",
                    "systemUUID": f"{number:036x}",
                    "bootID": f"{number:036x}",
                    "kernelVersion": "6.1.0-40-amd64",
                    "osImage": "Debian GNU/Linux 12 (bookworm)",
                    "containerRuntimeVersion": "containerd://2.2.9",
                    "kubeletVersion": "v1.37.2",
                    "kubeProxyVersion": "",
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                },
                "images": images,
            },
        }


def bound_pods(size: Size, family: Family, chance: random.Random) -> Iterator[Object]:
    """Pods that run with a share of a card each, as evenly over the nodes as they can be."""
    for number in range(size.bound):
        node = node_name(number % size.nodes)
        card = f"GPU-{node}-5150-4ccd-8a11-{number // size.nodes % CARDS:012x}"
        grant = part(card, chance.choice(PARTS), chance.choice((0, 10, 20)))
        text = encode_devices([(grant,)])
        now = str(int(time.time()))
        annotations = {
            keys.ASSIGNED_NODE: node,
            keys.ASSIGNED_TIME: now,
            family.rules.annotations.to_allocate: ";",
            family.rules.annotations.allocated: text,
            keys.BIND_PHASE: keys.PHASE_SUCCESS,
            keys.BIND_TIME: now,
        }
        pod = manifest(
            f"bound-{number:05}", {COUNT: "1", MEMORY: str(grant.memory), CORES: str(grant.cores)}, annotations
        )
        pod["spec"]["nodeName"] = node
        yield pod


def manifest(
    name: str,
    limits: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    scheduler: str = "hami-scheduler",
) -> Object:
    """A pod as a Deployment's controller would make it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app": "trainer", "pod-template-hash": "6f5b8c7d9"},
            "annotations": {**(annotations or {}), "team.example/config-hash": "b5bb9d8014a0f9b1d61e21e796d78dcc"},
        },
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/team/trainer:v1.7",
                    "command": ["/usr/bin/trainer", "--config=/etc/trainer/config.yaml"],
                    "env": [{"name": f"OPTION_{one}", "value": f"value-{one}"} for one in range(10)],
                    "resources": {"limits": dict(limits), "requests": {"cpu": "100m", "memory": "64Mi"}},
                    "volumeMounts": [{"name": "config", "mountPath": "/etc/trainer"}],
                }
            ],
            "volumes": [{"name": "config", "configMap": {"name": "trainer", "optional": True}}],
        },
    }


SHARE = {COUNT: "1", MEMORY: "4000", CORES: "5"}
"""What each of the pods that are placed asks for."""


class Api:
    """A client of the API server for everybody but the scheduler process."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        async with self.session.request(method, self.url + path, json=body, headers=headers) as answer:
            if answer.status >= 300:
                raise HamiError(f"{method} {path}: {answer.status} {(await answer.text())[:300]}")
            return await answer.json()

    async def create(self, path: str, objects: Iterator[Object]) -> None:
        """Create all objects, by several clients."""

        async def some() -> None:
            for one in objects:
                await self.ask("POST", path, one)

        async with asyncio.TaskGroup() as group:
            for _ in range(CREATORS):
                group.create_task(some())


class HollowDaemons:
    """What daemons write once pods were bound to their nodes: the pod has its devices, and the node's lock is gone.

    ``bound`` tells when each pod was seen at a node.
    """

    def __init__(self, api: Api, family: Family) -> None:
        self.bound: dict[str, float] = {}
        self._api = api
        self._lock = family.rules.lock
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """They work for the time of the block."""
        version = (await self._api.ask("GET", f"{PODS_PATH}?limit=1"))["metadata"]["resourceVersion"]
        watching = asyncio.create_task(self._watch(version))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching, *self._tasks])

    async def _watch(self, version: str) -> None:
        path = f"{PODS_PATH}?watch=1&resourceVersion={version}&timeoutSeconds=3000"
        unlimited = aiohttp.ClientTimeout(total=None)
        async with self._api.session.get(self._api.url + path, timeout=unlimited) as stream:
            pending = b""
            async for chunk in stream.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    if b'"nodeName"' in line:
                        self._see(json.loads(line)["object"])

    def _see(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if name in self.bound or not pod["spec"].get("nodeName"):
            return
        self.bound[name] = time.monotonic()
        if pod["metadata"]["annotations"].get(keys.BIND_PHASE) == keys.PHASE_ALLOCATING:
            task = asyncio.create_task(self._serve(name, pod["spec"]["nodeName"]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, name: str, node: str) -> None:
        done = {"metadata": {"annotations": {keys.BIND_PHASE: keys.PHASE_SUCCESS}}}
        await self._api.ask("PATCH", f"{PODS_PATH}/{name}", done, MERGE)
        if self._lock:
            free = {"metadata": {"annotations": {self._lock.annotation: None}}}
            await self._api.ask("PATCH", f"{NODES_PATH}/{node}", free, MERGE)


@dataclass(slots=True, kw_only=True)
class Placed:
    """What placing pods took. Times in seconds."""

    filters: list[float] = field(default_factory=list)
    binds: list[float] = field(default_factory=list)
    pings: list[float] = field(default_factory=list)
    """How long ``/healthz`` took meanwhile: what any other request waits."""
    took: float = 0.0
    cpu: float = 0.0
    question: int = 0
    answer: int = 0


async def place(api: Api, url: str, pid: int, size: Size) -> Placed:
    """Place the pods as kube-scheduler does."""
    placed, names = Placed(), [node_name(number) for number in range(size.nodes)]
    waiting = [await api.ask("POST", PODS_PATH, manifest(f"placed-{n:05}", SHARE)) for n in range(size.placed)]
    places, tasks = asyncio.Semaphore(BINDS), list[asyncio.Task[None]]()

    async def bind(pod: Object, node: str) -> None:
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": NAMESPACE, "PodUID": meta["uid"], "Node": node}
        began = time.monotonic()
        async with api.session.post(f"{url}/bind", json=body) as reply:
            answer = await reply.json()
        if answer["Error"]:
            raise HamiError(f"bind: {answer['Error']}")
        placed.binds.append(time.monotonic() - began)
        places.release()

    async def ping() -> None:
        while True:
            began = time.monotonic()
            async with api.session.get(f"{url}/healthz") as reply:
                await reply.read()
            placed.pings.append(time.monotonic() - began)
            await asyncio.sleep(0.02)

    pinging, before, began = asyncio.create_task(ping()), cpu_seconds(pid), time.monotonic()
    try:
        for pod in waiting:
            await places.acquire()
            question = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
            asked = time.monotonic()
            async with api.session.post(f"{url}/filter", data=question) as reply:
                body = await reply.read()
            placed.filters.append(time.monotonic() - asked)
            answer = json.loads(body)
            if answer["Error"] or not answer["NodeNames"]:
                raise HamiError(f"filter: {answer['Error'] or 'no node fits'}")
            placed.question, placed.answer = max(placed.question, len(question)), max(placed.answer, len(body))
            tasks.append(asyncio.create_task(bind(pod, answer["NodeNames"][0])))
        await asyncio.gather(*tasks)
        placed.took, placed.cpu = time.monotonic() - began, cpu_seconds(pid) - before
    finally:
        pinging.cancel()
        await asyncio.wait([pinging])
    return placed


@dataclass(slots=True, kw_only=True)
class Running:
    """The scheduler process: ``ready`` seconds after its start it could decide, with so much CPU and memory."""

    pid: int
    url: str
    probes: str
    ready: float
    cpu: float
    resident: float


@asynccontextmanager
async def scheduler(
    kubeconfig: Path, session: aiohttp.ClientSession, *more: str, url: str = "", interpreter: Interpreter = THIS
) -> AsyncIterator[Running]:
    """The scheduler process, compiled as in the image, once it is ready. With ``more`` options it may listen at another
    ``url``. Its log is beside the ``kubeconfig``.
    """
    shipped = kubeconfig.with_name("packages")
    with reserved_port() as port, reserved_port() as probes:
        options = {
            "--kubeconfig": kubeconfig,
            "--listen": f"127.0.0.1:{port}",
            "--http": f"127.0.0.1:{probes}",
            "--log-level": "warning",
        }
        command = ("-m", "hami_plugin", "scheduler", *(str(word) for pair in options.items() for word in pair), *more)
        packages(shipped)
        began = time.monotonic()
        process = await spawn(
            *command, log=kubeconfig.with_name("scheduler.log"), packages=shipped, interpreter=interpreter
        )
        try:
            await ready(session, f"http://127.0.0.1:{probes}/readyz", process)
            seconds, pid = time.monotonic() - began, process.pid
            yield Running(
                pid=pid,
                url=url or f"http://127.0.0.1:{port}",
                probes=f"http://127.0.0.1:{probes}",
                ready=seconds,
                cpu=cpu_seconds(pid),
                resident=memory(pid).resident,
            )
        finally:
            await end(process)


async def ready(session: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process) -> None:
    """Wait until the process says that it is. Each question takes a little of the CPU that is measured."""
    async with asyncio.timeout(HURRY_S):
        while process.returncode is None:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    raise HamiError(f"the scheduler process ended with status {process.returncode}")


async def measure(size: Size) -> list[Figure]:
    """Ready time, filter, bind, rate and memory of the scheduler process in a cluster of this size."""
    family = nvidia()
    timeout = aiohttp.ClientTimeout(total=HURRY_S)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hami-scale-")))
        arguments = ("-m", "hami_plugin.simulation.apiserver", "--port", "0", "--kubeconfig", folder / "kubeconfig")
        url = await stack.enter_async_context(running(*arguments))
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout, connector=connector))
        api = Api(url, session)
        await api.create(NODES_PATH, nodes(size.nodes, family))
        await api.create(PODS_PATH, bound_pods(size, family, random.Random(1)))
        process = await stack.enter_async_context(scheduler(folder / "kubeconfig", session))
        await stack.enter_async_context(HollowDaemons(api, family).working())
        placed = await place(api, process.url, process.pid, size)
        return figures(size, process, placed, peak_memory(process.pid))


def figures(size: Size, process: Running, placed: Placed, peak: float) -> list[Figure]:
    """In a small cluster nothing is compared: there most of the time is no matter of its size."""
    filters, binds, pings = Spread.of(placed.filters[1:]), Spread.of(placed.binds), Spread.of(placed.pings)
    each, parsing, large = 1000 * placed.cpu / size.placed, parsing_seconds(size), size.nodes >= LARGE
    sizes = f"question {placed.question >> 10} KiB, answer {placed.answer >> 10} KiB"
    return [
        Figure(name=f"ready, {size}", value=process.ready, unit="s", note=f"wanted: {READY_S:g}"),
        Figure(
            name="  its CPU / parsing all objects",
            value=process.cpu / parsing,
            unit="x",
            limit=STARTING if large else None,
            note=f"{process.cpu:.2f} s, parsing {parsing:.2f}",
        ),
        Figure(name="filter p99", value=filters.p99, unit="ms", note=f"wanted: {FILTER_MS:g}; {sizes}"),
        Figure(
            name="  p50 / parsing all objects",
            value=filters.p50 / 1000 / parsing,
            unit="x",
            limit=FILTERING if large else None,
            note=str(filters),
        ),
        Figure(name="  the first of its kind", value=1000 * placed.filters[0], unit="ms"),
        Figure(name="bind p99", value=binds.p99, unit="ms", note=str(binds)),
        Figure(name="what /healthz waits meanwhile, p99", value=pings.p99, unit="ms", note=str(pings)),
        Figure(name="pods placed a second", value=size.placed / placed.took, note=f"{each:.1f} ms of a CPU a pod"),
        Figure(name="resident memory, ready", value=process.resident, unit="MiB", limit=RESIDENT_MIB),
        Figure(name="  its peak", value=peak, unit="MiB", limit=RESIDENT_MIB),
    ]


def parsing_seconds(size: Size) -> float:
    """Seconds of this process's CPU that ``json.loads`` takes for all objects."""
    family = nvidia()
    texts = (json.dumps(one) for one in (*nodes(size.nodes, family), *bound_pods(size, family, random.Random(1))))
    total = 0.0
    for text in texts:
        began = time.process_time()
        json.loads(text)
        total += time.process_time() - began
    return total
