"""Case t: three nodes of three vendors, two schedulers; some of them are lost, and no share is given twice."""

import random
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from signal import SIGKILL
from types import MappingProxyType

import pytest

from hami_plugin.protocol import keys
from hami_plugin.protocol.nodes import NodeLock, render_lock
from hami_plugin.scheduler.engine.admission import IGNORE
from tests.realnode import cluster as clusters
from tests.realnode import shares, versions
from tests.realnode.api import ApiError
from tests.realnode.asked import NAMESPACE, container, manifest
from tests.realnode.conftest import _or_skip
from tests.realnode.pods import Pods
from tests.realnode.servers import until

pytestmark = [
    pytest.mark.full,
    pytest.mark.case("t", "three nodes, two schedulers: some are lost, others go on, and no share is given twice"),
    pytest.mark.since(versions.INIT_AMOUNTS),
]
NPU, CORE = "huawei.com/Ascend910B3", "aws.amazon.com/neuroncore"
WHOLE_NPU = {NPU: 1, f"{NPU}-memory": 65536}
MORE_THAN_HALF = {"count": 1, "memory": 50000}
DOZEN, FIGHTS = 12, 8
WITHIN_S = 60
NOTHING = MappingProxyType({})
EVICTED_AT_ONCE = {
    "terminationGracePeriodSeconds": 1,
    "tolerations": [
        {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
        for why in ("unreachable", "not-ready")
    ],
}
"""When their node is lost. They are gone once their kubelet says so, and that is lost, too."""


@pytest.fixture(scope="module")
def cluster(stack):
    running = clusters.running(stack)
    yield _or_skip(running.__enter__)
    running.__exit__(None, None, None)


@pytest.fixture
def pods(cluster):
    cluster.await_serving()
    cluster.scheduler.await_ready(2)
    made = Pods(node=cluster.first, place=cluster.scheduler.place)
    yield made
    made.clear()


def asked(name, *, on="", spec=NOTHING, **what):
    """A pod, on a node of this name where one is given."""
    where = {"nodeSelector": {"kubernetes.io/hostname": on}} if on else {}
    return manifest(name, container(**what), **where, **spec)


def unplaced(name, **what):
    """A pod that no kube-scheduler looks at."""
    return manifest(name, container(**what), schedulerName="by-hand", labels=dict([IGNORE]))


def given(cluster):
    return list(shares.given(cluster.first.api.pods()))


def await_settled(cluster, *names):
    """Until each pod's devices are recorded as its own, and every node's lock is free."""

    def settled():
        pods = {pod["metadata"]["name"]: pod["metadata"].get("annotations", {}) for pod in cluster.first.api.pods()}
        done = all(pods[name].get(keys.BIND_PHASE) == keys.PHASE_SUCCESS for name in names if name in pods)
        return done and not any(node.annotation(keys.NODE_LOCK) for node in cluster.nodes.values())

    return until(settled, f"the settlement of {', '.join(names)}", WITHIN_S)


def no_share_is_given_twice(cluster, *, on=()):
    """By the annotations of all pods, and by the kubelets of all nodes, or of those that can be asked."""
    assert shares.overdrawn(given(cluster), cluster.capacity) == []
    assert shares.twice(cluster.nodes[name] for name in on or cluster.nodes) == []


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        (("card", 50000, 10), ("card", 31559, 90), True),
        (("card", 50000, 10), ("card", 31560, 10), False),
        (("card", 1000, 60), ("card", 1000, 41), False),
        (("card", 50000, 60), ("another", 50000, 60), True),
        (("cores", 0, 0b01), ("cores", 0, 0b10), True),
        (("cores", 0, 0b01), ("cores", 0, 0b11), False),
        (("unknown", 1, 1), ("card", 1, 1), False),
    ],
)
def test_a_share_that_is_given_twice_would_be_seen(one, other, fits):
    card, cores = shares.Whole(count=10, memory=81559, cores=100), shares.Whole(count=2, memory=0, cores=0b11)
    found = [
        shares.Share(node="n", pod="p", device_type=shares.BITS * (at == "cores"), device=at, memory=memory, cores=part)
        for at, memory, part in (one, other)
    ]

    assert (shares.overdrawn(found, {"n": {"card": card, "another": card, "cores": cores}}) == []) is fits


