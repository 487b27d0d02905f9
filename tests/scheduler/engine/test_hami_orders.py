"""In which order HAMi's own tests want devices and nodes, how they score them, and whom selectors keep away."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from hami_plugin.model.views import NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import Context, Demand, DevicePool, DeviceState, NodeInfo
from hami_plugin.scheduler.engine.filter import NodeScore, node_score, rank_nodes
from hami_plugin.scheduler.engine.fit import PodFit
from hami_plugin.scheduler.engine.node_info import scheduling_policies
from hami_plugin.scheduler.engine.policy import Weights, fullness, named, of_type, ordered, score
from tests.hami import values
from tests.hami.answers import NO_REQUEST
from tests.hami.parity import Parity
from tests.support.hami import Json, asks
from tests.support.hami_questions import family, renamed

EXCUSED = {"NodeScore.SnapshotDevice": "copies devices before they are changed; here they are values that never change"}


def asking(annotations: Json | None) -> Context:
    pod = PodView(uid="u", namespace="n", name="p", annotations=annotations or {})
    return Context(demand=Demand(device_type="w", count=1), pod=pod)


@asks("device_selectors", "CheckUUID")
def test_uuids_are_chosen_as_by_hami(case: Json) -> None:
    put = case["input"]
    state = DeviceState(info=DeviceInfo(id=put["id"]))

    reason = named(put["useKey"], put["noUseKey"])(state, asking(put["annos"]))

    assert (reason is None) is case["expected"]["result"]


@asks("device_selectors", "CheckType")
def test_types_are_chosen_as_by_hami(case: Json) -> None:
    put = case["input"]
    state = DeviceState(info=DeviceInfo(id="d", type=put["cardType"]))

    reason = of_type(put["useKey"], put["noUseKey"])(state, asking(put["annos"]))

    assert (reason is None) is case["expected"]["result"]


@asks("gpu_policy", "DeviceUsageList.Less")
def test_of_two_devices_the_one_that_hami_puts_first_stands_first(case: Json) -> None:
    put, backend = case["input"], case["input"]["backend"]
    listed = backend["device_lists"]
    states = [values.state({**one["device"], "id": str(place)}) for place, one in enumerate(listed)]
    words = [word.strip() for word in backend.get("policy", "").split(",")]
    one, other = states[put["i"]], states[put["j"]]

    first, _ = ordered(
        [other, one],
        words,
        lambda state: listed[int(state.uuid)].get("score", 0.0),
        numa_first=backend.get("numa_bind", False),
    )

    assert (first is one) is case["expected"]["result"]


@asks("gpu_policy", "gpuSortKeyChain")
def test_several_words_decide_one_after_the_other_each_once(case: Json) -> None:
    """Words that say nothing about an order are as if they were not there."""
    words = [word.strip() for word in case["input"]["policy"].split(",")]
    said = case["expected"]["result"]
    if said is None:
        assert len(words) == 1  # decides in its own way: mutex, and what means nothing
        return
    full = {"0": 1.0, "1": 2.0, "2": 1.0, "3": 2.0}
    states = [values.state({"id": name, "index": int(name), "numa": int(name) // 2}) for name in full]

    for some in permutations(states):
        mine = ordered(some, words, lambda state: full[state.uuid])
        assert mine == ordered(some, said, lambda state: full[state.uuid])


@asks("gpu_policy", "DeviceListsScore.ComputeScore")
def test_a_device_is_as_full_as_for_hami(case: Json) -> None:
    put, after = case["input"], case["expected"].get("after", {})
    state = values.state(put["backend"]["device"])
    asked = [{**NO_REQUEST, **renamed(request)} for request in put["requests"].values()]
    demands = [Parity().demand(request) for request in asked if request["type"] == state.info.type]

    weighing = Weights(**{"slot": 0, "core": 0, "memory": 0, **put["weights"]})

    assert score(state, demands, weighing) == pytest.approx(after.get("backend", {}).get("score", 0.0), rel=1e-5)


def node_info(name: str, states: tuple[DeviceState, ...] = (), node: Json | None = None) -> NodeInfo:
    view = values.node(node) if node else NodeView(name=name)
    return NodeInfo(
        node=view, pools={device_type: DevicePool(states=states) for device_type in ("DCU", "Metax-GPU", "Metax-SGPU")}
    )


@asks("node_policy", "NodeScoreList.Less")
def test_of_two_nodes_the_one_that_hami_puts_first_stands_first(case: Json) -> None:
    put, backend = case["input"], case["input"]["backend"]
    nodes = [
        NodeScore(placed=PodFit(node_info=node_info(one["node_id"]), given={}, steps=(), after={}), score=one["score"])
        for one in backend["node_list"]
    ]

    order = rank_nodes(nodes, backend.get("policy", ""))

    assert (order[0] is nodes[put["i"]]) is case["expected"]["result"]


@asks("node_policy", "NodeScore.ComputeDefaultScore")
def test_a_node_is_as_full_as_for_hami(case: Json) -> None:
    states = [values.state({"id": "d", **one["device"]}) for one in case["input"]["devices"]["device_lists"]]
    theirs = case["expected"].get("after", {}).get("backend", {}).get("score", 0.0)

    assert fullness(states) == pytest.approx(theirs, rel=1e-5)


@asks("node_policy", "NodeScore.OverrideScore")
def test_a_node_is_worth_what_it_is_for_hami(case: Json) -> None:
    put = renamed(case["input"])
    before = tuple(values.state({"id": "d", **item}) for item in put["previous"])
    given = {device_type: values.pieces(pieces) for device_type, pieces in put["backend"]["devices"].items()}
    notes = [grant.notes or {} for pieces in given.values() for piece in pieces for grant in piece]
    pod = PodView(uid="u", namespace="n", name="p", annotations=notes[0].get("Pod.Annotations", {}))
    policies = scheduling_policies(family(device_type) for device_type in given)
    theirs = case["expected"].get("after", {}).get("backend", {}).get("score", 0.0)

    assert node_score(pod, policies, node_info("n", before, put["backend"]["node"]), given, put["policy"]) == theirs


def test_the_words_of_an_order_matter() -> None:
    """Or the comparison of chains above would show nothing."""
    states = [values.state({"id": name, "index": int(name), "numa": int(name) // 2}) for name in "0123"]
    chains = (["numa"], ["binpack"], ["spread", "numa"])

    orders = [ordered(states, words, lambda state: float(state.uuid in "13")) for words in chains]

    assert all(one != other for one, other in combinations(orders, 2))
