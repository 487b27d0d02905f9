"""What is kept from one question to the next changes no answer: it is compared with working everything out."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
from hypothesis import settings
from hypothesis import strategies as st

from hami_plugin.model.device import Link, Links
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.nodes import DeviceInfo, encode_json, encode_scores
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.scheduler.engine import filter as engine_filter
from hami_plugin.scheduler.engine.devices import ORDER_KEY, Quota
from hami_plugin.scheduler.engine.filter import (
    ClusterSnapshot,
    FilterCache,
    FilterResult,
    NodeInfoCache,
    VerdictCache,
    filter_nodes,
    score_nodes,
)
from hami_plugin.scheduler.engine.fit import CycleOptions
from hami_plugin.scheduler.engine.node_info import ChangeLog, PodIndex, read_idle_node, read_node, scheduling_policies
from hami_plugin.scheduler.engine.topology import ChoiceCache, best_linked, best_places
from tests.support.pods import families
from tests.support.scale import examples

FAMILIES = families()
FAMILY = next(family for family in FAMILIES if family.resources.device_type == "NVIDIA")
KEYS = FAMILY.rules.annotations
NAMES = ("n0", "n1")


def uuids(name: str) -> list[str]:
    return [f"GPU-{name}-{number}" for number in range(4)]


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeView:
    ids = uuids(name)
    cards = [
        DeviceInfo(
            id=uuid,
            index=draw(st.integers(0, 3)),
            count=draw(st.integers(1, 3)),
            devmem=draw(st.sampled_from((4000, 8000))),
            devcore=100,
            type="NVIDIA A10",
            numa=draw(st.integers(0, 1)),
            health=draw(st.sampled_from((True, True, True, False))),
        )
        for uuid in ids
    ]
    pairs = {(a, b): draw(st.sampled_from((10, 20, 100))) for i, a in enumerate(ids) for b in ids[i + 1 :]}
    scores = {a: {b: pairs[min(a, b), max(a, b)] for b in ids if b != a} for a in ids}
    return NodeView(name=name, annotations={KEYS.register: encode_json(cards), KEYS.score: encode_scores(scores, ids)})


@st.composite
def running(draw: st.DrawFn) -> PodView:
    name, uid = draw(st.sampled_from(NAMES)), draw(st.sampled_from("abc"))
    chosen = draw(st.lists(st.sampled_from(uuids(name)), min_size=1, max_size=2, unique=True))
    memory = draw(st.sampled_from((500, 2000, 4000)))
    piece = tuple(
        Grant(uuid=uuid, device_type="NVIDIA", memory=memory, cores=draw(st.sampled_from((0, 30)))) for uuid in chosen
    )
    annotations = {ASSIGNED_NODE: name, KEYS.allocated: encode_devices([piece])}
    phase = draw(st.sampled_from(("Pending", "Running", "Succeeded")))
    return replace(asking(uid, len(chosen), memory), node=name, phase=phase, annotations=annotations)


def asking(uid: str, count: int, memory: int, order: str = "spread") -> PodView:
    limits = {"nvidia.com/gpu": str(count), "nvidia.com/gpumem": str(memory)}
    containers = (ContainerView(name="main", limits=limits),)
    return PodView(
        uid=uid, namespace="ns", name=uid, containers=containers, annotations={ORDER_KEY: order} if order else {}
    )


ASKED = st.builds(
    asking,
    st.sampled_from("abcxyz"),
    st.integers(1, 3),
    st.sampled_from((500, 2000, 5000)),
    st.sampled_from(("", "binpack", "spread", "mutex", "topology-aware")),
)
EVENTS = st.lists(st.tuples(st.one_of(running(), running(), *(nodes(name) for name in NAMES)), ASKED), max_size=12)


def plain(snapshot: ClusterSnapshot, views: dict[str, NodeView], pod: PodView) -> FilterResult:
    """Everything from the beginning: annotations read, each node tried, all kept until the best is known."""
    others = [entry.pod for uid, entry in snapshot.pods.entries.items() if uid != pod.uid]
    node_infos = [read_node(views[name], FAMILIES, others).node_info for name in snapshot.nodes]
    choice = score_nodes(pod, scheduling_policies(FAMILIES), node_infos, snapshot.options, order=snapshot.node_order)
    return FilterResult(placed=choice.best, failed={one.node_info.node.name: one.why for one in choice.failed})


@settings(max_examples=examples(60), deadline=None)
@hypothesis.given(st.tuples(*(nodes(name) for name in NAMES)), EVENTS, st.sampled_from(("binpack", "spread")))
def test_a_filter_that_keeps_what_it_knows_answers_as_one_that_starts_anew(first, events, order):
    views = {view.name: view for view in first}
    node_infos = {name: read_idle_node(view, FAMILIES).node_info for name, view in views.items()}
    snapshot = ClusterSnapshot(families=FAMILIES, nodes=node_infos, pods=PodIndex(), node_order=order)

    for event, pod in events:
        if isinstance(event, NodeView):
            views[event.name], node_infos[event.name] = event, read_idle_node(event, FAMILIES).node_info
            snapshot.changes.note(event.name)
        else:
            snapshot.pods.see(event, FAMILIES)
        ours, theirs = filter_nodes(snapshot, pod, NAMES), plain(snapshot, views, pod)
        assert isinstance(ours, FilterResult)
        assert ours.failed == theirs.failed
        assert bool(ours.placed) == bool(theirs.placed)
        if ours.placed and theirs.placed:
            assert (ours.placed.node_info, ours.placed.given) == (theirs.placed.node_info, theirs.placed.given)
            assert ours.placed.after == theirs.placed.after


def test_a_node_that_nobody_changed_is_the_same_object_and_another_after_a_change():
    node_info = read_idle_node(
        NodeView(name="n0", annotations={KEYS.register: encode_json([DeviceInfo(id="d")])}), FAMILIES
    ).node_info
    taken = replace(asking("a", 1, 1), annotations={ASSIGNED_NODE: "n0", KEYS.allocated: "d,NVIDIA,1,0:;"})
    ledger, occupancy = PodIndex(), NodeInfoCache()
    ledger.see(taken, FAMILIES)

    before = occupancy.of(FAMILIES, node_info, ledger.on("n0")).result
    again = occupancy.of(FAMILIES, node_info, ledger.on("n0")).result
    ledger.see(replace(taken, phase="Running"), FAMILIES)
    after = occupancy.of(FAMILIES, node_info, ledger.on("n0")).result

    assert again is before
    assert after is not before
    assert occupancy.of(FAMILIES, replace(node_info), ledger.on("n0")).result is not after


def test_nodes_that_are_gone_are_forgotten():
    node_infos = [read_idle_node(NodeView(name=f"n{number}"), FAMILIES).node_info for number in range(9)]
    occupancy = NodeInfoCache()
    known = [occupancy.of(FAMILIES, node_info, ()) for node_info in node_infos]

    occupancy.keep({"n0", "n1"})

    assert occupancy.of(FAMILIES, node_infos[0], ()) is known[0]
    assert occupancy.of(FAMILIES, node_infos[8], ()) is not known[8]


def cards(name: str, memory: int = 8000) -> NodeView:
    infos = [
        DeviceInfo(id=f"{name}-g{n}", index=n, count=4, devmem=memory, devcore=100, type="NVIDIA A10", health=True)
        for n in range(2)
    ]
    return NodeView(name=name, annotations={KEYS.register: encode_json(infos)})


class Cluster:
    """Alike nodes, and which of them a filter has worked out."""

    def __init__(self, monkeypatch, size: int = 20, kept: FilterCache | None = None) -> None:
        self.nodes = {f"n{n}": read_idle_node(cards(f"n{n}"), FAMILIES).node_info for n in range(size)}
        self.pods = PodIndex()
        self.snapshot = ClusterSnapshot(families=FAMILIES, nodes=self.nodes, pods=self.pods, kept=kept or FilterCache())
        self.tried: list[str] = []
        self.again: list[str] = []
        """Where a pod was tried for itself, and not for all that ask alike."""
        fitting = engine_filter.fit_pod_pausing

        def noted(request, node_info, options):
            (self.again if request.pod.uid else self.tried).append(node_info.node.name)
            return fitting(request, node_info, options)

        monkeypatch.setattr(engine_filter, "fit_pod_pausing", noted)

    def filter(self, pod: PodView) -> list[str]:
        """The nodes that were tried for pods like this one."""
        self.tried.clear()
        self.again.clear()
        found = filter_nodes(self.snapshot, pod, self.nodes)
        assert isinstance(found, FilterResult)
        assert found.placed
        return list(self.tried)


def given(pod: PodView, node: str) -> PodView:
    return replace(
        pod, annotations={**pod.annotations, ASSIGNED_NODE: node, KEYS.allocated: f"{node}-g0,NVIDIA,500,0:;"}
    )


def test_for_a_pod_like_the_last_one_only_nodes_that_changed_are_tried(monkeypatch):
    cluster = Cluster(monkeypatch)

    assert sorted(cluster.filter(asking("a", 1, 500))) == sorted(cluster.nodes)
    assert cluster.filter(asking("b", 1, 500)) == []

    cluster.pods.see(given(asking("a", 1, 500), "n3"), FAMILIES)
    cluster.nodes["n7"] = read_idle_node(cards("n7", memory=4000), FAMILIES).node_info
    cluster.snapshot.changes.note("n7")
    assert cluster.filter(asking("c", 1, 500)) == ["n3", "n7"]

    cluster.pods.drop("a")
    assert cluster.filter(asking("d", 1, 500)) == ["n3"]


@hypothesis.given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=40), st.integers(2, 9))
def test_a_log_of_changes_names_all_that_changed_or_says_that_it_does_not_know(steps, room):
    log, changed, mark = ChangeLog(room), set(), 0
    for name, read in steps:
        log.note(name)
        changed.add(name)
        if read:
            found = log.since(mark)
            assert found is None or set(found) == changed
            assert found is not None or len(changed) > room // 2
            changed, mark = set(), log.mark
    assert log.since(log.mark) == []


def test_only_a_node_that_was_judged_for_another_pod_is_tried_once_more_to_place_a_pod(monkeypatch):
    cluster = Cluster(monkeypatch)

    cluster.filter(asking("a", 1, 500))
    assert cluster.again == []
    cluster.filter(asking("b", 1, 500))
    assert cluster.again == ["n9"]


def test_what_a_pod_had_before_is_free_for_itself_only(monkeypatch):
    cluster = Cluster(monkeypatch, size=2)
    whole = replace(
        given(asking("a", 2, 8000), "n0"),
        annotations={ASSIGNED_NODE: "n0", KEYS.allocated: "n0-g0,NVIDIA,8000,0:n0-g1,NVIDIA,8000,0:;"},
    )
    cluster.pods.see(whole, FAMILIES)
    both = ("n0", "n1")

    def failed(uid: str) -> set[str]:
        found = filter_nodes(cluster.snapshot, asking(uid, 2, 8000), both)
        assert isinstance(found, FilterResult)
        return set(found.failed)

    assert [failed(uid) for uid in "bababb"] == [{"n0"}, set(), {"n0"}, set(), {"n0"}, {"n0"}]


def test_pods_that_differ_in_what_no_rule_reads_are_alike(monkeypatch):
    cluster = Cluster(monkeypatch)
    pod = asking("a", 1, 500)
    cluster.filter(pod)

    other = replace(pod, uid="b", name="b", labels={"index": "7"}, annotations={**pod.annotations, "batch/index": "7"})
    assert cluster.filter(other) == []
    assert cluster.filter(asking("c", 1, 600)) != []
    limited = replace(pod, annotations={**pod.annotations, "nvidia.com/nouse-gpuuuid": "n3-g0"})
    assert len(cluster.filter(limited)) == len(cluster.nodes)
    assert cluster.filter(replace(limited, uid="d")) == []


def test_verdicts_of_the_kinds_of_pods_that_came_longest_ago_go_first(monkeypatch):
    cluster = Cluster(monkeypatch, kept=FilterCache(verdicts=VerdictCache(room=45)))
    for memory in (500, 600, 500, 700):
        cluster.filter(asking("a", 1, memory))

    assert cluster.filter(asking("a", 1, 500)) == []
    assert len(cluster.filter(asking("a", 1, 600))) == len(cluster.nodes)


def test_a_quota_that_is_used_up_meanwhile_counts(monkeypatch):
    cluster = Cluster(monkeypatch)
    limits, pod = {"nvidia.com/gpumem": 1000}, asking("a", 1, 500)

    def failed(used: int) -> int:
        quota = Quota(limits=limits, used={"nvidia.com/gpumem": used})
        found = filter_nodes(replace(cluster.snapshot, options=CycleOptions(quota=quota)), pod, cluster.nodes)
        assert isinstance(found, FilterResult)
        return len(found.failed)

    assert [failed(used) for used in (500, 501, 500)] == [0, len(cluster.nodes), 0]
    assert len(cluster.filter(pod)) == len(cluster.nodes)


SIZES = st.integers(2, 7)


@settings(deadline=None)
@hypothesis.given(
    st.lists(st.tuples(SIZES, st.randoms(use_true_random=False)), max_size=12), st.sampled_from((8, 60, 1 << 18))
)
def test_a_choice_that_was_found_before_is_the_one_that_would_be_found(questions, room):
    choices = ChoiceCache(room)

    for size, chance in questions:
        devices = [f"d{number}" for number in range(size)]
        pairs = {
            (a, b): Link(score=chance.randrange(3), label="") for i, a in enumerate(devices) for b in devices[i + 1 :]
        }
        links, count = Links(pairs=pairs), chance.randint(1, size)
        for _ in range(2):
            order = chance.sample(range(size), size)
            places = best_places(order, count, links.scores(devices), rest=True, choices=choices)
            in_order = [devices[place] for place in order]
            assert tuple(devices[place] for place in places) == best_linked(in_order, count, links)
