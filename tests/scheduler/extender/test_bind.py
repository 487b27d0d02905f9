"""Binding over a real API client: the node is taken, the pod marked and assigned, or all of it is undone."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hami_plugin.errors import ClusterError, WireError
from hami_plugin.protocol.keys import (
    ASSIGNED_NODE,
    BIND_LOCK,
    BIND_PHASE,
    BIND_TIME,
    NODE_LOCK,
    PHASE_ALLOCATING,
    PHASE_FAILED,
    PHASE_SUCCESS,
)
from hami_plugin.protocol.nodes import NodeLock, parse_lock, render_lock
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.pods import of_vendor
from tests.support.scheduling import (
    HURRY,
    KEYS,
    add_node,
    annotations,
    ask,
    binding,
    daemons,
    filtered,
    manifest,
    reasons,
    schedule,
    serving,
    until,
)

CORES = {"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "2"}
ONE_CORE = {"name": "main", "resources": {"limits": {"aws.amazon.com/neuroncore": "1"}}}


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        add_node(server, count=8, counted=80)
        yield server


@pytest.fixture
async def service(server, tmp_path):
    async with serving(server, tmp_path) as service:
        await until(lambda: service.cache.nodes.node_infos)
        yield service


async def decided(server, service, name="a", **asked):
    pod = server.create_pod(manifest(name, **asked))
    assert (await filtered(service, ask(server, pod)))["NodeNames"] == ["n1"]
    return server.pod("team", name)


def lock(server) -> str:
    return annotations(server.node("n1")).get(NODE_LOCK, "")


def locked(server, name: str, *, ago: float = 0.0) -> None:
    time = datetime.now(UTC) - timedelta(seconds=ago)
    server.annotate_node("n1", {NODE_LOCK: render_lock(NodeLock(time=time, namespace="team", pod=name))})


async def shown(service, key: str = NODE_LOCK, node: str = "n1") -> None:
    """Until the watch has shown a lock: what is bound next waits for it at once, and does not try to take it."""
    await until(lambda: key in service.cache.nodes.live(node).value.annotations)


async def test_a_bound_pod_has_its_node_locked_and_is_marked(server, service):
    pod = await decided(server, service)

    answer = await service.bind(binding(pod, "n1"))

    after = server.pod("team", "a")
    assert answer == {"Error": ""}
    assert after["spec"]["nodeName"] == "n1"
    assert annotations(after)[BIND_PHASE] == PHASE_ALLOCATING
    assert annotations(after)[BIND_TIME].isdecimal()
    owner = parse_lock(lock(server))
    assert (owner.namespace, owner.pod) == ("team", "a")
    assert abs(datetime.now(UTC) - owner.time) < timedelta(minutes=5)
    writes = [str(one).partition("?")[0] for one in server.requests if one.writes and "events" not in one.path]
    assert writes[-3:] == [
        "PATCH /api/v1/nodes/n1",
        "PATCH /api/v1/namespaces/team/pods/a",
        "POST /api/v1/namespaces/team/pods/a/binding",
    ]
    await until(lambda: "BindingSucceed" in reasons(server, "a"))


async def test_a_pod_that_is_bound_already_is_not_touched_again(server, service):
    pod = await decided(server, service)
    async with daemons(server):
        assert await service.bind(binding(pod, "n1")) == {"Error": ""}
        await until(lambda: annotations(server.pod("team", "a"))[BIND_PHASE] == PHASE_SUCCESS and not lock(server))
    await until(lambda: next(iter(service.cache.pods.index.entries.values())).pod.node)

    assert await service.bind(binding(pod, "n1")) == {"Error": ""}

    assert annotations(server.pod("team", "a"))[BIND_PHASE] == PHASE_SUCCESS
    assert not lock(server)


async def test_a_pod_without_devices_is_bound_and_the_node_left_alone(server, service):
    pod = server.create_pod(manifest("plain", gpus=0))

    assert await service.bind(binding(pod, "n1")) == {"Error": ""}

    assert server.pod("team", "plain")["spec"]["nodeName"] == "n1"
    assert not lock(server)
    assert not annotations(server.pod("team", "plain"))


async def test_a_pod_whose_init_containers_alone_ask_takes_no_lock(server, service):
    """HAMi's node agents would not release it."""
    one = manifest("a")
    one["spec"] = {"initContainers": one["spec"]["containers"], "containers": [{"name": "main"}]}
    pod = server.create_pod(one)
    await service.filter(ask(server, pod))

    assert await service.bind(binding(pod, "n1")) == {"Error": ""}

    assert not lock(server)
    assert annotations(server.pod("team", "a"))[BIND_PHASE] == PHASE_ALLOCATING


