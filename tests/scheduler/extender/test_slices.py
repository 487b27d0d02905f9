"""A filter over many nodes is worked on in slices: others are answered meanwhile, and what changes meanwhile counts."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import pytest

from hami_plugin.model.views import NodeView, PodView, pod_view
from hami_plugin.process.concurrency import run_in_slices, run_without_pauses
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine import filter as engine_filter
from hami_plugin.scheduler.engine.devices import DevicePool, NodeInfo, idle_state
from hami_plugin.scheduler.engine.filter import ClusterSnapshot, FilterResult, filter_nodes_pausing
from hami_plugin.scheduler.engine.node_info import pod_info
from hami_plugin.scheduler.extender import extender as extender_module
from hami_plugin.scheduler.extender.cache import NodeCache, PodCache
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.extender import listening
from tests.support.scheduling import (
    FAMILIES,
    HURRY,
    KEYS,
    add_node,
    annotations,
    ask,
    binding,
    manifest,
    schedule,
    serving,
    until,
)

NODES = 30
VERSIONS = (("a", "9"), ("b", "5"), ("c", "7"))


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        for number in range(NODES):
            add_node(server, f"n{number:02}")
        yield server


def slowly(monkeypatch):
    """Every slice is over after one step, as if each step took long."""
    ticks = count()
    monkeypatch.setattr(
        extender_module, "run_in_slices", lambda work: run_in_slices(work, clock=lambda: float(next(ticks)))
    )


def test_no_bind_takes_a_list_of_pods_for_seen_before_all_of_it_is():
    """A bind waits until everything up to its own pod's version is known: a list is in no order of versions."""
    pods = PodCache(FAMILIES)
    listed = [PodView(uid=name, namespace="team", name=name, resource_version=version) for name, version in VERSIONS]
    taking = pods.feed.replacing(listed)

    for _ in listed:
        next(taking)
        assert (pods.shown.value, pods.listed.value) == (0, False)
    run_without_pauses(taking)

    assert (pods.shown.value, pods.listed.value) == (9, True)


def test_a_list_of_nodes_counts_once_all_of_it_is_known():
    nodes = NodeCache(FAMILIES, lambda: datetime.now(UTC))
    nodes.feed.replace([NodeView(name="gone"), NodeView(name="n0")])
    nodes.listed.set(False)
    taking = nodes.feed.replacing([NodeView(name="n0"), NodeView(name="n1")])

    next(taking)
    assert (nodes.live("gone").closed, nodes.live("n1").closed, nodes.listed.value) == (True, True, False)
    run_without_pauses(taking)

    assert (nodes.live("n1").closed, nodes.listed.value) == (False, True)


async def test_a_long_filter_gives_others_their_turn_once_for_each_slice():
    steps, turns = 40, []

    def work():
        for _ in range(steps):
            yield
        return "done"

    async def other():
        while True:
            turns.append(len(turns))
            await asyncio.sleep(0)

    clock = count(step=0.002)
    beside = asyncio.create_task(other())
    assert await run_in_slices(work(), slice_s=0.005, clock=lambda: next(clock)) == "done"
    beside.cancel()

    assert steps // 4 <= len(turns) <= steps // 2


@pytest.mark.scenario("X3")
async def test_probes_are_answered_while_a_filter_looks_at_many_nodes(server, tmp_path, monkeypatch):
    slowly(monkeypatch)
    answered, at = [], []
    tried = engine_filter.node_info_for
    monkeypatch.setattr(engine_filter, "node_info_for", lambda *asked: at.append(len(answered)) or tried(*asked))
    async with serving(server, tmp_path) as service, listening(service) as rig:
        await until(lambda: len(service.cache.nodes.node_infos) == NODES)

        async def probe():
            while True:
                answered.append(await rig.get("/healthz"))

        probing = asyncio.create_task(probe())
        pod = server.create_pod(manifest("a"))
        status, answer = await rig.post("/filter", ask(server, pod))
        probing.cancel()

    assert (status, len(answer["NodeNames"])) == (200, 1)
    assert at[NODES - 1] > at[0]


async def test_two_filters_at_once_never_take_the_same_share(server, tmp_path, monkeypatch):
    slowly(monkeypatch)
    async with serving(server, tmp_path) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == NODES)
        pods = [server.create_pod(manifest(f"p{n}", memory=6000)) for n in range(NODES + 5)]

        answers = await asyncio.gather(*(service.filter(ask(server, pod)) for pod in pods))

    chosen = [answer["NodeNames"][0] for answer in answers if answer["NodeNames"]]
    assert len(chosen) == len(set(chosen)) == NODES


