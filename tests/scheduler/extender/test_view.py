"""What the service knows of the cluster: kept by watches, rebuilt at a start, right again after every gap."""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.model.views import NodeView
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.scheduler.engine.node_info import read_idle_node
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.builders import changed
from tests.support.pods import of_vendor
from tests.support.scheduling import (
    FAMILIES,
    HURRY,
    KEYS,
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

EXCLUSIVE = {"cores": 100}
LISTS = r"GET /api/v1/pods\?(?!.*watch)"


@pytest.fixture
async def server():
    async with SimulatedApiServer(bookmark_seconds=0.1) as server:
        add_node(server)
        yield server


@pytest.fixture
async def service(server, tmp_path):
    async with serving(server, tmp_path) as service:
        yield service


def held(service) -> dict[str, dict[str, tuple]]:
    """What pods hold, by node and pod: what must be the same in every process that looks at the cluster."""
    return {
        uid: (one.node, {device_type: holding.pieces for device_type, holding in one.held.items()})
        for uid, one in service.cache.pods.index.entries.items()
    }


async def chosen(server, service, pod) -> list[str]:
    return (await filtered(service, ask(server, pod)))["NodeNames"]


END = {
    "ends": lambda server: server.set_phase("team", "a", "Succeeded"),
    "fails": lambda server: server.set_phase("team", "a", "Failed"),
    "is deleted": lambda server: server.delete_pod("team", "a"),
}


@pytest.mark.parametrize("how", END)
async def test_a_share_is_free_once_the_watch_has_shown_its_pods_end(server, tmp_path, how):
    first, second = (server.create_pod(manifest(name, **EXCLUSIVE)) for name in ("a", "b"))
    async with serving(server, tmp_path, replace(HURRY, resync_period=3600.0)) as service:
        async with daemons(server):
            assert await schedule(server, service, first) == "n1"
        assert await chosen(server, service, second) == []
        lists = server.count(LISTS)

        END[how](server)
        async with asyncio.timeout(30):
            while await chosen(server, service, second) == []:  # noqa: ASYNC110  # kube-scheduler asks again, too
                await asyncio.sleep(0.01)

    assert server.count(LISTS) == lists


async def test_a_pod_that_is_only_being_deleted_keeps_its_share(server, service):
    first, second = (server.create_pod(manifest(name, **EXCLUSIVE)) for name in ("a", "b"))
    assert await chosen(server, service, first) == ["n1"]

    server.delete_pod("team", "a", grace=30)
    await asyncio.sleep(0.1)

    assert await chosen(server, service, second) == []


async def test_a_filter_during_a_pods_end_gets_the_share_at_most_once(server, service):
    first, *others = (server.create_pod(manifest(f"p{n}", **EXCLUSIVE)) for n in range(6))
    assert await chosen(server, service, first) == ["n1"]
    server.faults.latency = 0.01

    asking = [asyncio.create_task(filtered(service, ask(server, pod))) for pod in others]
    server.delete_pod("team", "p0")
    answers = await asyncio.gather(*asking)
    answers += [await service.filter(ask(server, pod)) for pod in others if not decided(server, pod)]

    assert sum(bool(answer["NodeNames"]) for answer in answers) == 1


def decided(server, pod) -> bool:
    return ASSIGNED_NODE in annotations(server.pod("team", pod["metadata"]["name"]))


async def test_an_old_version_of_a_pod_says_nothing_of_our_newer_decision(server, service):
    """The pod goes from one node to another. Before the watch shows it, it shows a version with the old decision."""
    add_node(server, "n2")
    await until(lambda: len(service.cache.nodes.node_infos) == 2)
    first, second = (server.create_pod(manifest(name, **EXCLUSIVE)) for name in ("a", "b"))
    await service.filter({**ask(server, first), "NodeNames": ["n1"]})
    await until(lambda: not service.cache.pods.assumed)
    server.faults.latency = 0.2

    asking = asyncio.create_task(service.filter({**ask(server, server.pod("team", "a")), "NodeNames": ["n2"]}))
    await asyncio.sleep(0.05)
    server.annotate_pod("team", "a", {"some": "change"})
    await asyncio.sleep(0.05)
    answer = await service.filter({**ask(server, second), "NodeNames": ["n2"]})
    await asking

    assert answer["NodeNames"] == []
    assert [one.node for one in service.cache.pods.index.on("n2")] == ["n2"]


async def test_a_gap_of_the_watch_is_closed_by_a_list(server, service):
    first, second = (server.create_pod(manifest(name, **EXCLUSIVE)) for name in ("a", "b"))
    assert await chosen(server, service, first) == ["n1"]
    await until(lambda: not service.cache.pods.assumed)

    await server.refuse()
    server.delete_pod("team", "a")
    server.delete_node("n1")
    add_node(server, "n2", slots=1)
    server.compact()
    await server.accept()

    await until(lambda: service.cache.nodes.node_infos.keys() == {"n2"} and not service.cache.pods.index.entries)
    assert await chosen(server, service, second) == ["n2"]


async def test_watches_that_expire_lose_nothing(server, service):
    first, second = (server.create_pod(manifest(name, **EXCLUSIVE)) for name in ("a", "b"))
    assert await chosen(server, service, first) == ["n1"]

    server.expire_watches()
    server.compact(as_http=True)
    server.drop_watches()
    await asyncio.sleep(0.3)

    assert await chosen(server, service, second) == []
    server.delete_pod("team", "a")
    await until(lambda: not service.cache.pods.index.entries)


async def test_a_decision_whose_pod_went_in_a_gap_before_the_watch_showed_it_is_let_go(server, service):
    pod = server.create_pod(manifest("a", **EXCLUSIVE))
    await until(lambda: service.cache.nodes.node_infos)
    server.hang("GET /api/v1/pods")
    server.drop_watches()
    await asyncio.sleep(0.1)
    assert await chosen(server, service, pod) == ["n1"]
    server.delete_pod("team", "a")
    assert service.cache.pods.assumed

    await until(lambda: not service.cache.pods.index.entries)
    server.heal()


async def test_a_restart_in_the_middle_finds_the_same_ledger(server, tmp_path):
    add_node(server, "n2", count=3)
    async with serving(server, tmp_path) as service, daemons(server):
        await until(lambda: len(service.cache.nodes.node_infos) == 2)
        pods = [server.create_pod(manifest(f"p{n}", memory=1000 + n, cores=10)) for n in range(12)]
        for pod in pods[:8]:
            await schedule(server, service, pod)
        for pod in pods[8:]:
            await service.filter(ask(server, pod))  # decided, and not bound yet
        server.set_phase("team", "p0", "Succeeded")
        server.delete_pod("team", "p1")
        await until(lambda: not service.cache.pods.assumed and len(held(service)) == 10)
        before = held(service)

    async with serving(server, tmp_path) as service:
        assert held(service) == before
        assert {entry.pod.name for entry in service.cache.pods.index.entries.values()} == {
            f"p{n}" for n in range(2, 12)
        }
        assert await service.bind(binding(pods[9], annotations(server.pod("team", "p9"))[ASSIGNED_NODE])) == {
            "Error": ""
        }


async def test_another_replica_knows_what_this_one_decided(server, tmp_path):
    async with serving(server, tmp_path) as one, serving(server, tmp_path) as other:
        first, second = (server.create_pod(manifest(name, **EXCLUSIVE)) for name in ("a", "b"))
        assert await chosen(server, one, first) == ["n1"]
        await until(lambda: held(other) == held(one))

        assert await chosen(server, other, second) == []
        assert await other.bind(binding(first, "n1")) == {"Error": ""}


async def test_a_pod_that_was_never_scheduled_holds_nothing(server, service):
    server.create_pod(manifest("a", **EXCLUSIVE))
    server.bind("team", "a", "n1")
    server.create_pod(manifest("b", gpus=0))
    await asyncio.sleep(0.1)

    assert not service.cache.pods.index.entries


@pytest.mark.difference("D-382")
async def test_a_register_is_read_once_for_each_change_of_the_node(server, tmp_path):
    reads = []
    (family,) = FAMILIES

    def counting(node):
        reads.append(node.resource_version)
        return family.rules.node_devices(node)

    async with serving(server, tmp_path, families=(changed(family, node_devices=counting),)) as service:
        await until(lambda: service.cache.nodes.node_infos)
        first = service.cache.nodes.node_infos["n1"]
        assert len(reads) == 1

        server.annotate_node("n1", {"hami.io/mutex.lock": "2026-01-01T00:00:00Z,team,a", KEYS.handshake: "Reported_x"})
        await until(lambda: service.cache.nodes.live("n1").value.annotations.get(KEYS.handshake) != "Reported_x")
        assert service.cache.nodes.node_infos["n1"] is first
        assert len(reads) == 1

        server.annotate_node("n1", {KEYS.register: cards("n1", 2)})
        await until(lambda: len(service.cache.nodes.node_infos["n1"].states) == 2)
        assert len(reads) == 2


async def test_a_register_that_cannot_be_read_offers_nothing(server, service):
    server.annotate_node("n1", {KEYS.register: "[{"})
    await until(lambda: not service.cache.nodes.node_infos["n1"].states)
    pod = server.create_pod(manifest("a"))

    assert (await service.filter(ask(server, pod)))["FailedNodes"] == {"n1": "node unregistered"}


@pytest.mark.parametrize(
    "register",
    [*(cards(f"n2{sign}", 1) for sign in ",:;"), cards("n2", 1, memory=-1)],
    ids=["comma", "colon", "semicolon", "memory below zero"],
)
async def test_a_node_with_a_device_that_no_decision_can_tell_of_is_passed_over(server, service, register):
    add_node(server, "n2")
    server.annotate_node("n2", {KEYS.register: register})
    await until(
        lambda: (
            len(service.cache.nodes.node_infos) == 2
            and KEYS.register in service.cache.nodes.node_infos["n2"].node.annotations
        )
    )
    pod = server.create_pod(manifest("a"))

    answer = await service.filter(ask(server, pod))

    assert answer == {"NodeNames": ["n1"], "FailedNodes": {"n2": "node unregistered"}, "Error": ""}


@pytest.mark.parametrize("vendor", ["awsneuron", "cambricon", "kunlun", "metax", "mthreads"])
def test_a_node_that_counts_more_devices_than_any_machine_has_offers_none_of_them(vendor):
    """Each device would be an entry of the scheduler's; so many as a capacity can say would be the end of it."""
    for family in of_vendor(vendor, {}):
        names = family.resources
        capacity = {name: "200000" for name in (names.count, names.memory, names.cores) if name}

        found = read_idle_node(NodeView(name="n1", capacity=capacity), [family])

        assert not found.node_info.pools
        assert all("more than 1024" in problem for problem in found.problems)


@pytest.mark.difference("D-384")
async def test_a_node_of_an_older_agent_is_read_too(server, service):
    """HAMi 2.7's register is no JSON."""
    server.annotate_node("n1", {KEYS.register: "GPU-x,10,10000,100,NVIDIA-Toy,0,true,0,hami-core:"})
    await until(lambda: [state.uuid for state in service.cache.nodes.node_infos["n1"].states] == ["GPU-x"])
    pod = server.create_pod(manifest("a", memory=1000))

    assert await chosen(server, service, pod) == ["n1"]
    assert annotations(server.pod("team", "a"))[KEYS.allocated].startswith("GPU-x,NVIDIA,1000,")


async def test_a_node_that_our_own_rules_break_on_is_left_out_and_the_others_are_served(server, tmp_path):
    (family,) = FAMILIES
    add_node(server, "broken")

    def devices(node: NodeView):
        if node.name == "broken":
            raise RuntimeError("a bug")
        return family.rules.node_devices(node)

    async with serving(server, tmp_path, families=(changed(family, node_devices=devices),)) as service:
        pod = server.create_pod(manifest("a"))
        args = {"Pod": pod, "Nodes": None, "NodeNames": ["broken", "n1"]}

        answer = await service.filter(args)

        assert answer["NodeNames"] == ["n1"]
        assert answer["FailedNodes"] == {"broken": "node unregistered"}
