"""Two schedulers that decide at once, each before it hears of the other: what is the last is given to one of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from hami_plugin.cluster.client import connect_wide
from hami_plugin.errors import ClusterError
from hami_plugin.model.views import node_view, pod_view
from hami_plugin.process.concurrency import Backoff
from hami_plugin.protocol.keys import (
    ASSIGNED_NODE,
    ASSIGNED_TIME,
    BIND_LOCK,
    BIND_PHASE,
    NODE_LOCK,
    PHASE_ALLOCATING,
    PHASE_FAILED,
    PHASE_SUCCESS,
)
from hami_plugin.protocol.nodes import owned_by
from hami_plugin.scheduler.engine.node_info import contested_parts, pod_info, read_idle_node, read_node, subtract_held
from hami_plugin.scheduler.extender.app import Scheduler, configured
from hami_plugin.scheduler.extender.extender import Decisions, Extender, Options
from hami_plugin.scheduler.extender.metrics import SchedulerMetrics
from hami_plugin.sdk import LockRule
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.objects import RESOURCES, Filter, ObjectStore
from tests.support.builders import changed
from tests.support.memory import MemoryCluster
from tests.support.pods import of_vendor
from tests.support.scale import spread
from tests.support.scheduling import (
    COUNT,
    FAMILIES,
    FAMILY,
    HURRY,
    KEYS,
    RHYTHM,
    add_node,
    annotations,
    ask,
    binding,
    cards,
    daemons,
    filtered,
    manifest,
    schedule,
    serving,
    until,
)

SEEDS = range(40)
NOON = datetime(2026, 8, 21, 12, tzinfo=UTC)
UNNAMED = "toy.io/lock"
OPTIONS = Options(
    resync_period=0.05,
    lock_timeout=120.0,
    watch_timeout=60.0,
    pace=Backoff(first=0.0001, cap=0.001),
    stop_timeout=20.0,
)
NEURON = of_vendor("awsneuron", {})


class Unhurried(MemoryCluster):
    """Every call takes a while before and after it counts, and every watch is late: by chance, and by the seed."""

    def __init__(self, store: ObjectStore, chance: random.Random, lag: int) -> None:
        super().__init__(store)
        self.chance = chance
        self.lag = lag

    async def dawdle(self, most: int) -> None:
        for _ in range(self.chance.randrange(most)):
            await asyncio.sleep(0)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("get_pod", "get_node", "patch_pod", "patch_node", "bind"):
            return found

        async def called(*args: Any, **more: Any) -> Any:
            await self.dawdle(12)
            answer = await found(*args, **more)
            await self.dawdle(12)
            return answer

        return called

    async def _follow(self, plural: str, view: Any, feed: Any) -> Any:
        seen = self.store.version.value
        feed.replace([view(item) for _, item in self.store.select(Filter(resource=RESOURCES[plural]))])
        while True:
            version = self.store.version.version
            for change in self.store.changes(seen):
                await self.dawdle(self.lag)
                seen = change.version
                if change.resource == plural and change.after:
                    feed.update(view(change.after))
                elif change.resource == plural:
                    feed.delete(view(change.before))
            await self.store.version.changed(version)


async def serve(store: ObjectStore) -> None:
    """The nodes' agents: what is bound is served, and HAMi's lock released."""
    done: set[str] = set()
    while True:
        version = store.version.version
        for (namespace, name), pod in store.select(Filter(resource=RESOURCES["pods"])):
            node = pod["spec"].get("nodeName")
            if not node or pod["metadata"]["uid"] in done:
                continue
            done.add(pod["metadata"]["uid"])
            store.patch(("pods", namespace, name), {"metadata": {"annotations": {BIND_PHASE: PHASE_SUCCESS}}})
            lock = annotations(store.get("nodes", "", node)).get(NODE_LOCK, "")
            gone = {UNNAMED: None} | ({NODE_LOCK: None} if owned_by(lock, namespace, name) else {})
            store.patch(("nodes", "", node), {"metadata": {"annotations": gone}})
        await store.version.changed(version)


@asynccontextmanager
async def schedulers(
    store: ObjectStore, chance: random.Random, families: Sequence[Any], *, lag: int, count: int = 2, **more: Any
):
    """So many schedulers over the same objects, each of which hears of the others late."""
    services = [Extender(Unhurried(store, chance, lag), families, OPTIONS, **more) for _ in range(count)]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(service.run(stop)) for service in services]
    agents = asyncio.create_task(serve(store))
    await until(lambda: not any(service.problems() for service in services))
    try:
        yield services
    finally:
        stop.set()
        agents.cancel()
        await asyncio.gather(*tasks)


def node(store: ObjectStore, name: str, status: dict[str, str], **texts: str) -> None:
    meta = {"name": name, "annotations": texts}
    store.create(RESOURCES["nodes"], "", {"metadata": meta, "status": {"capacity": status, "allocatable": status}})


async def scheduled(store: ObjectStore, service: Extender, name: str, nodes: Sequence[str]) -> str:
    """What a kube-scheduler does until the pod is bound, or fits nowhere."""
    patience = 5
    for _try in range(40):
        pod = store.get("pods", "team", name)
        answer = await service.filter({"Pod": pod, "NodeNames": list(nodes)})
        if answer["Error"]:
            continue
        if not answer["NodeNames"]:  # maybe another's decision is in the way that is about to fail
            patience -= 1
            if not patience:
                return ""
            await asyncio.sleep(0.01)
            continue
        (chosen,) = answer["NodeNames"]
        if not (await service.bind(binding(pod, chosen)))["Error"]:
            return str(chosen)
    raise AssertionError(f"{name} was neither bound nor refused")


def check(store: ObjectStore, families: Sequence[Any]) -> int:
    """By what stands at the API server alone: nothing that is bound has what another has. How many are bound."""
    pods = [pod_view(item) for _, item in store.select(Filter(resource=RESOURCES["pods"]))]
    bound = [pod for pod in pods if pod.node]
    for (_, name), item in store.select(Filter(resource=RESOURCES["nodes"])):
        surveyed = read_node(node_view(item), families, bound)
        for state in surveyed.node_info.states:
            assert state.slots <= state.info.count, state
            assert state.memory <= state.info.devmem, state
        entries = [found for pod in bound if pod.node == name and (found := pod_info(pod, families))]
        idle = read_idle_node(node_view(item), families).node_info
        for at, one in enumerate(entries):
            others = [other.held for other in entries[at + 1 :]]
            assert contested_parts(idle, families, one.held, subtract_held(idle, families, others)) == ""
    return len(bound)


@pytest.mark.difference("D-402")
@pytest.mark.scenario("A9", "P4")
@pytest.mark.parametrize("seed", spread(SEEDS, part=4))
async def test_the_last_share_goes_to_one_of_two_pods_that_two_schedulers_decide_at_once(seed):
    chance, store = random.Random(seed), ObjectStore()
    node(store, "n1", {COUNT: "10"}, **{KEYS.register: cards("n1", 1)})
    async with schedulers(store, chance, FAMILIES, lag=chance.choice((1, 20, 300))) as services:
        names = ["a", "b"]
        for name in names:
            store.create(RESOURCES["pods"], "team", manifest(name, memory=6000))
        nodes = await asyncio.gather(
            *(scheduled(store, one, name, ["n1"]) for one, name in zip(services, names, strict=True))
        )

        assert sorted(nodes) == ["", "n1"]
        assert check(store, FAMILIES) == 1


@pytest.mark.parametrize("seed", spread(SEEDS, part=4))
async def test_cores_of_a_device_without_a_lock_of_its_own_are_given_once(seed):
    """No agent of this family releases a lock, and its cores are bits of a mask."""
    chance, store = random.Random(seed), ObjectStore()
    node(store, "n1", {"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "2"})
    wish = {"aws.amazon.com/neuroncore": "1"}
    spec = {"containers": [{"name": "main", "resources": {"limits": wish}}]}
    async with schedulers(store, chance, NEURON, lag=chance.choice((1, 20, 300)), count=3) as services:
        for name in "abc":
            store.create(RESOURCES["pods"], "team", {"metadata": {"name": name}, "spec": spec})
        nodes = await asyncio.gather(
            *(scheduled(store, one, name, ["n1"]) for one, name in zip(services, "abc", strict=True))
        )

        assert sorted(nodes) == ["", "n1", "n1"]
        assert check(store, NEURON) == 2
        assert BIND_LOCK not in annotations(store.get("nodes", "", "n1"))


@pytest.mark.parametrize("seed", spread(range(12), part=4))
async def test_many_pods_of_three_schedulers_fill_the_nodes_and_no_share_twice(seed):
    chance, store = random.Random(seed), ObjectStore()
    for name in ("n1", "n2"):
        node(store, name, {COUNT: "20"}, **{KEYS.register: cards(name, 2, slots=3)})
    async with schedulers(store, chance, FAMILIES, lag=100, count=3) as services:
        names = [f"p{number}" for number in range(18)]
        for name in names:
            init = chance.random() < 0.3
            pod = manifest(name, memory=chance.choice((2000, 3000, 5000)))
            if init:
                pod["spec"] = {"initContainers": pod["spec"]["containers"], "containers": [{"name": "main"}]}
            store.create(RESOURCES["pods"], "team", pod)
        await asyncio.gather(*(scheduled(store, services[at % 3], name, ["n1", "n2"]) for at, name in enumerate(names)))

        assert check(store, FAMILIES) >= 8


DECIDED = (ASSIGNED_NODE, ASSIGNED_TIME, FAMILY.rules.annotations.to_allocate, FAMILY.rules.annotations.allocated)


async def bound_by(store: ObjectStore, service: Extender, name: str, nodes: Sequence[str]) -> list[str]:
    """What a kube-scheduler does that believes to lead, until the pod is bound by whomever. What it was refused for."""
    refused = []
    for _try in range(40):
        pod = store.get("pods", "team", name)
        if pod["spec"].get("nodeName"):
            return refused
        answer = await service.filter({"Pod": pod, "NodeNames": list(nodes)})
        if answer.get("NodeNames"):
            answer = await service.bind(binding(pod, answer["NodeNames"][0]))
        refused += [answer["Error"]]
    raise AssertionError(f"{name} was not bound: {refused}")


def check_decision(store: ObjectStore, name: str) -> None:
    """The pod is at the node of its decision and has devices of that node; nothing of it was written after the bind."""
    pod = store.get("pods", "team", name)
    node, said = pod["spec"]["nodeName"], annotations(pod)
    assert said[ASSIGNED_NODE] == pod["metadata"]["labels"][ASSIGNED_NODE] == node
    assert said[FAMILY.rules.annotations.allocated].startswith(f"{node}-g")
    (bound,) = [
        change.after
        for change in store.changes(0)
        if change.resource == "pods"
        and change.after
        and change.after["metadata"]["uid"] == pod["metadata"]["uid"]
        and change.after["spec"].get("nodeName")
        and not change.before["spec"].get("nodeName")
    ]
    assert annotations(bound)[BIND_PHASE] == PHASE_ALLOCATING
    assert {key: annotations(bound)[key] for key in DECIDED} == {key: said[key] for key in DECIDED}


@pytest.mark.scenario("A9", "P4")
@pytest.mark.parametrize("nodes", [("n1", "n2"), ("n1", "n1")], ids=["two nodes", "one node"])
@pytest.mark.parametrize("seed", spread(SEEDS, part=4))
async def test_a_pod_that_two_schedulers_decide_and_bind_at_once_is_bound_with_the_decision_of_one(seed, nodes):
    chance, store = random.Random(seed), ObjectStore()
    for name in sorted(set(nodes)):
        node(store, name, {COUNT: "20"}, **{KEYS.register: cards(name, 2)})
    async with schedulers(store, chance, FAMILIES, lag=chance.choice((1, 20, 300))) as services:
        for name in ("a", "rival"):
            store.create(RESOURCES["pods"], "team", manifest(name, memory=6000))
        others = scheduled(store, services[0], "rival", sorted(set(nodes)))
        asked = (bound_by(store, one, "a", [where]) for one, where in zip(services, nodes, strict=True))
        await asyncio.gather(others, *asked)
        await until(lambda: annotations(store.get("pods", "team", "a"))[BIND_PHASE] != PHASE_ALLOCATING)
        await asyncio.gather(*(asyncio.wait(one._unfinished) for one in services if one._unfinished))

        check_decision(store, "a")
        assert annotations(store.get("pods", "team", "a"))[BIND_PHASE] == PHASE_SUCCESS
        assert check(store, FAMILIES) == 2


async def test_a_scheduler_that_is_killed_before_its_decision_is_written_gives_nothing_away_twice(tmp_path):
    """kube-scheduler asks the next one to bind what the first one has answered, and another pod has the share."""
    async with SimulatedApiServer() as server:
        add_node(server)
        exclusive = {name: server.create_pod(manifest(name, cores=100)) for name in ("a", "b")}
        server.hang("PATCH .*/pods/a", count=1)
        async with serving(server, tmp_path, replace(HURRY, stop_timeout=0.0)) as killed:
            assert (await killed.filter(ask(server, exclusive["a"])))["NodeNames"] == ["n1"]
        server.heal()

        async with serving(server, tmp_path) as service, daemons(server):
            await until(lambda: service.cache.nodes.node_infos)
            assert ASSIGNED_NODE not in annotations(server.pod("team", "a"))
            assert await schedule(server, service, exclusive["b"]) == "n1"

            answer = await service.bind(binding(exclusive["a"], "n1"))

            assert "was given devices on node (none)" in answer["Error"]
            assert "nodeName" not in server.pod("team", "a")["spec"]


@pytest.mark.parametrize("seed", spread(SEEDS, part=4))
async def test_a_scheduler_binds_what_another_decided_before_its_watch_has_shown_it(seed):
    """The leader has changed between filter and bind; and an older decision of its own is all that it remembers."""
    chance, store, clock = random.Random(seed), ObjectStore(), [NOON]
    for name in ("n1", "n2"):
        node(store, name, {COUNT: "20"}, **{KEYS.register: cards(name, 2)})
    async with schedulers(store, chance, FAMILIES, lag=2000, now=lambda: clock[0]) as (former, later):
        pod = store.create(RESOURCES["pods"], "team", manifest("a", memory=6000))
        if where := ("", "n1", "n2")[seed % 3]:
            assert (await filtered(later, {"Pod": pod, "NodeNames": [where]}))["NodeNames"] == [where]
            pod = store.get("pods", "team", "a")
            clock[0] += timedelta(seconds=2)  # a decision is known by its second
        assert (await filtered(former, {"Pod": pod, "NodeNames": ["n2"]}))["NodeNames"] == ["n2"]

        assert await later.bind(binding(pod, "n2")) == {"Error": ""}

        check_decision(store, "a")


@pytest.mark.parametrize("seed", spread(SEEDS, part=4))
async def test_a_lock_of_the_same_second_that_names_nobody_is_not_ones_own(seed):
    """Such a lock is told from another's by its text alone, and both schedulers would write the same."""
    chance, store, now = random.Random(seed), ObjectStore(), datetime(2026, 8, 21, 10, tzinfo=UTC)
    families = [changed(FAMILY, lock=LockRule(annotation=UNNAMED, named=False))]
    node(store, "n1", {COUNT: "10"}, **{KEYS.register: cards("n1", 1)})
    async with schedulers(store, chance, families, lag=chance.choice((1, 20)), now=lambda: now) as services:
        for name in "ab":
            store.create(RESOURCES["pods"], "team", manifest(name, memory=6000))
        await asyncio.gather(*(scheduled(store, one, name, ["n1"]) for one, name in zip(services, "ab", strict=True)))

        assert check(store, families) == 1