def test_pods_of_three_vendors_run_on_their_nodes_with_exactly_what_was_decided(cluster, pods):
    for one in (
        asked("h100", on="node-1", count=1, memory=3000, cores=30),
        asked("l40s", on="node-2", count=1, memory=4000, cores=40),
        asked("npu", limits={NPU: 1, f"{NPU}-memory": 8000}),
        asked("core", limits={CORE: 1}),
    ):
        pods.submit(one)
    names = tuple(pods.names)
    pods.await_running(*names)
    await_settled(cluster, *names)

    has = {share.pod: share for share in given(cluster)}
    nodes = {"h100": "node-1", "l40s": "node-2", "npu": "node-2", "core": "node-3"}
    assert {pod: share.node for pod, share in has.items()} == nodes
    seen = {pod: pods.granted(pod) for pod in names}
    for pod, memory, cores in (("h100", 3000, 30), ("l40s", 4000, 40)):
        assert (has[pod].memory, has[pod].cores) == (memory, cores)
        env = seen[pod].env
        limits = (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_SM_LIMIT"])
        assert limits == (has[pod].device, f"{memory}m", str(cores))
        assert seen[pod].devices == {}
    assert seen["npu"].env["ASCEND_VISIBLE_DEVICES"] == str(int(has["npu"].device[:8]))
    assert "NVIDIA_VISIBLE_DEVICES" not in seen["npu"].env
    number, core = int(has["core"].device.rpartition("-")[2]), has["core"].cores
    cores = {"AWS_NEURON_VISIBLE_DEVICES": str(number), "NEURON_RT_VISIBLE_CORES": str(2 * number + (core >> 1))}
    assert (seen["core"].env, seen["core"].devices.keys()) == (cores, {f"/dev/neuron{number}"})
    no_share_is_given_twice(cluster)


@pytest.mark.parametrize(
    ("lose", "find"),
    [
        pytest.param(clusters.Cluster.cut, clusters.Cluster.mend, id="its cable is pulled"),
        pytest.param(clusters.Cluster.kill, clusters.Cluster.start, id="its processes are killed"),
    ],
)
def test_a_node_is_lost_under_its_pods_and_comes_back(cluster, pods, lose, find, record_property):
    pods.submit(asked("left-gpu", on="node-1", count=7, memory=80000, cores=100))
    pods.submit(asked("left-core", limits={CORE: 2}))
    pods.submit(asked("lost-gpu", on="node-2", spec=EVICTED_AT_ONCE, count=4, memory=40000))
    pods.submit(asked("lost-npu", spec=EVICTED_AT_ONCE, limits=WHOLE_NPU))
    names = tuple(pods.names)
    pods.await_running(*names)
    await_settled(cluster, *names)
    node = cluster.nodes["node-2"]
    (survivor,) = [name for name, pod in cluster.scheduler.pods().items() if pod["spec"]["nodeName"] == "node-1"]

    def left():
        has = [share for share in given(cluster) if share.pod.startswith("left")]
        return has, [(pods.containers(name), pods.restarts(name)) for name in names if name.startswith("left")]

    before = left()
    lose(cluster, "node-2")
    try:
        noticed = until(lambda: not node.is_ready(), "the loss of the node", WITHIN_S)
        ends = ("lost-gpu", "lost-npu")
        until(lambda: all("deletionTimestamp" in pods.get(n)["metadata"] for n in ends), "evictions", WITHIN_S)
        until(lambda: cluster.webhooks() == {"node-1"}, "the API server to ask who is left", WITHIN_S)
        until(lambda: cluster.leader == survivor, "the scheduler that is left to lead", WITHIN_S)
        no_share_is_given_twice(cluster, on=("node-1", "node-3"))
        pods.delete(*ends)  # by force: its kubelet would have to say that they have ended
        again = pods.run(asked("again", **MORE_THAN_HALF), within_s=WITHIN_S)
        waits = pods.submit(asked("waits", limits=WHOLE_NPU))
        until(lambda: any("Fail" in line for line in pods.told(waits)), "a reason to wait", WITHIN_S)
        assert (pods.get(again)["spec"]["nodeName"], pods.get(waits)["spec"].get("nodeName")) == ("node-1", None)
    finally:
        start = time.monotonic()
        find(cluster, "node-2")
    cluster.await_serving()
    back = time.monotonic() - start

    cards = [pods.submit(asked(f"card-{n}", on="node-2", count=1, memory=40000)) for n in range(4)]
    pods.await_running(waits, *cards, within_s=WITHIN_S)
    await_settled(cluster, waits, *cards)
    no_share_is_given_twice(cluster)
    assert len({share.device for share in given(cluster) if share.pod in cards}) == 4
    assert {pods.granted(name).env["CUDA_DEVICE_MEMORY_LIMIT_0"] for name in cards} == {"40000m"}
    assert left() == before
    record_property(
        "figures", f"a lost node is noticed after {noticed:.1f} s, and serves {back:.1f} s after it came back"
    )


LOAD = (MORE_THAN_HALF, MORE_THAN_HALF, {"limits": WHOLE_NPU}, {"limits": {CORE: 2}})


def leading(cluster, *containers):
    """The processes of these containers of the scheduler that leads, of all where none is named."""
    found = []

    def there():
        with suppress(LookupError):  # it has just been killed, and comes back
            found[:] = cluster.replica(cluster.leader).pids(*containers)
        return found

    until(there, "a scheduler that leads and lives", WITHIN_S)
    return found


def admitted(pods, one):
    """Create the pod, again if the webhook was asked of a scheduler that has just been killed."""

    def done():
        with suppress(ApiError):
            return pods.submit(one)

    until(done, f"the admission of {one['metadata']['name']}", WITHIN_S)
    return one["metadata"]["name"]


def decided(cluster, names):
    """Those that have a decision and no node."""
    return [
        pod["metadata"]["name"]
        for pod in cluster.first.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        if pod["metadata"]["name"] in names
        and pod["metadata"].get("annotations", {}).get(keys.ASSIGNED_NODE)
        and "nodeName" not in pod["spec"]
    ]


def test_a_scheduler_is_killed_a_dozen_times_between_filter_and_bind(cluster, pods, record_property):
    """Every third time kube-scheduler with it, so that the other one has to lead."""
    chance, caught, longest = random.Random(), 0, 0.0
    for number in range(DOZEN):
        pids = leading(cluster, *(() if number % 3 == 0 else ("hami-plugin",)))
        names = [admitted(pods, asked(f"r{number}-{n}", **what)) for n, what in enumerate(LOAD)]
        until(lambda names=names: decided(cluster, names), "a decision", WITHIN_S, every_s=0)
        time.sleep(chance.uniform(0, 0.2) * (number % 2))
        clusters.send(pids, SIGKILL)
        start = time.monotonic()
        caught += len(decided(cluster, names))
        pods.await_running(*names, within_s=WITHIN_S)
        await_settled(cluster, *names)
        longest = max(longest, time.monotonic() - start)
        no_share_is_given_twice(cluster)
        assert len({share.pod for share in given(cluster)}) == len(LOAD)
        pods.delete(*names)
    record_property(
        "figures",
        f"a scheduler was killed {DOZEN} times, {caught} pods were decided and not bound; all ran, and all locks were "
        f"free, after {longest:.1f} s at most",
    )
    assert caught


@pytest.fixture
def one_card(cluster, pods):
    """All cards of the first node but one are taken: it has room for one pod that asks for more than half."""
    full = pods.run(asked("full", on="node-1", count=7, memory=80000, cores=100))
    await_settled(cluster, full)


def test_both_schedulers_are_asked_at_once_for_the_last_share(cluster, pods, one_card, record_property):
    both = 0
    with ExitStack() as ends:
        schedulers = [ends.enter_context(cluster.replica(name).asked()) for name in cluster.scheduler.pods()]
        for number in range(FIGHTS):
            names = [pods.create(unplaced(f"{side}{number}", **MORE_THAN_HALF)) for side in "ab"]
            fights = list(zip(schedulers, map(pods.get, names), strict=True))

            chosen = clusters.at_once([partial(one.filter, pod, "node-1") for one, pod in fights])
            asking = [fight for fight, nodes in zip(fights, chosen, strict=True) if nodes]
            errors = clusters.at_once([partial(one.bind, pod, "node-1") for one, pod in asking])

            both += len(asking) == 2
            assert sum(not error for error in errors) == 1, errors
            (winner,) = [name for name in names if pods.get(name)["spec"].get("nodeName")]
            (loser,) = set(names) - {winner}
            pods.await_running(winner)
            await_settled(cluster, winner)
            assert not pods.annotation(loser, keys.ASSIGNED_NODE), errors
            no_share_is_given_twice(cluster)
            pods.delete(*names)
    record_property(
        "figures", f"both schedulers decided for the last share in {both} of {FIGHTS} fights; one pod had it"
    )
    assert both


def test_a_leader_that_was_frozen_between_filter_and_bind_gives_nothing_away_when_it_wakes(cluster, pods, one_card):
    """It believes to lead, and has a bind in hand. The other one leads meanwhile, and decides anew."""
    node, api = cluster.first, cluster.first.api
    pod = pods.create(unplaced("holder", **MORE_THAN_HALF))
    lock = render_lock(NodeLock(time=datetime.now(UTC), namespace=NAMESPACE, pod=pod))
    api.annotate_node("node-1", {keys.NODE_LOCK: lock})
    old = cluster.leader
    pods.submit(asked("first", on="node-1", **MORE_THAN_HALF))
    until(lambda: decided(cluster, ["first"]), "the decision", WITHIN_S)
    pods.submit(asked("second", on="node-1", **MORE_THAN_HALF))
    rivals = ("first", "second")

    def running():
        return [name for name in rivals if pods.phase(name) == "Running"]

    with cluster.replica(old).stopped():
        pods.delete("holder")
        api.annotate_node("node-1", {keys.NODE_LOCK: None})
        until(lambda: cluster.leader not in ("", old), "another leader", WITHIN_S)
        until(running, "one of them to run", WITHIN_S)
    cluster.scheduler.await_ready(2)
    (winner,) = running()
    await_settled(cluster, winner)
    no_share_is_given_twice(cluster)
    pods.delete(winner)
    (loser,) = set(rivals) - {winner}

    pods.await_running(loser, within_s=WITHIN_S)
    await_settled(cluster, loser)
    assert not node.annotation(keys.NODE_LOCK)
    no_share_is_given_twice(cluster)
