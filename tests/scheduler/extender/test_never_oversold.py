"""Whatever comes and goes, at once or during a gap: no device is given out beyond what it has, by its family."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_plugin.model.views import node_view, pod_view
from hami_plugin.protocol.nodes import DeviceInfo, encode_legacy
from hami_plugin.scheduler.engine.node_info import read_node
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.pods import nvidia, of_vendor
from tests.support.scale import examples
from tests.support.scheduling import ask, cards, daemons, schedule, serving, until

FAMILIES = (*nvidia(), *of_vendor("hygon", {}))
NODES = {"n1": 1, "n2": 2}

WISH = st.fixed_dictionaries(
    {
        "count": st.integers(1, 2),
        "memory": st.sampled_from([0, 1000, 4000, 10_000]),
        "cores": st.sampled_from([0, 30, 100]),
    }
)
POD = st.lists(st.tuples(st.sampled_from(FAMILIES), WISH, st.booleans()), min_size=1, max_size=3)
STEP = st.one_of(
    st.tuples(st.just("come"), st.lists(POD, min_size=1, max_size=5)),
    st.tuples(st.just("decide"), POD),
    st.tuples(st.sampled_from(["end", "delete"]), st.integers(0, 20)),
    st.tuples(st.sampled_from(["gap", "restart"]), st.none()),
)


def manifest(name, wishes):
    """A pod with a container for each wish, some of them init containers."""

    def container(number):
        family, wish, _init = wishes[number]
        names = family.resources
        asked = {names.count: wish["count"], names.memory: wish["memory"], names.cores: wish["cores"]}
        limits = {resource: str(amount) for resource, amount in asked.items() if amount}
        return {"name": f"c{number}", "resources": {"limits": limits}}

    inits = [container(n) for n, (*_, init) in enumerate(wishes) if init]
    others = [container(n) for n, (*_, init) in enumerate(wishes) if not init] or [{"name": "main"}]
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"initContainers": inits, "containers": others}}


def register(node, devices):
    other = [
        DeviceInfo(id=f"{node}-d{n}", index=n, count=4, devmem=10_000, devcore=100, type="DCU-Toy", health=True)
        for n in range(devices)
    ]
    (one, second) = (family.rules.annotations.register for family in FAMILIES)
    return {one: cards(node, devices, slots=3), second: encode_legacy(other)}


class Walk:
    """A cluster, its scheduler, and what is done to them."""

    def __init__(self, server, folder):
        self.server = server
        self.folder = folder
        self.names = count()
        self.stack = AsyncExitStack()

    async def start(self):
        self.service = await self.stack.enter_async_context(serving(self.server, self.folder, families=FAMILIES))
        await until(lambda: len(self.service.cache.nodes.node_infos) == len(NODES))

    async def take(self, what, detail):
        match what:
            case "come":
                pods = [self.server.create_pod(manifest(f"p{next(self.names)}", wishes)) for wishes in detail]
                await asyncio.gather(*(schedule(self.server, self.service, pod) for pod in pods))
            case "decide":
                await self.service.filter(
                    ask(self.server, self.server.create_pod(manifest(f"p{next(self.names)}", detail)))
                )
            case "end" | "delete":
                if there := self.server.pods():
                    meta = there[detail % len(there)]["metadata"]
                    if what == "end":
                        self.server.set_phase("team", meta["name"], "Succeeded")
                    else:
                        self.server.delete_pod("team", meta["name"])
            case "gap":
                self.server.compact()
                self.server.drop_watches()
            case "restart":
                await self.stack.aclose()
                self.stack = AsyncExitStack()
                await self.start()

    def check(self):
        """By what stands at the API server alone."""
        pods = [pod_view(pod) for pod in self.server.pods()]
        for name in NODES:
            surveyed = read_node(node_view(self.server.node(name)), FAMILIES, pods)
            assert not surveyed.problems
            for state in surveyed.node_info.states:
                assert state.slots <= state.info.count, state
                assert state.memory <= state.info.devmem, state
                assert state.cores <= state.info.devcore, state


async def walk(steps):
    with tempfile.TemporaryDirectory() as folder:
        async with SimulatedApiServer(bookmark_seconds=0.1) as server, daemons(server):
            for name, devices in NODES.items():
                server.create_node(name)
                server.annotate_node(name, register(name, devices))
            one = Walk(server, Path(folder))
            await one.start()
            for what, detail in steps:
                await one.take(what, detail)
                one.check()
            await agrees(one)
            await one.stack.aclose()


async def agrees(one):
    """In the end the ledger is what a new process would read."""

    def held(service):
        return {uid: (entry.node, entry.held.keys()) for uid, entry in service.cache.pods.index.entries.items()}

    async with serving(one.server, one.folder, families=FAMILIES) as other:
        await until(lambda: held(one.service) == held(other))


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(st.lists(STEP, min_size=3, max_size=12))
def test_no_device_is_ever_given_out_beyond_what_it_has(steps):
    asyncio.run(walk(steps))