class Gated(MemoryCluster):
    """One scheduler's calls, of which some stop at a gate before they count, and some are refused."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.gates: dict[str, asyncio.Event] = {}
        self.arrived: dict[str, asyncio.Event] = {}

    def close(self, call: str) -> None:
        self.gates[call], self.arrived[call] = asyncio.Event(), asyncio.Event()

    async def patch_pod(self, *args: Any, **more: Any) -> Any:
        await self._pass("patch_pod")
        return await super().patch_pod(*args, **more)

    async def patch_node(self, *args: Any, **more: Any) -> Any:
        await self._pass("patch_node")
        return await super().patch_node(*args, **more)

    async def bind(self, *args: Any, **more: Any) -> Any:
        await self._pass("bind")
        return await super().bind(*args, **more)

    async def _pass(self, call: str) -> None:
        if gate := self.gates.get(call):
            self.arrived[call].set()
            await gate.wait()


@asynccontextmanager
async def gated(store: ObjectStore, clocks: Sequence[Any], *, families: Sequence[Any] = FAMILIES):
    """Schedulers over the same objects, each with a clock and gates of its own. No agent releases anything."""
    clusters = [Gated(store) for _ in clocks]
    services = [
        Extender(cluster, families, OPTIONS, now=clock) for cluster, clock in zip(clusters, clocks, strict=True)
    ]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(service.run(stop)) for service in services]
    await until(lambda: not any(service.problems() or not service.cache.nodes.node_infos for service in services))
    try:
        yield list(zip(services, clusters, strict=True))
    finally:
        for cluster in clusters:
            for gate in cluster.gates.values():
                gate.set()
        stop.set()
        await asyncio.gather(*tasks)


REFUSED = ClusterError("a webhook denies it", status=422)


async def decided_by(store: ObjectStore, service: Extender, name: str, node: str = "n1") -> Any:
    """A pod with a decision that fits the node only once beside another's, which all schedulers have seen."""
    pod = store.create(RESOURCES["pods"], "team", manifest(name, memory=6000))
    assert (await filtered(service, {"Pod": pod, "NodeNames": [node]}))["NodeNames"] == [node]
    return store.get("pods", "team", name)


