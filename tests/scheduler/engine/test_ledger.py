"""The ledger of pods as a watch feeds it: a share is free when its pod is over, and never before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.scheduler.engine.node_info import PodIndex, PodInfo
from tests.support.pods import nvidia

FAMILIES = nvidia()
ALLOCATED = FAMILIES[0].rules.annotations.allocated
SHARE = encode_devices([(Grant(uuid="GPU-a", device_type="NVIDIA", memory=1000, cores=10),)])
DECIDED = {ASSIGNED_NODE: "n1", ALLOCATED: SHARE}


def pod(uid: str = "u1", annotations: dict[str, str] | None = None, **changes) -> PodView:
    return PodView(
        uid=uid, namespace="default", name=uid, annotations=DECIDED if annotations is None else annotations, **changes
    )


def ledger(*pods: PodView) -> PodIndex:
    found = PodIndex()
    for one in pods:
        found.see(one, FAMILIES)
    return found


def on(book: PodIndex, node: str) -> list[str]:
    return [one.pod.uid for one in book.on(node)]


def test_a_decision_counts_on_its_node():
    book = ledger(pod())

    [entry] = book.on("n1")

    assert [grant.memory for piece in entry.held["NVIDIA"].pieces for grant in piece] == [1000]


def test_a_pod_without_a_decision_has_nothing():
    assert not ledger(pod(annotations={ALLOCATED: SHARE})).entries


def test_a_pod_that_has_ended_has_nothing_though_it_is_still_there():
    assert not ledger(pod(), pod(phase="Succeeded")).entries
    assert not ledger(pod(phase="Failed")).entries


def test_a_pod_that_is_being_deleted_keeps_its_share_until_it_is_gone():
    book = ledger(pod(), pod(deleted=True, annotations={}))

    assert on(book, "n1") == ["u1"]

    book.drop("u1")

    assert on(book, "n1") == []


def test_an_older_version_of_a_pod_does_not_undo_our_decision():
    book = ledger(pod(), pod(annotations={}, phase="Pending"))

    assert on(book, "n1") == ["u1"]


@pytest.mark.difference("D-325")
def test_a_bound_pod_counts_where_it_is_and_not_where_its_author_says():
    book = ledger(pod(node="n2"))

    assert (on(book, "n1"), on(book, "n2")) == ([], ["u1"])


def test_a_new_decision_frees_the_old_node():
    book = ledger(pod(), pod(annotations={**DECIDED, ASSIGNED_NODE: "n2"}))

    assert (on(book, "n1"), on(book, "n2")) == ([], ["u1"])


def test_a_phase_that_changes_what_a_pod_takes_reaches_what_it_holds():
    book = ledger(pod())

    book.update(pod(phase="Running"))

    [entry] = book.on("n1")
    assert entry.pod.phase == entry.held["NVIDIA"].pod.phase == "Running"


def test_a_damaged_annotation_is_a_problem_of_its_pod_alone():
    book = ledger(pod("u1", {ASSIGNED_NODE: "n1", ALLOCATED: "GPU-a,NVIDIA,x,1:;"}), pod("u2"))

    first, second = book.on("n1")

    assert (len(first.problems), first.held) == (1, {})
    assert (second.problems, list(second.held)) == ((), ["NVIDIA"])


def test_a_pod_does_not_stand_in_its_own_way():
    book = ledger(pod("u1"), pod("u2"))

    assert [one.pod.uid for one in book.on("n1", without="u1")] == ["u2"]
    assert [one.pod.uid for one in book.of("default", without="u1")] == ["u2"]


pods = st.builds(
    lambda uid, node, phase: pod(uid, {**DECIDED, ASSIGNED_NODE: node}, phase=phase),
    st.sampled_from("abc"),
    st.sampled_from(["n1", "n2"]),
    st.sampled_from(["Pending", "Running", "Succeeded"]),
)


@given(st.lists(st.one_of(pods, st.sampled_from("abc")), max_size=20))
def test_nodes_and_pods_never_disagree(steps: list[PodView | str]):
    book, latest = PodIndex(), {}
    for step in steps:
        if isinstance(step, str):
            book.drop(step)
            latest.pop(step, None)
        else:
            book.see(step, FAMILIES)
            latest[step.uid] = step
            if step.terminal:
                del latest[step.uid]

    assert {uid: one.node for uid, one in book.entries.items()} == {
        uid: one.annotations[ASSIGNED_NODE] for uid, one in latest.items()
    }
    for node in ("n1", "n2"):
        assert {one.pod.uid for one in book.on(node)} == {uid for uid, one in book.entries.items() if one.node == node}
    assert PodIndex(book.entries.values()).entries == book.entries


def test_an_entry_follows_its_pod():
    one = PodInfo(pod=pod(), node="n1")

    assert one.updated(replace(one.pod, phase="Running")).pod.phase == "Running"