@pytest.mark.difference("D-389")
async def test_when_the_api_server_refuses_the_node_is_free_again_and_the_pod_has_failed_to_bind(server, service):
    pod = await decided(server, service)
    server.error(422, match="POST .*/binding", message="simulated refusal")

    answer = await service.bind(binding(pod, "n1"))

    assert "simulated refusal" in answer["Error"]
    assert not lock(server)
    assert annotations(server.pod("team", "a"))[BIND_PHASE] == PHASE_FAILED
    await until(lambda: "simulated refusal" in reasons(server, "a").get("BindingFailed", ""))

    assert await service.bind(binding(pod, "n1")) == {"Error": ""}
    assert annotations(server.pod("team", "a"))[BIND_PHASE] == PHASE_ALLOCATING


async def test_a_refused_patch_of_the_pod_frees_the_node_too(server, service):
    pod = await decided(server, service)
    server.error(422, match="PATCH .*/pods/a", message="simulated refusal")

    assert "simulated refusal" in (await service.bind(binding(pod, "n1")))["Error"]

    assert not lock(server)
    assert "nodeName" not in server.pod("team", "a")["spec"]


@pytest.mark.difference("D-388")
async def test_a_binding_whose_answer_was_lost_is_taken_for_done(server, service):
    pod = await decided(server, service)
    server.truncate_next("POST .*/binding")

    assert await service.bind(binding(pod, "n1")) == {"Error": ""}

    assert annotations(server.pod("team", "a"))[BIND_PHASE] == PHASE_ALLOCATING
    assert lock(server)


@pytest.mark.difference("D-388")
async def test_where_nobody_knows_whether_the_pod_was_bound_nothing_is_undone(server, service):
    pod = await decided(server, service)
    server.truncate_next("POST .*/binding")
    server.error(500, match="GET .*/pods/a", count=None)

    answer = await service.bind(binding(pod, "n1"))

    assert "not known" in answer["Error"]
    assert server.pod("team", "a")["spec"]["nodeName"] == "n1"
    assert annotations(server.pod("team", "a"))[BIND_PHASE] == PHASE_ALLOCATING
    assert lock(server)


async def test_a_pod_that_is_bound_elsewhere_is_an_error_and_its_lock_released(server, service):
    pod = await decided(server, service)
    add_node(server, "n2")
    server.bind("team", "a", "n2")

    assert "another scheduler has bound it to node n2" in (await service.bind(binding(pod, "n1")))["Error"]

    assert not lock(server)


async def test_a_pod_that_was_replaced_is_not_bound(server, service):
    pod = await decided(server, service)
    server.delete_pod("team", "a")
    server.create_pod(manifest("a"))

    answer = await service.bind(binding(pod, "n1"))

    assert answer["Error"]
    assert "nodeName" not in server.pod("team", "a")["spec"]
    assert not lock(server)


@pytest.mark.scenario("A9")
async def test_a_pod_that_was_replaced_after_it_was_marked_is_not_bound(server, service, monkeypatch):
    pod = await decided(server, service)
    bind = service._binder._cluster.bind

    async def replaced(view, node):
        server.delete_pod("team", "a")
        server.create_pod(manifest("a"))
        await bind(view, node)

    monkeypatch.setattr(service._binder._cluster, "bind", replaced)

    answer = await service.bind(binding(pod, "n1"))

    assert answer["Error"]
    assert "nodeName" not in server.pod("team", "a")["spec"]


@pytest.mark.scenario("A9")
async def test_a_pod_of_the_same_name_that_is_bound_to_the_same_node_is_not_taken_for_the_one_that_was_asked_for(
    server, service, monkeypatch
):
    pod = await decided(server, service)

    async def replaced(_view, _node):
        server.delete_pod("team", "a")
        server.create_pod(manifest("a"))
        server.bind("team", "a", "n1")
        raise ClusterError("no answer", status=0)

    monkeypatch.setattr(service._binder._cluster, "bind", replaced)

    assert "is gone" in (await service.bind(binding(pod, "n1")))["Error"]