async def rivals(store: ObjectStore, services: Sequence[Extender]) -> tuple[Any, Any]:
    """Two pods that two schedulers gave the same share, since neither had heard of the other."""
    a = await decided_by(store, services[0], "a")
    b = store.create(RESOURCES["pods"], "team", manifest("b", memory=6000))
    copied = {key: annotations(a)[key] for key in DECIDED}
    b = store.patch(("pods", "team", "b"), {"metadata": {"annotations": copied}})
    await until(lambda: all(len(one.cache.pods.index.on("n1")) == 2 for one in services))
    return a, b


@pytest.mark.difference("D-403")
@pytest.mark.scenario("A9", "P4")
async def test_a_bind_that_fails_leaves_the_lock_to_another_scheduler_that_binds_the_same_pod():
    """Otherwise a third pod gets the node, and the share, while the second bind of the first is on its way."""
    store = ObjectStore()
    node(store, "n1", {COUNT: "10"}, **{KEYS.register: cards("n1", 1)})
    clocks = [lambda at=at: NOON + timedelta(seconds=at) for at in (0, 2, 4)]
    async with gated(store, clocks) as ((failing, its), (slow, other), (third, _)):
        a, b = await rivals(store, [failing, slow, third])
        its.close("patch_pod")
        its.refuses["patch_pod"] = [REFUSED] * 9
        first = asyncio.create_task(failing.bind(binding(a, "n1")))
        await its.arrived["patch_pod"].wait()  # it has the lock, and is about to mark the pod
        other.close("bind")
        second = asyncio.create_task(slow.bind(binding(a, "n1")))
        await other.arrived["bind"].wait()  # it has taken the lock over, and found the share free
        its.gates["patch_pod"].set()
        assert "denies it" in (await first)["Error"]

        last = asyncio.create_task(third.bind(binding(b, "n1")))
        await asyncio.sleep(0.05)
        assert not last.done()
        other.gates["bind"].set()
        assert await second == {"Error": ""}
        store.patch(("nodes", "", "n1"), {"metadata": {"annotations": {NODE_LOCK: None}}})  # as its agent does

        assert "another scheduler was faster" in (await last)["Error"]
        assert check(store, FAMILIES) == 1


