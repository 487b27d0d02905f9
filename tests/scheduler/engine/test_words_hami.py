"""HAMi's own cases of what is read off a pod: its policies and weights, its state, its group; and of a node's lock."""

from __future__ import annotations

from datetime import UTC, datetime

from hami_plugin.model.views import pod_view
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.protocol.nodes import parse_lock
from hami_plugin.protocol.pods import Question, decided_shares
from hami_plugin.scheduler.engine.devices import ORDER_KEY, Context, Demand, Invalid
from hami_plugin.scheduler.engine.node_info import patch_with_label
from hami_plugin.scheduler.engine.policy import WEIGHTS_KEY, Weights, weights
from tests.support.hami import Json, asks
from tests.support.pods import json_of, nvidia, view

NOW = datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC)
EXCUSED = {
    "util.AllContainersCreated": "counts container statuses; which containers have been served is asked of the kubelet",
}


def agree(case: Json, annotations: Json) -> None:
    expected, found = case["expected"], weights(annotations)

    if expected["error"]:
        assert isinstance(found, Invalid)
        assert WEIGHTS_KEY in str(found)
    else:
        given = expected["weights"]
        assert found == Weights(**{name: given.get(name, 0) for name in ("slot", "core", "memory")})


@asks("policy_util", "ParseDeviceScoringWeights")
def test_weights_are_read_as_hami_reads_them(case: Json):
    agree(case, {WEIGHTS_KEY: case["input"]["value"]})


@asks("policy_util", "GetDeviceScoringWeightsByPod")
def test_a_pods_weights_are_its_annotation_or_even(case: Json):
    agree(case, view(case["input"]["pod"]).annotations)


def words(order: str, pod: Json | None = None) -> tuple[str, ...]:
    return Context(demand=Demand(device_type="toy", count=1), pod=view(pod), order=order).orders


@asks("policy_util", "GetGPUSchedulerPolicyByPod")
def test_a_pods_device_order_is_its_annotation_or_the_clusters(case: Json):
    assert words(case["input"]["defaultPolicy"], case["input"]["pod"]) == (case["expected"]["result"],)


@asks("policy_util", "PolicyContains")
def test_a_device_order_is_a_list_of_words(case: Json):
    question = case["input"]

    assert (question["name"] in words("spread", {"annotations": {ORDER_KEY: question["policy"]}})) == (
        case["expected"]["result"]
    )


@asks("policy_util", "IsPodInTerminatedState")
def test_a_pod_has_ended_when_its_phase_says_so(case: Json):
    assert view(case["input"]["pod"]).terminal == case["expected"]["result"]


@asks("policy_util", "IsPodTerminating")
def test_a_pod_is_being_deleted_once_that_has_a_time(case: Json):
    assert view(case["input"]["pod"]).deleted == case["expected"]["result"]


@asks("policy_util", "IsPodGroupMember")
def test_a_pod_belongs_to_a_group_by_label_or_by_kubernetes_own_field(case: Json):
    assert bool(view(case["input"]["pod"]).group) == case["expected"]["result"]


@asks("policy_util", "PatchPodAnnotations")
def test_annotations_are_written_with_the_node_as_a_label(case: Json):
    question, pods = case["input"], case["input"]["cluster"]["pods"]
    pod = question["pod"]
    key = f"{pod['namespace']}/{pod['name']}" if pod else ""

    changes = patch_with_label(question["annotations"])

    if case["expected"]["error"]:
        assert key not in pods  # nobody to write to: the API server's answer, not ours
    else:
        after = case["expected"]["cluster_after"]["pods"][key]
        assert {**pods[key].get("annotations", {}), **changes.annotations} == after["annotations"]
        assert {**pods[key].get("labels", {}), **changes.labels} == after["labels"]


@asks("policy_util", "GetAllocatePodByNode")
def test_the_node_lock_names_the_pod_that_is_being_bound(case: Json):
    question, expected = case["input"], case["expected"]
    node = question["cluster"]["nodes"].get(question["node_name"])
    text = (node or {}).get("annotations", {}).get(NODE_LOCK, "").replace("{now}", NOW.isoformat())

    lock = parse_lock(text) if text else None

    if lock and lock.pod:
        assert (lock.namespace, lock.pod) == (expected["pod"]["namespace"], expected["pod"]["name"])
    else:
        assert expected["pod"] is None


@asks("policy_util", "GetPendingPod")
def test_no_pod_is_guessed_from_a_lock_or_a_phase(case: Json):
    """D-030: HAMi takes the pod of the lock, or the first that is allocating. None of them has a share to hand out."""
    family = nvidia()[0]
    question = Question(
        resource=family.resources.count,
        to_allocate=family.rules.annotations.to_allocate,
        allocated=family.rules.annotations.allocated,
    )
    pods = [pod_view(json_of(pod)) for pod in case["input"]["cluster"]["pods"].values()]

    assert case["expected"]["pod"] is not None
    assert [decided_shares(pod, question) for pod in pods] == [()] * len(pods)