@pytest.mark.difference("D-387")
async def test_a_node_other_than_the_one_decided_on_is_refused(server, service):
    pod = await decided(server, service)
    add_node(server, "n2")

    answer = await service.bind(binding(pod, "n2"))

    assert "was given devices on node n1, and is to be bound to n2" in answer["Error"]
    assert "nodeName" not in server.pod("team", "a")["spec"]


async def test_a_node_that_changed_meanwhile_is_read_again(server, service):
    pod = await decided(server, service)
    server.error(409, count=3, match="PATCH .*/nodes/n1")

    assert await service.bind(binding(pod, "n1")) == {"Error": ""}


@pytest.mark.difference("D-385")
async def test_two_pods_for_one_node_are_bound_one_after_the_other(server, service):
    first, second = [await decided(server, service, name) for name in ("a", "b")]
    bound = asyncio.create_task(service.bind(binding(first, "n1")))
    waits = asyncio.create_task(service.bind(binding(second, "n1")))

    assert await bound == {"Error": ""}
    await asyncio.sleep(0.2)
    assert not waits.done()
    assert "nodeName" not in server.pod("team", "b")["spec"]

    server.annotate_node("n1", {NODE_LOCK: None})
    assert await waits == {"Error": ""}
    assert parse_lock(lock(server)).pod == "b"


async def test_a_pod_does_not_wait_for_ever_for_a_node_that_another_pod_has(server, tmp_path):
    server.create_pod(manifest("other"))
    async with serving(server, tmp_path, replace(HURRY, lock_timeout=0.3)) as service:
        await until(lambda: service.cache.nodes.node_infos)
        pod = await decided(server, service)
        locked(server, "other")
        await shown(service)

        answer = await service.bind(binding(pod, "n1"))

    assert "locked for team/other" in answer["Error"]
    assert parse_lock(lock(server)).pod == "other"
    assert BIND_PHASE not in annotations(server.pod("team", "a"))


@pytest.mark.difference("D-386")
async def test_a_lock_whose_pod_is_gone_is_broken(server, service):
    pod = await decided(server, service)
    locked(server, "never-was")

    assert await service.bind(binding(pod, "n1")) == {"Error": ""}

    assert parse_lock(lock(server)).pod == "a"


@pytest.mark.difference("D-386")
async def test_a_lock_whose_pod_is_bound_to_another_node_is_broken(server, service):
    """A scheduler that is killed leaves the node that it has taken locked; the next one may choose another node."""
    server.create_pod(manifest("moved"))
    server.bind("team", "moved", "n2")
    pod = await decided(server, service)
    locked(server, "moved")

    assert await service.bind(binding(pod, "n1")) == {"Error": ""}

    assert parse_lock(lock(server)).pod == "a"


async def test_a_lock_whose_pod_is_bound_to_its_node_is_left_to_the_nodes_daemon(server, tmp_path):
    server.create_pod(manifest("other"))
    server.bind("team", "other", "n1")
    async with serving(server, tmp_path, replace(HURRY, lock_timeout=0.3)) as service:
        await until(lambda: service.cache.nodes.node_infos)
        pod = await decided(server, service)
        locked(server, "other")
        await shown(service)

        answer = await service.bind(binding(pod, "n1"))

    assert "locked for team/other" in answer["Error"]
    assert parse_lock(lock(server)).pod == "other"


@pytest.mark.parametrize("bound", [True, False])
async def test_a_lock_that_only_schedulers_release_is_broken_once_its_pod_is_bound(server, tmp_path, bound):
    """A scheduler that is killed after the Binding leaves it, and no daemon knows of it."""
    server.create_node("n2", capacity=CORES, allocatable=CORES)
    for name in ("a", "other"):
        server.create_pod({"metadata": {"name": name, "namespace": "team"}, "spec": {"containers": [ONE_CORE]}})
    if bound:
        server.bind("team", "other", "n2")
    options = replace(HURRY, lock_timeout=60.0 if bound else 0.3)
    async with serving(server, tmp_path, options, families=of_vendor("awsneuron", {})) as service:
        await until(lambda: service.cache.nodes.node_infos)
        pod = server.pod("team", "a")
        assert (await service.filter({"Pod": pod, "NodeNames": ["n2"]}))["NodeNames"] == ["n2"]
        text = render_lock(NodeLock(time=datetime.now(UTC), namespace="team", pod="other"))
        server.annotate_node("n2", {BIND_LOCK: text})
        await shown(service, BIND_LOCK, "n2")

        answer = await service.bind(binding(pod, "n2"))

    assert bool(answer["Error"]) is not bound
    assert annotations(server.node("n2")).get(BIND_LOCK) == (None if bound else text)