@pytest.mark.difference("D-403")
@pytest.mark.scenario("A9", "P4")
async def test_a_bind_that_fails_before_it_marks_the_pod_puts_back_the_lock_that_it_took_over():
    store = ObjectStore()
    node(store, "n1", {COUNT: "10"}, **{KEYS.register: cards("n1", 1)})
    clocks = [lambda at=at: NOON + timedelta(seconds=at) for at in (0, 2, 4)]
    async with gated(store, clocks) as ((slow, its), (failing, other), (third, _)):
        a, b = await rivals(store, [slow, failing, third])
        its.close("bind")
        first = asyncio.create_task(slow.bind(binding(a, "n1")))
        await its.arrived["bind"].wait()
        before = annotations(store.get("nodes", "", "n1"))[NODE_LOCK]
        await until(lambda: failing.cache.pods.index.entries[a["metadata"]["uid"]].pod.annotations.get(BIND_PHASE))
        other.refuses["patch_pod"] = [REFUSED] * 9
        assert "denies it" in (await failing.bind(binding(a, "n1")))["Error"]
        assert annotations(store.get("nodes", "", "n1"))[NODE_LOCK] == before

        last = asyncio.create_task(third.bind(binding(b, "n1")))
        await asyncio.sleep(0.05)
        assert not last.done()
        its.gates["bind"].set()
        assert await first == {"Error": ""}
        store.patch(("nodes", "", "n1"), {"metadata": {"annotations": {NODE_LOCK: None}}})

        assert "another scheduler was faster" in (await last)["Error"]
        assert check(store, FAMILIES) == 1


