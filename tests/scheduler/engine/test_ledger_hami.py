"""HAMi's own cases of its cache of pods, asked of our ledger."""

from __future__ import annotations

from hami_plugin.scheduler.engine.node_info import PodIndex, PodInfo
from tests.support.hami import Json, asks
from tests.support.pods import entry, held, view


def before(case: Json) -> PodIndex:
    return PodIndex(entry(item) for item in case["input"]["backend"]["pods"].values())


def expected(case: Json) -> dict[str, PodInfo]:
    """The cache afterwards; the same as before where nothing is said."""
    after = case["expected"].get("after", case["input"])["backend"]["pods"]
    return {uid: entry(item) for uid, item in after.items()}


def agree(ledger: PodIndex, case: Json) -> None:
    after = expected(case)

    assert ledger.entries == after
    for node in {one.node for one in after.values()}:
        assert {one.pod.uid for one in ledger.on(node)} == {uid for uid, one in after.items() if one.node == node}
    for known in case["input"]["backend"]["pods"].values():
        here = {one.pod.uid for one in ledger.on(known["node_id"])}
        assert (known["uid"] in here) == (known["uid"] in after and after[known["uid"]].node == known["node_id"])


@asks("pod_manager", "PodManager.AddPod")
def test_a_pod_is_entered_once_and_then_replaced(case: Json):
    ledger, question = before(case), case["input"]
    pod = view(question["pod"])

    new = ledger.put(PodInfo(pod=pod, node=question["nodeID"], held=held(pod, question["devices"])))

    assert new == case["expected"]["result"]
    agree(ledger, case)


@asks("pod_manager", "PodManager.DelPod")
def test_a_pod_that_is_gone_has_nothing(case: Json):
    ledger, uid = before(case), case["input"]["pod"]["uid"]

    known = ledger.drop(uid)

    assert known == (uid in case["input"]["backend"]["pods"])
    agree(ledger, case)


@asks("pod_manager", "PodManager.UpdatePod")
def test_a_newer_version_of_a_pod_keeps_what_it_has(case: Json):
    ledger = before(case)

    ledger.update(view(case["input"]["pod"]))

    agree(ledger, case)
