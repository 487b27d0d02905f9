"""Admission beyond HAMi's cases: every way in which a pod's JSON changes, and refusals with their reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hami_plugin.model.views import ContainerView
from hami_plugin.scheduler.engine.admission import Allowed, Scheduling, json_patch, review, review_pausing
from hami_plugin.scheduler.engine.devices import Demand, Denied, Invalid, Quota
from hami_plugin.scheduler.engine.policy import WEIGHTS_KEY
from tests.support.pods import of_vendor

OURS = Scheduling(name="hami-scheduler")
GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"


def pod(limits: Any = None, *, spec: Any = None, meta: Any = None, **container: Any) -> Any:
    one = {"name": "main", "image": "train:1", "resources": {"limits": limits or {}}, **container}
    return {"metadata": {"name": "p", **(meta or {})}, "spec": {"containers": [one], **(spec or {})}}


def decide(manifest: Any, quota: Quota | None = None, **section: Any) -> Allowed | Denied:
    return review(manifest, of_vendor("nvidia", section), OURS, quota)


def changes(manifest: Any, **section: Any) -> dict[str, Any]:
    answer = decide(manifest, **section)
    assert isinstance(answer, Allowed)
    return {one["path"]: one["value"] for one in answer.changes}


def refusal(manifest: Any, quota: Quota | None = None) -> str:
    answer = decide(manifest, quota)
    assert isinstance(answer, Denied)
    return answer.why


def test_defaults_and_our_scheduler_are_all_that_changes():
    assert changes(pod({MEMORY: "1000"})) == {
        "/spec/containers/0/resources/limits/nvidia.com~1gpu": "1",
        "/spec/schedulerName": "hami-scheduler",
    }


def test_the_runtime_class_is_set_unless_the_pod_has_one():
    asking = pod({GPU: "1", MEMORY: "1000"})
    choosing = pod({GPU: "1", MEMORY: "1000"}, spec={"runtimeClassName": "mine"})

    assert changes(asking, runtimeClassName="nvidia")["/spec/runtimeClassName"] == "nvidia"
    assert "/spec/runtimeClassName" not in changes(choosing, runtimeClassName="nvidia")


def test_between_two_pauses_of_a_review_one_container_is_looked_at():
    asked: list[str] = []
    (family,) = of_vendor("nvidia", {})
    policy = family.rules.policy
    assert policy

    def noting(container: ContainerView) -> Demand | Invalid | None:
        asked.append(container.name)
        return policy.request(container)

    family = replace(family, rules=replace(family.rules, policy=replace(policy, request=noting)))
    several = [{"name": f"c{n}", "resources": {"limits": {GPU: "1", MEMORY: "100"}}} for n in range(9)]
    between = []
    for _pause in review_pausing(pod(spec={"containers": several}), [family], OURS, Quota()):
        between.append(set(asked))
        asked.clear()

    assert sum(map(len, between)) >= 2 * len(several)
    assert max(map(len, between)) == 1


def test_an_environment_variable_replaces_the_pods_own_and_keeps_the_others():
    env = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "mine"}, {"name": "A", "valueFrom": {"fieldRef": {}}}]

    found = changes(pod({GPU: "1", MEMORY: "1"}, env=env), gpuCorePolicy="force")

    assert found == {"/spec/containers/0/env/0/value": "force", "/spec/schedulerName": "hami-scheduler"}


def test_containers_without_resources_get_an_environment_too():
    bare = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}

    found = changes(bare, overwriteEnv=True)

    assert found == {"/spec/containers/0/env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}


def test_annotations_that_a_family_adds_join_the_pods_own():
    limits = {"mthreads.com/vgpu": "2"}

    answer = review(pod(limits, meta={"annotations": {"mine": "1"}}), of_vendor("mthreads", {}), OURS)

    assert isinstance(answer, Allowed)
    assert {"op": "add", "path": "/metadata/annotations/mthreads.com~1request-gpu-num", "value": "2"} in answer.changes


def test_a_pod_that_is_labelled_so_is_left_alone():
    answer = decide(pod({MEMORY: "1000"}, meta={"labels": {"hami.io/webhook": "ignore"}}))

    assert isinstance(answer, Allowed)
    assert (answer.changes, bool(answer.why)) == ((), True)


@pytest.mark.difference("D-321")
def test_an_amount_that_means_nothing_is_refused_where_it_was_written():
    assert refusal(pod({GPU: "1", MEMORY: "4294967297"})).startswith(f"{MEMORY}=4294967297 is not within")


@pytest.mark.difference("D-321")
def test_weights_that_mean_nothing_are_refused_only_where_they_count():
    meta = {"annotations": {WEIGHTS_KEY: "slot=1"}}

    assert WEIGHTS_KEY in refusal(pod({GPU: "1"}, meta=meta))
    assert isinstance(decide(pod({"cpu": "1"}, meta=meta)), Allowed)


def test_a_quota_that_is_not_enough_is_told_with_its_numbers():
    quota = Quota(limits={MEMORY: 2000}, used={MEMORY: 1500})

    why = refusal(pod({GPU: "2", MEMORY: "300"}), quota)

    assert why == f"exceeding resource quota: limits.{MEMORY}: the pod needs 600, and 1500 of 2000 are used"


@pytest.mark.difference("D-324")
def test_a_sidecar_counts_beside_what_runs_with_it():
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"limits": {GPU: "1", MEMORY: "600"}}}
    quota = Quota(limits={MEMORY: 1000})

    together = pod({GPU: "1", MEMORY: "600"}, spec={"initContainers": [sidecar]})
    after = pod({GPU: "1", MEMORY: "600"}, spec={"initContainers": [{**sidecar, "restartPolicy": None}]})

    assert "needs 1200" in refusal(together, quota)
    assert isinstance(decide(after, quota), Allowed)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, [("replace", "/a", 2)]),
        ({"a": 1}, {}, [("remove", "/a", None)]),
        ({}, {"a/b~c": 1}, [("add", "/a~1b~0c", 1)]),
        ({"l": [{"x": 1}, 2]}, {"l": [{"x": 3}, 2]}, [("replace", "/l/0/x", 3)]),
        ({"l": [1]}, {"l": [1, 2]}, [("replace", "/l", [1, 2])]),
        ({"l": None}, {"l": {}}, [("replace", "/l", {})]),
    ],
)
def test_a_patch_says_what_turns_one_document_into_the_other(before: Any, after: Any, expected: Any):
    assert [(one["op"], one["path"], one.get("value")) for one in json_patch(before, after)] == expected