@pytest.mark.difference("D-403")
@pytest.mark.scenario("A9", "P4")
async def test_two_binds_of_the_same_pod_within_one_second_never_share_a_lock():
    """Both would write the same text, and neither could tell whose it is."""
    store = ObjectStore()
    node(store, "n1", {COUNT: "10"}, **{KEYS.register: cards("n1", 1)})
    async with gated(store, [lambda: NOON, lambda: NOON]) as ((failing, its), (waiting, other)):
        a, _ = await rivals(store, [failing, waiting])
        its.close("patch_pod")
        its.refuses["patch_pod"] = [REFUSED] * 9
        first = asyncio.create_task(failing.bind(binding(a, "n1")))
        await its.arrived["patch_pod"].wait()
        other.close("patch_pod")
        second = asyncio.create_task(waiting.bind(binding(a, "n1")))
        await asyncio.sleep(0.05)
        assert not other.arrived["patch_pod"].is_set(), "it waits for the lock"
        its.gates["patch_pod"].set()
        assert "denies it" in (await first)["Error"]
        await other.arrived["patch_pod"].wait()

        assert owned_by(annotations(store.get("nodes", "", "n1"))[NODE_LOCK], "team", "a")
        other.gates["patch_pod"].set()
        assert await second == {"Error": ""}