async def test_a_lock_that_has_expired_is_broken_at_once(server, service):
    server.create_pod(manifest("other"))
    pod = await decided(server, service)
    locked(server, "other", ago=301)

    assert await service.bind(binding(pod, "n1")) == {"Error": ""}

    assert server.count("GET .*/pods/other") == 0, "after a wait, the pod that has the node is looked at"


async def test_two_replicas_do_not_both_take_a_node(server, tmp_path):
    async with serving(server, tmp_path) as one, serving(server, tmp_path) as other, daemons(server, after=0.01):
        await until(lambda: one.cache.nodes.node_infos and other.cache.nodes.node_infos)
        pods = [await decided(server, one, f"p{n}", memory=1000) for n in range(10)]
        halves = zip(pods, [one, other] * 5, strict=True)

        answers = await asyncio.gather(*(each.bind(binding(pod, "n1")) for pod, each in halves))

    assert answers == [{"Error": ""}] * 10


async def test_a_burst_of_fifty_pods_on_one_node_gets_through(server, service):
    taken = []

    def note() -> None:
        if (text := lock(server)) and text not in taken:
            taken.append(text)

    async with daemons(server, after=0.005):
        pods = [server.create_pod(manifest(f"p{n:02}", memory=1000, cores=10)) for n in range(50)]
        watching = asyncio.create_task(every_change(server, note))
        nodes = await asyncio.gather(*(schedule(server, service, pod) for pod in pods))
        watching.cancel()

    assert nodes == ["n1"] * 50
    assert len({parse_lock(text).pod for text in taken}) == 50
    assert not reasons_of_failure(server)


def reasons_of_failure(server) -> list[str]:
    return [one["message"] for one in server.events() if one["type"] == "Warning"]


async def every_change(server, note) -> None:
    while True:
        seen = server.store.version.version
        note()
        await server.store.version.changed(seen)


async def test_what_was_begun_is_finished_when_nobody_waits_any_more(server, service):
    pod = await decided(server, service)
    server.faults.latency = 0.05

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.06):
            await service.bind(binding(pod, "n1"))

    await until(lambda: server.pod("team", "a")["spec"].get("nodeName") == "n1")


OWN = "cambricon.com/dsmlu.lock"
BOTH = (*of_vendor("nvidia", {}), *of_vendor("cambricon", {}))


async def of_two_families(server, service):
    """A pod that asks for two families, of which one has a lock of its own that names nobody."""
    (names,) = (family.resources for family in BOTH if family.rules.lock and family.rules.lock.annotation == OWN)
    counted = {names.count: "2", names.cores: "200", names.memory: "200"}
    server.store.patch(("nodes", "", "n1"), {"status": {"capacity": counted, "allocatable": counted}}, part="status")
    one = manifest("a")
    limits = {names.count: "1", names.memory: "1", names.cores: "10"}
    one["spec"]["containers"].append({"name": "second", "resources": {"limits": limits}})
    await until(lambda: len(service.cache.nodes.node_infos["n1"].pools) == 2)
    pod = server.create_pod(one)
    answer = await filtered(service, ask(server, pod))
    assert answer["NodeNames"] == ["n1"], answer
    return pod


async def test_a_pod_of_two_families_takes_the_locks_of_both(server, tmp_path):
    async with serving(server, tmp_path, families=BOTH) as service:
        pod = await of_two_families(server, service)

        assert await service.bind(binding(pod, "n1")) == {"Error": ""}

    assert parse_lock(lock(server)).pod == "a"
    assert not parse_lock(annotations(server.node("n1"))[OWN]).pod


