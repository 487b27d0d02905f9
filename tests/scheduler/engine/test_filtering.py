"""The filter beyond HAMi's cases: pods that ask for nothing, mixed refusals, and the messages around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hami_plugin.errors import WireError
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE
from hami_plugin.protocol.nodes import DeviceInfo, encode_json
from hami_plugin.scheduler.engine.admission import Allowed
from hami_plugin.scheduler.engine.devices import Quota
from hami_plugin.scheduler.engine.filter import (
    ClusterSnapshot,
    FilterResult,
    NoDemand,
    filter_nodes,
    simulate,
)
from hami_plugin.scheduler.engine.node_info import (
    PodIndex,
    assignment,
    bind_phase,
    conflict,
    patch_with_label,
    pod_info,
    read_idle_node,
)
from hami_plugin.scheduler.engine.quotas import limits
from hami_plugin.scheduler.extender.payloads import admission_response, extender_args, filter_result
from tests.support.pods import nvidia

FAMILIES = nvidia()
REGISTER = FAMILIES[0].rules.annotations.register
NOW = datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC)


def node(name: str, *, memory: int = 8000, health: bool = True) -> NodeView:
    card = DeviceInfo(
        id=f"GPU-{name}", index=0, count=10, devmem=memory, devcore=100, type="NVIDIA A10", numa=0, health=health
    )
    return NodeView(name=name, annotations={REGISTER: encode_json([card])})


def pod(uid: str = "u1", memory: int = 1000) -> PodView:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory)} if memory else {"cpu": "1"}
    return PodView(uid=uid, namespace="default", name=uid, containers=(ContainerView(name="main", limits=limits),))


def snapshot(*nodes: NodeView) -> ClusterSnapshot:
    return ClusterSnapshot(
        families=FAMILIES, nodes={one.name: read_idle_node(one, FAMILIES).node_info for one in nodes}
    )


def placed(outcome: FilterResult | NoDemand) -> FilterResult:
    assert isinstance(outcome, FilterResult)
    return outcome


def test_a_pod_that_asks_for_nothing_may_go_anywhere():
    offered = extender_args({"Pod": {}, "NodeNames": ["n1", "n2"]})

    outcome = filter_nodes(snapshot(), pod(memory=0), offered.names)

    assert outcome == NoDemand()
    assert filter_result(offered, outcome)["NodeNames"] == ["n1", "n2"]


def test_what_was_decided_is_taken_before_the_next_pod_is_asked():
    known = snapshot(node("n1", memory=1500))
    first = placed(filter_nodes(known, pod("u1"), ["n1"]))
    changes = assignment(FAMILIES, pod("u1"), first.placed, NOW)

    known.pods.see(replace(pod("u1"), annotations=changes.annotations), FAMILIES)

    assert placed(filter_nodes(known, pod("u2"), ["n1"])).failed == {"n1": "1/1 CardInsufficientMemory"}
    assert placed(filter_nodes(known, pod("u1"), ["n1"])).placed
    assert placed(simulate(known, pod("u2"), [node("n1", memory=1500)])).placed


def test_a_pod_that_waits_is_told_which_rule_holds_it_on_how_many_nodes():
    known = snapshot(node("a", memory=500), node("b", memory=600), node("c", health=False), NodeView(name="d"))

    outcome = placed(filter_nodes(known, pod(), ["a", "b", "c", "d"]))

    assert outcome.placed is None
    assert outcome.summary == (
        "CardInsufficientMemory on 2 of 4 nodes, CardNotHealth on 1 of 4 nodes, node unregistered on 1 of 4 nodes"
    )


def test_an_amount_that_means_nothing_fits_nowhere_and_says_so():
    outcome = placed(filter_nodes(snapshot(node("n1")), pod(memory=2**32), ["n1"]))

    assert outcome.failed == {"n1": f"nvidia.com/gpumem={2**32} is not within 0 to {2**31 - 1}"}


@pytest.mark.difference("D-326")
def test_why_other_nodes_failed_is_told_also_when_one_is_left():
    offered = extender_args({"Pod": {}, "Nodes": None, "NodeNames": ["a", "b"]})

    result = filter_result(offered, filter_nodes(snapshot(node("a", memory=500), node("b")), pod(), offered.names))

    assert result == {"FailedNodes": {"a": "1/1 CardInsufficientMemory"}, "Error": "", "NodeNames": ["b"]}


@pytest.mark.parametrize("request_", [{}, {"Pod": {}}, {"Pod": {}, "NodeNames": None, "Nodes": None}])
def test_a_request_without_pod_or_nodes_is_refused(request_: dict[str, object]):
    with pytest.raises(WireError):
        extender_args(request_)


@pytest.mark.difference("D-322")
def test_a_nodes_name_that_is_no_label_is_written_as_an_annotation_only():
    longest = "n" * 63

    assert patch_with_label({ASSIGNED_NODE: longest}).labels == {ASSIGNED_NODE: longest}
    too_long = patch_with_label({ASSIGNED_NODE: longest + "n"})
    assert (too_long.labels, too_long.annotations) == ({}, {ASSIGNED_NODE: longest + "n"})


def test_binding_lets_the_nodes_daemon_begin():
    assert bind_phase(NOW).annotations == {BIND_PHASE: "allocating", "hami.io/bind-time": "1787307072"}


@pytest.mark.difference("D-323")
def test_of_several_quotas_the_least_counts():
    key = "limits.nvidia.com/gpumem"

    assert limits([{key: "3k"}, {key: "2k"}, {"limits.cpu": "1"}], FAMILIES) == {"nvidia.com/gpumem": 2000}


def test_a_namespaces_quota_counts_in_the_filter():
    known = snapshot(node("n1"))
    short = replace(known.options, quota=Quota(limits={"nvidia.com/gpumem": 999}))

    outcome = placed(filter_nodes(replace(known, options=short, pods=PodIndex()), pod(), ["n1"]))

    assert outcome.failed == {"n1": "1/1 ResourceQuotaNotFit"}


def test_an_admission_that_changes_nothing_has_no_patch():
    assert admission_response("7", Allowed()) == {"uid": "7", "allowed": True}


def crowded(had: Sequence[int], has: int, *, phase: str = "Running", sick: bool = False) -> ClusterSnapshot:
    """A node of two cards with two shares each, the second of which may be sick. Of one pod the init container ``had``
    these cards, and the other one ``has`` this one.
    """
    cards = [
        DeviceInfo(
            id=f"G{n}", index=n, count=2, devmem=8000, devcore=100, type="NVIDIA A10", health=not (sick and n == 1)
        )
        for n in range(2)
    ]
    counted = {"nvidia.com/gpu": str(2 * sum(card.health for card in cards))}
    known = snapshot(NodeView(name="n1", annotations={REGISTER: encode_json(cards)}, allocatable=counted))
    pieces = ["".join(f"G{n},NVIDIA,100,0:" for n in piece) for piece in (had, [has])]
    busy = replace(
        pod("busy"),
        containers=(asking("i", len(had), init=True), asking("c", 1)),
        annotations={ASSIGNED_NODE: "n1", FAMILIES[0].rules.annotations.allocated: f"{';'.join(pieces)};"},
        node="n1",
        phase=phase,
    )
    known.pods.see(busy, FAMILIES)
    return known


def asking(name: str, count: int, *, init: bool = False) -> ContainerView:
    limits = {"nvidia.com/gpu": str(count), "nvidia.com/gpumem": "100"}
    return ContainerView(name=name, init=init, limits=limits)


def shares(*counts: int) -> PodView:
    """A pod whose containers ask for so many cards each."""
    return replace(pod("next"), containers=tuple([asking(f"c{n}", count) for n, count in enumerate(counts)]))


@pytest.mark.difference("D-393")
def test_ids_that_the_kubelet_keeps_for_an_init_container_are_not_there_for_the_next_pod():
    left = placed(filter_nodes(crowded([0, 1], 0), shares(1, 1, 1), ["n1"]))

    assert left.failed == {
        "n1": "Insufficient nvidia.com/gpu: 3 asked for; node n1 has 4, of which pods keep 2, "
        "those of init containers that are over among them"
    }
    assert placed(filter_nodes(crowded([0], 0), shares(1, 1, 1), ["n1"])).placed
    assert placed(filter_nodes(crowded([0, 1], 0), shares(2), ["n1"])).placed


def test_what_pods_have_of_a_sick_card_is_not_missing_of_the_others():
    assert placed(filter_nodes(crowded([1], 1, sick=True), shares(1, 1), ["n1"])).placed
    assert not placed(filter_nodes(crowded([0], 0, sick=True), shares(1, 1), ["n1"])).placed


def test_a_pod_that_came_first_from_another_scheduler_leaves_too_few_ids_at_the_bind():
    known = crowded([0, 1], 0)
    late = placed(filter_nodes(snapshot(known.nodes["n1"].node), shares(1, 1, 1), ["n1"])).placed
    assert late
    changes = assignment(FAMILIES, shares(1, 1, 1), late, NOW)
    own = pod_info(replace(shares(1, 1, 1), annotations=changes.annotations), FAMILIES)
    assert own

    why = conflict(FAMILIES, known.nodes["n1"], own, known.pods.on("n1"), order="spread")

    assert why.startswith("Insufficient nvidia.com/gpu: 3 asked for")
