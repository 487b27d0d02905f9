"""What is kept from one question to the next changes no answer: it is compared with working everything out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.model.links import Link, Links
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.decisions import encode_devices
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.register import DeviceInfo, encode_json
from hami_plugin.protocol.scores import encode_scores
from hami_plugin.scheduler.engine.devices import ORDER_KEY
from hami_plugin.scheduler.engine.filter import ClusterSnapshot, FilterResult, NodeInfoCache, filter_nodes, score_nodes
from hami_plugin.scheduler.engine.node_info import read_idle_node, read_node, scheduling_policies
from hami_plugin.scheduler.engine.pod_info import PodIndex
from hami_plugin.scheduler.engine.topology import ChoiceCache, best_linked, best_places
from tests.support.pods import families
from tests.support.scale import examples

FAMILIES = families()
FAMILY = next(family for family in FAMILIES if family.device_type == "NVIDIA")
KEYS = FAMILY.annotations
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
@given(st.tuples(*(nodes(name) for name in NAMES)), EVENTS, st.sampled_from(("binpack", "spread")))
def test_a_filter_that_keeps_what_it_knows_answers_as_one_that_starts_anew(first, events, order):
    views = {view.name: view for view in first}
    node_infos = {name: read_idle_node(view, FAMILIES).node_info for name, view in views.items()}
    snapshot = ClusterSnapshot(families=FAMILIES, nodes=node_infos, pods=PodIndex(), node_order=order)

    for event, pod in events:
        if isinstance(event, NodeView):
            views[event.name], node_infos[event.name] = event, read_idle_node(event, FAMILIES).node_info
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

    before = occupancy.of(FAMILIES, node_info, ledger.on("n0"))
    again = occupancy.of(FAMILIES, node_info, ledger.on("n0"))
    ledger.see(replace(taken, phase="Running"), FAMILIES)
    after = occupancy.of(FAMILIES, node_info, ledger.on("n0"))

    assert again is before
    assert after is not before
    assert occupancy.of(FAMILIES, replace(node_info), ledger.on("n0")) is not after


def test_nodes_that_are_gone_are_forgotten():
    node_infos = [read_idle_node(NodeView(name=f"n{number}"), FAMILIES).node_info for number in range(9)]
    occupancy = NodeInfoCache()
    known = [occupancy.of(FAMILIES, node_info, ()) for node_info in node_infos]

    occupancy.keep({"n0", "n1"})

    assert occupancy.of(FAMILIES, node_infos[0], ()) is known[0]
    assert occupancy.of(FAMILIES, node_infos[8], ()) is not known[8]


SIZES = st.integers(2, 7)


@settings(deadline=None)
@given(st.lists(st.tuples(SIZES, st.randoms(use_true_random=False)), max_size=12), st.sampled_from((8, 60, 1 << 18)))
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