async def test_both_locks_are_released_when_the_pod_is_not_bound(server, tmp_path):
    async with serving(server, tmp_path, families=BOTH) as service:
        pod = await of_two_families(server, service)
        server.error(422, match="POST .*/binding")

        assert (await service.bind(binding(pod, "n1")))["Error"]

    assert not {OWN, NODE_LOCK} & annotations(server.node("n1")).keys()


async def test_a_lock_of_another_pod_that_names_nobody_is_left_alone(server, tmp_path):
    theirs = render_lock(NodeLock(time=datetime.now(UTC) - timedelta(seconds=3)))
    async with serving(server, tmp_path, replace(HURRY, lock_timeout=0.3), families=BOTH) as service:
        pod = await of_two_families(server, service)
        server.annotate_node("n1", {OWN: theirs})
        await shown(service, OWN)

        assert "an unnamed pod" in (await service.bind(binding(pod, "n1")))["Error"]

    assert annotations(server.node("n1"))[OWN] == theirs
    assert not lock(server)


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
async def test_a_request_that_names_too_little_is_an_error_with_a_remedy(service, missing):
    request = {"PodName": "a", "PodNamespace": "team", "PodUID": "u", "Node": "n1"}

    with pytest.raises(WireError) as error:
        await service.bind({**request, missing: ""})

    assert error.value.hint


async def test_pods_come_to_a_node_in_the_order_in_which_they_asked(server, service):
    names = [f"p{n}" for n in range(8)]
    pods = [await decided(server, service, name, memory=1000) for name in names]
    bound = []

    async def bind(pod) -> None:
        assert await service.bind(binding(pod, "n1")) == {"Error": ""}
        bound.append(pod["metadata"]["name"])

    async with daemons(server, after=0.02):
        await asyncio.gather(*map(bind, pods))

    assert bound == names


def bound_elsewise(server, name, node, given):
    """A pod that another scheduler has decided on and bound."""
    one = manifest(name)
    one["metadata"]["annotations"] = {ASSIGNED_NODE: node, KEYS.allocated: given}
    one["spec"]["nodeName"] = node
    return server.create_pod(one)


async def test_what_another_scheduler_gave_to_another_pod_meanwhile_is_not_bound_and_taken_back(server, service):
    pod = await decided(server, service, memory=6000)
    bound_elsewise(server, "faster", "n1", annotations(pod)[KEYS.allocated])

    answer = await service.bind(binding(pod, "n1"))

    assert (
        "cannot have what was decided for it on node n1 any more: n1-g7: 1/1 CardInsufficientMemory" in answer["Error"]
    )
    assert "nodeName" not in server.pod("team", "a")["spec"]
    assert annotations(server.pod("team", "a"))[ASSIGNED_NODE] == ""
    assert annotations(server.pod("team", "a"))[BIND_PHASE] == PHASE_FAILED
    assert not lock(server)
    await until(lambda: [one.pod.name for one in service.cache.pods.index.on("n1")] == ["faster"])


async def test_a_pod_whose_decision_was_replaced_while_it_waited_is_not_bound(server, service):
    """Another scheduler was asked about the same pod."""
    pod = await decided(server, service)
    locked(server, "other")
    server.create_pod(manifest("other"))
    bind = asyncio.create_task(service.bind(binding(pod, "n1")))
    await until(lambda: service.cache.pods.binding.node_of(pod["metadata"]["uid"]))
    server.annotate_pod("team", "a", {ASSIGNED_NODE: "n2"})
    server.annotate_node("n1", {NODE_LOCK: None})

    assert "another scheduler has decided for it (phase none yet): node n2" in (await bind)["Error"]
    assert "nodeName" not in server.pod("team", "a")["spec"]


@pytest.mark.scenario("P7")
async def test_while_the_watch_is_behind_nobody_is_bound_and_the_reason_told(server, tmp_path):
    async with serving(server, tmp_path, replace(HURRY, watch_timeout=0.2)) as service:
        await until(lambda: service.cache.nodes.node_infos)
        pod = await decided(server, service)
        server.hang("GET .*/pods.*watch=")
        server.error(503, match="GET .*/pods(?!.*watch)", count=None)
        server.drop_watches()

        answer = await service.bind(binding(pod, "n1"))

        assert "the watch of pods is behind for 0.2 s, so who else is on node n1 is not known" in answer["Error"]
        assert "nodeName" not in server.pod("team", "a")["spec"]
        server.heal()