@pytest.mark.scenario("A9")
async def test_a_lock_whose_write_had_no_answer_is_released_once_nobody_else_can_bind_the_pod():
    store = ObjectStore()
    node(store, "n1", {COUNT: "10"}, **{KEYS.register: cards("n1", 1)})
    async with gated(store, [lambda: NOON]) as ((service, cluster),):
        a = await decided_by(store, service, "a")
        patch, lost = cluster.patch_node, []

        async def without_answer(*args: Any, **more: Any) -> Any:
            answer = await patch(*args, **more)
            if lost:
                return answer
            lost.append(annotations(store.get("nodes", "", "n1"))[NODE_LOCK])
            raise ClusterError("connection reset")

        cluster.patch_node = without_answer
        assert "connection reset" in (await service.bind(binding(a, "n1")))["Error"]

        assert owned_by(*lost, "team", "a")
        assert annotations(store.get("pods", "team", "a"))[BIND_PHASE] == PHASE_FAILED
        assert NODE_LOCK not in annotations(store.get("nodes", "", "n1"))


async def test_fifty_binds_at_once_are_all_made_and_no_share_is_given_twice(tmp_path):
    async with SimulatedApiServer() as server, daemons(server):
        for number in range(5):
            add_node(server, f"n{number}", counted=40)
        async with serving(server, tmp_path, HURRY) as service:
            await until(lambda: len(service.cache.nodes.node_infos) == 5)
            pods = [server.create_pod(manifest(f"p{number}", memory=1000)) for number in range(50)]
            chosen = []
            for pod in pods:
                chosen += (await service.filter(ask(server, pod)))["NodeNames"]

            answers = await asyncio.gather(
                *(service.bind(binding(pod, node)) for pod, node in zip(pods, chosen, strict=True))
            )

            assert {answer["Error"] for answer in answers} == {""}
            assert check(server.store, FAMILIES) == 50