@pytest.mark.parametrize("when", ["its node goes", "its node is taken"])
async def test_what_changes_while_nodes_are_looked_at_is_looked_at_again(server, tmp_path, monkeypatch, when):
    """The best node goes, or fills up by another scheduler's hand, after it was looked at."""
    slowly(monkeypatch)
    given = {ASSIGNED_NODE: f"n{NODES - 1}", KEYS.allocated: f"n{NODES - 1}-g0,NVIDIA,6000,0:;"}
    every = [f"n{number:02}" for number in range(NODES)]
    other = replace(pod_view(manifest("other", memory=6000)), uid="other", annotations=given)
    async with serving(server, tmp_path, replace(HURRY, resync_period=600.0)) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == NODES)
        await until(lambda: all(KEYS.handshake in service.cache.nodes.live(name).value.annotations for name in every))
        best = f"n{NODES - 1}"
        names = [best, *(f"n{n:02}" for n in range(NODES - 1))]
        looked_at = []
        tried = engine_filter.node_info_for

        def change():
            if when == "its node goes":
                service.cache.nodes.feed.delete(NodeView(name=best))
            else:
                service.cache.pods.index.put(pod_info(other, FAMILIES))

        def looked(snapshot, pod, name):
            looked_at.append(name)
            if len(looked_at) == 5:
                asyncio.get_running_loop().call_soon(change)
            return tried(snapshot, pod, name)

        monkeypatch.setattr(engine_filter, "node_info_for", looked)
        answer = await service.filter({"Pod": server.create_pod(manifest("a", memory=6000)), "NodeNames": names})

    assert answer["NodeNames"] == [f"n{NODES - 2}"]
    assert best in answer["FailedNodes"]


async def test_a_pod_that_needs_no_end_of_trials_gets_what_was_found_within_a_bound(monkeypatch):
    monkeypatch.setattr(engine_filter, "MAX_ASKED", 100)
    card = DeviceInfo(id="", count=100, devmem=10_000, devcore=100, type="NVIDIA-Toy", health=True)

    def node_info(name):
        return NodeInfo(node=NodeView(name=name), pools={"NVIDIA": DevicePool(states=(idle_state(card),))})

    nodes = {f"n{number}": node_info(f"n{number}") for number in range(20)}
    one = manifest("a", memory=1)
    one["spec"]["containers"] *= 30

    found = run_without_pauses(
        filter_nodes_pausing(ClusterSnapshot(families=FAMILIES, nodes=nodes), pod_view(one), nodes)
    )

    assert isinstance(found, FilterResult)
    assert found.placed
    untried = [why for why in found.failed.values() if why.startswith("not tried: 30 containers")]
    assert len(untried) == 20 - 4
    assert "fewer containers" in untried[0]


async def test_the_next_pod_is_decided_while_the_last_decision_is_written(server, tmp_path):
    async with serving(server, tmp_path) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == NODES)
        server.hang("PATCH .*/pods/a", count=1)
        pod = server.create_pod(manifest("a"))
        (node,) = (await service.filter(ask(server, pod)))["NodeNames"]

        assert await schedule(server, service, server.create_pod(manifest("b")))

        stuck = asyncio.create_task(service.bind(binding(pod, node)))
        assert ASSIGNED_NODE not in annotations(server.pod("team", "a"))
        server.heal()
        assert await stuck == {"Error": ""}
        assert annotations(server.pod("team", "a"))[ASSIGNED_NODE] == node


@pytest.mark.parametrize("patience", [120.0, 0.01], ids=["until one ends", "not for ever"])
async def test_a_filter_is_answered_later_while_many_binds_run(server, tmp_path, monkeypatch, patience):
    monkeypatch.setattr(extender_module, "AHEAD", 1)
    monkeypatch.setattr(extender_module, "YIELD_S", patience)
    async with serving(server, tmp_path) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == NODES)
        pod = server.create_pod(manifest("a"))
        (node,) = (await service.filter(ask(server, pod)))["NodeNames"]
        server.hang("POST .*/binding", count=1)
        bind = asyncio.create_task(service.bind(binding(pod, node)))
        await until(lambda: service.cache.pods.binding.pending)

        asking = asyncio.create_task(service.filter(ask(server, server.create_pod(manifest("b")))))
        if patience > 1:
            await until(lambda: len(service.cache.pods.index.entries) == 2)
            await asyncio.sleep(0.05)
            assert not asking.done()
            server.heal()
        assert (await asking)["NodeNames"]
        server.heal()
        assert await bind == {"Error": ""}


async def test_a_filter_waits_while_too_many_decisions_are_on_their_way_to_the_api_server(
    server, tmp_path, monkeypatch
):
    monkeypatch.setattr(extender_module, "WRITES", 2)
    async with serving(server, tmp_path) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == NODES)
        server.hang("PATCH .*/pods/", count=2)
        asked = [ask(server, server.create_pod(manifest(name))) for name in ("a", "b", "c")]
        for one in asked[:2]:
            assert (await service.filter(one))["NodeNames"]

        third = asyncio.create_task(service.filter(asked[2]))
        await asyncio.sleep(0.05)
        assert not third.done()
        server.heal()
        assert (await third)["NodeNames"]
