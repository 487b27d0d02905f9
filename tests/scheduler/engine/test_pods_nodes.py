"""Which of several nodes a pod goes to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import DevicePool, NodeInfo, amount, count_request, idle_state
from hami_plugin.scheduler.engine.filter import ORDER_KEY, score_nodes
from hami_plugin.scheduler.engine.fit import CycleOptions
from hami_plugin.scheduler.engine.policy import Decision, Policy, Ranking, standard

REQUEST = count_request("red", count=amount("red/count"), memory=amount("red/memory"))
PLAIN = Policy(request=REQUEST, serves=standard("red"))
POD = PodView(
    uid="u",
    namespace="n",
    name="p",
    containers=(ContainerView(name="c", limits={"red/count": "1", "red/memory": "10"}),),
)


def node(name: str, memory: int = 0) -> NodeInfo:
    info = DeviceInfo(id=f"{name}-R", count=10, devmem=100, devcore=100, health=True)
    pool = DevicePool(states=(replace(idle_state(info), memory=memory, slots=1 if memory else 0),))
    return NodeInfo(node=NodeView(name=name), pools={"red": pool})


def chosen(policy: Policy, *node_infos: NodeInfo, order: str | None = None) -> str | None:
    pod = replace(POD, annotations={ORDER_KEY: order}) if order else POD
    best = score_nodes(pod, {"red": policy}, node_infos, CycleOptions()).best
    return best.node_info.node.name if best else None


@pytest.mark.parametrize(("order", "expected"), [(None, "full"), ("binpack", "full"), ("spread", "empty")])
def test_the_fullest_node_unless_the_pod_wants_to_be_spread(order, expected):
    assert chosen(PLAIN, node("empty"), node("full", 50), order=order) == expected


def test_equal_nodes_come_out_the_same_in_whatever_order_they_stand():
    nodes = [node("a", 30), node("b", 30), node("c", 30)]

    assert chosen(PLAIN, *nodes) == chosen(PLAIN, *nodes[::-1]) == "c"


def test_how_full_a_node_is_counts_before_the_pod_is_on_it():
    choice = score_nodes(POD, {"red": PLAIN}, [node("n", 40)], CycleOptions())

    assert choice.fitting[0].score == pytest.approx(10 * (1 / 10 + 0 / 100 + 40 / 100))


@pytest.mark.parametrize("order", ["binpack", "spread"])
def test_a_ranking_outweighs_how_full_a_node_is_under_every_order(order):
    def score(decision: Decision) -> Ranking:
        return Ranking(value=2 if decision.node.name == "good" else 1)

    policy = replace(PLAIN, score=score)

    assert chosen(policy, node("good", 50), node("other"), order=order) == "good"
    assert chosen(policy, node("good"), node("other", 50), order=order) == "good"


def test_nodes_where_it_does_not_fit_say_why():
    choice = score_nodes(
        POD, {"red": PLAIN}, [node("full", 95), NodeInfo(node=NodeView(name="bare"), pools={})], CycleOptions()
    )

    assert choice.best is None
    assert {one.node_info.node.name: one.why for one in choice.failed} == {
        "full": "1/1 CardInsufficientMemory",
        "bare": "NodeInsufficientDevice",
    }