@asynccontextmanager
async def application(server: SimulatedApiServer, folder: Path):
    """A whole scheduler, with its port, as the command runs it: who asks there, and what it decides with."""
    kubeconfig = server.write_kubeconfig(folder)
    registry = CollectorRegistry()
    configuration = configured({"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}, {})
    async with connect_wide("toy-scheduler", kubeconfig=kubeconfig, timing=RHYTHM, environ={}) as cluster:
        service = Extender(cluster, FAMILIES, HURRY)
        metrics = SchedulerMetrics(registry, version="")
        process, stop = Scheduler(configuration, Decisions(service), metrics, registry), asyncio.Event()
        task = asyncio.create_task(process.run(stop))
        await until(lambda: not service.problems() and process.server.port)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{process.server.port}") as session:
                yield session, service
        finally:
            stop.set()
            await task


async def test_two_scheduler_processes_give_the_last_share_to_one_pod_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr("hami_plugin.scheduler.extender.app.asyncio.sleep", _no_linger(asyncio.sleep))
    rounds, twice = 25, 0
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(SimulatedApiServer())
        add_node(server)
        both = [await stack.enter_async_context(application(server, tmp_path / str(number))) for number in range(2)]
        apps, services = zip(*both, strict=True)
        await stack.enter_async_context(daemons(server))
        for number in range(rounds):
            pods = [server.create_pod(manifest(f"{side}{number}", memory=6000)) for side in "ab"]

            async def posted(session: aiohttp.ClientSession, path: str, body: Any) -> Any:
                async with session.post(path, json=body) as answer:
                    return await answer.json()

            chosen = await asyncio.gather(
                *(posted(app, "/filter", ask(server, pod)) for app, pod in zip(apps, pods, strict=True))
            )
            placed = [(app, pod) for app, pod, one in zip(apps, pods, chosen, strict=True) if one["NodeNames"]]
            twice += len(placed) == 2
            bound = await asyncio.gather(*(posted(app, "/bind", binding(pod, "n1")) for app, pod in placed))

            assert sum(not one["Error"] for one in bound) == 1
            assert check(server.store, FAMILIES) == 1
            for pod in pods:
                server.delete_pod("team", pod["metadata"]["name"])
            server.annotate_node("n1", {NODE_LOCK: None})
            await until(lambda: not any(one.cache.pods.index.entries for one in services))
    assert twice > rounds // 2


@pytest.mark.scenario("A9", "P4")
async def test_two_scheduler_processes_that_are_asked_about_the_same_pod_bind_it_with_the_decision_of_one(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("hami_plugin.scheduler.extender.app.asyncio.sleep", _no_linger(asyncio.sleep))
    rounds, refusals = 25, []
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(SimulatedApiServer())
        for name in ("n1", "n2"):
            add_node(server, name, count=2)
        apps = [
            (await stack.enter_async_context(application(server, tmp_path / str(number))))[0] for number in range(2)
        ]
        await stack.enter_async_context(daemons(server))

        async def posted(session: aiohttp.ClientSession, path: str, body: Any) -> Any:
            async with session.post(path, json=body) as answer:
                return await answer.json()

        async def asked(session: aiohttp.ClientSession, name: str, node: str) -> None:
            """As a kube-scheduler that believes to lead, until the pod is bound."""
            while not (pod := server.pod("team", name))["spec"].get("nodeName"):
                answer = await posted(session, "/filter", {"Pod": pod, "Nodes": None, "NodeNames": [node]})
                if answer.get("NodeNames"):
                    answer = await posted(session, "/bind", binding(pod, node))
                if answer["Error"]:
                    refusals.append(answer["Error"])

        for number in range(rounds):
            server.create_pod(manifest(name := f"p{number}", memory=6000))
            async with asyncio.timeout(60):
                await asyncio.gather(*(asked(app, name, node) for app, node in zip(apps, ("n1", "n2"), strict=True)))
            await until(lambda name=name: annotations(server.pod("team", name))[BIND_PHASE] != PHASE_ALLOCATING)

            check_decision(server.store, name)
            assert annotations(server.pod("team", name))[BIND_PHASE] == PHASE_SUCCESS
            assert check(server.store, FAMILIES) == 1
            server.delete_pod("team", name)
    assert any("another scheduler" in why for why in refusals), refusals


def _no_linger(sleep):
    return lambda seconds, *rest: sleep(min(seconds, 0.05), *rest)
